"""Measures profiles of this region's machine, keeps them, and tells when one has grown.

A profile is measured by two child processes after each other, one with a worker's engine and one with a trainer, at low
priority. Each prints one result a line (periplus/process/measuring.py), and the profile is kept after every line. So a
profile that was interrupted goes on with the rows that lack. One is measured at a time; others wait.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from periplus import clock
from periplus.config import loading
from periplus.errors import ConfigError, PeriplusError, TimedOut
from periplus.job.job_file import JobFile
from periplus.job.run_directory import write_atomically
from periplus.process.telemetry import event
from periplus.values.machine import Device, DeviceFamily, Machine
from periplus.values.profile import GenerationRow, HostFigures, Profile, TrainingRow, model_key
from periplus.values.task import Role
from region_agent.launchers.local import variables_of

log = logging.getLogger(__name__)

KEPT = 16
"""Number of profiles that are kept, the newest. Chosen by hand: each has kilobytes, and travels with the inventory."""
SILENT_S = 900.0
"""Seconds without a result after which a measuring process is ended. Chosen by hand: an engine of a large model takes
minutes to start."""
END_S = 5.0
"""Seconds in which a process that was killed, and what it started, must have ended. Chosen by hand."""
NICENESS = 10
"""By how much the processes that measure give way to others. Chosen by hand."""
ENGINE, TRAINER = "rollout_worker.profile", "trainer.distributed.profile"
"""Modules that measure."""


class Profiler:
    """The profiles of one machine, below `folder`.

    `num_threads` are the compute threads of a process by its role. `python_of` has the interpreter of rollout workers
    by engine. `changed` is called when a profile has grown.
    """

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        num_threads: Mapping[Role, int],
        python_of: Mapping[str, str],
        changed: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._machine = machine
        self._num_threads = num_threads
        self._python_of = python_of
        self._changed = changed
        self._profiles = {(each.model, each.engine): each for each in _kept(folder)}
        self._orders: deque[tuple[JobFile, str]] = deque()
        self._ordered = asyncio.Event()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The newest profiles, oldest first."""
        return tuple(sorted(self._profiles.values(), key=lambda each: each.measured_at_s))[-KEPT:]

    def order(self, job: JobFile, model_config: str) -> None:
        """Measure the work of a job's model as soon as nothing else is measured."""
        self._orders.append((job, model_config))
        self._ordered.set()

    async def run(self) -> None:
        """Measure what is ordered, until cancelled."""
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            while self._orders:
                job, model_config = self._orders.popleft()
                await self._measure(job, model_config)

    async def _measure(self, job: JobFile, model_config: str) -> None:
        key = (model_key(job.model.path, model_config, job.model.lora_rank), job.engine.name)
        known = self._profiles.get(key)
        if known is None or known.is_complete or known.machine != self._machine.name:
            known = self._empty(*key)
        self._put(replace(known, problem=""))
        event(log, logging.INFO, "profile_begun", model=key[0], engine=key[1])
        try:
            with tempfile.TemporaryDirectory(prefix="periplus-profile-") as scratch:
                file = Path(scratch) / "request.json"
                python = self._python_of.get(job.engine.name, sys.executable)
                for role, words, num_known in (
                    (Role.ROLLOUT, (python, "-m", ENGINE), len(known.generation)),
                    (Role.TRAINER, (sys.executable, "-m", TRAINER), len(known.training)),
                ):
                    num_threads = self._num_threads[role]
                    request = {"job_json": job.to_json(), "model_config": model_config, "num_threads": num_threads}
                    file.write_text(json.dumps(request), encoding="utf-8")
                    num_other = self._profiles[key].num_rows if role is Role.TRAINER else 0
                    command = (*words, str(file), "--skip", str(num_known))
                    await self._process(key, command, num_threads, num_other)
        except (OSError, PeriplusError) as error:
            self._put(replace(self._profiles[key], problem=str(error)[:2000]))
            event(log, logging.WARNING, "profile_failed", model=key[0], engine=key[1], why=error)
        else:
            self._put(replace(self._profiles[key], is_complete=True))
            event(log, logging.INFO, "profile_done", model=key[0], engine=key[1])

    async def _process(self, key: tuple[str, str], command: Sequence[str], num_threads: int, num_other: int) -> None:
        """Run one measuring process, and add what it prints; `num_other` rows are those of the process before it.

        Raises: PeriplusError if it could not measure all.
        """
        words = ["nice", "-n", str(NICENESS), *command]
        environment = {**os.environ, **variables_of(num_threads, self._devices())}
        running = await asyncio.create_subprocess_exec(
            *words,
            stdout=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        assert running.stdout is not None
        problem = ""
        try:
            async with asyncio.timeout(None) as limit:
                while True:
                    limit.reschedule(asyncio.get_running_loop().time() + SILENT_S)
                    if not (line := await running.stdout.readline()):
                        break
                    name, value = _result(line)
                    if name == "problem":
                        problem = str(value)
                    else:
                        self._put(_with(self._profiles[key], name, value, num_other))
                code = await running.wait()
        except TimeoutError as error:
            raise TimedOut(f"{command[2]} said nothing for {SILENT_S:.0f} s, and was ended") from error
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(running.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):  # the loop closes the pipe at its end
                async with asyncio.timeout(END_S):
                    await running.stdout.read()
                    await running.wait()
        if code != 0:
            raise PeriplusError(f"{command[2]} ended with exit code {code}: {problem or 'its error is in the log'}")

    def _devices(self) -> tuple[Device, ...]:
        """Return the device that is measured: the first accelerator that works, else none."""
        cards = (d for d in self._machine.devices if d.kind is DeviceFamily.CUDA and not d.problem)
        return tuple(cards)[:1]

    def _empty(self, model: str, engine: str) -> Profile:
        there = self._devices()
        return Profile(
            model=model,
            engine=engine,
            machine=self._machine.name,
            device=there[0].model if there else "",
            measured_at_s=clock.unix_s(),
            versions={},
            num_threads=self._num_threads[Role.ROLLOUT],
        )

    def _put(self, profile: Profile) -> None:
        profile = replace(profile, measured_at_s=clock.unix_s())
        self._profiles[profile.model, profile.engine] = profile
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(
                self._folder / f"{profile.model.replace('/', '-')}-{profile.engine}.json", profile.to_json()
            )
        except (OSError, PeriplusError) as error:
            event(log, logging.WARNING, "profile_not_kept", why=error)
        self._changed()


def _result(line: bytes) -> tuple[str, Any]:
    """Return the key and the value of a line. Raises: ConfigError if it is no result."""
    tree = loading.parse_json(line.decode(errors="replace"), "a measuring process")
    if not isinstance(tree, dict) or len(tree) != 1:
        raise ConfigError(f"a measuring process printed {line[:80]!r}, which is no result; is it of another version?")
    ((name, value),) = tree.items()
    return str(name), value


def _with(profile: Profile, name: str, value: Any, num_other: int) -> Profile:
    """Return the profile with one result of a process; `num_other` rows are those of the process before it.

    Raises: ConfigError for a result that no process of this version prints, or that is out of range.
    """
    match name:
        case "num_rows" if isinstance(value, int):
            return replace(profile, num_rows=num_other + value)
        case "versions" if isinstance(value, dict):
            return replace(profile, versions=profile.versions | value)
        case "generation":
            row = loading.validate(GenerationRow, value, "a row")
            return replace(profile, generation=(*profile.generation, row))
        case "training":
            return replace(profile, training=(*profile.training, loading.validate(TrainingRow, value, "a row")))
    host = loading.validate(HostFigures, loading.tree_of(profile.host) | {name: value}, "a measuring process")
    return replace(profile, host=host)


def _kept(folder: Path) -> list[Profile]:
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            found.append(Profile.from_json(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, PeriplusError) as error:
            event(log, logging.WARNING, "profile_not_read", path=path, why=error)
    return found
