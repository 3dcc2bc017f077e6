"""Types of command-line options that several packages share; they refuse invalid values before a command starts."""

import os
import sys
import tempfile
from pathlib import Path

import click

MAX_PORT = 65535
"""Largest TCP port."""


class HostPort(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no generic one
    """An address as HOST:PORT, or one of some words.

    An empty text is allowed if it is the option's default, and then means no address. Port 0, which lets the system
    choose where a service listens, is refused for an address `to_dial`.
    """

    name = "HOST:PORT"

    def __init__(self, *words: str, to_dial: bool = False) -> None:
        self._words, self._to_dial = words, to_dial

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        host, _, port = value.rpartition(":")
        is_default = value in self._words or (param is not None and value == param.default)
        if not is_default and (not host or " " in host or not port.isdecimal() or int(port) > MAX_PORT):
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:7070 or [::1]:7070", param, ctx)
        if self._to_dial and not is_default and int(port) == 0:
            self.fail(f"{value!r}: nothing can be reached at port 0; give the port where it listens", param, ctx)
        return value


HOST_PORT = HostPort()
"""For options that say where a service listens."""

DIALLED = HostPort(to_dial=True)
"""For options that say where another process is reached."""


class DirectoryToWrite(click.Path):
    """A directory in which files can be created; it is made if it does not exist."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        folder = Path(os.fsdecode(super().convert(value, param, ctx)))
        if ctx is not None and ctx.resilient_parsing:  # the shell only asks for completions
            return folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            self.fail(f"{folder} cannot be written: {error.strerror}; give another directory", param, ctx)
        return folder


def given_token(argument: str) -> str:
    """Return a token that was given as an argument, or that standard input has if the argument is "-"."""
    return sys.stdin.readline() if argument == "-" else argument
