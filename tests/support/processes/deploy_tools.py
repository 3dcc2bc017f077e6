"""Real tools over the artefacts of `deploy/`, and the project's own parser over the commands that they hold."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import pytest

from periplus.__main__ import root

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"

TIMEOUT_S = 60
"""Seconds after which a tool counts as hanging; each takes about one."""


def tool(name: str) -> str:
    """Return the path of a program of this environment or of the machine. Skips the test where there is none."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed here (deploy/README.md says where it comes from)")
    return found


def output_of(words: Sequence[str | Path], folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """Return what a program prints to standard output. Fails the test, with all that it printed, if it fails."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_command(words: Sequence[str]) -> Mapping[str, object]:
    """Return the options of a `periplus` command line. Raises: click.UsageError if the command would refuse them.

    Paths are not converted, because that makes directories.
    """
    command: click.Command = root
    context = click.Context(root, info_name="periplus")
    rest = list(words)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, words
        command, context = found, click.Context(found, info_name=name, parent=context)
    values, left, _ = command.make_parser(context).parse_args(rest)
    if left:
        raise click.UsageError(f"unexpected arguments: {left}")
    for option in command.params:
        given = values.get(option.name or "")
        if given is not None and not isinstance(option.type, click.Path):
            option.type_cast_value(context, given)
    return values
