"""Types of options that several packages' commands have: they refuse what cannot work before anything starts."""

import os
import tempfile
from pathlib import Path

import click

MAX_PORT = 65535


class HostPort(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no generic one
    """An address as HOST:PORT. Empty is allowed where it is the option's default: it then stands for no address."""

    name = "HOST:PORT"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        host, _, port = value.rpartition(":")
        is_default = param is not None and value == param.default
        if not is_default and (not host or " " in host or not port.isdecimal() or int(port) > MAX_PORT):
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:7070 or [::1]:7070", param, ctx)
        return value


HOST_PORT = HostPort()


class DirectoryToWrite(click.Path):
    """A directory in which files can be made; it is made if it is not there."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        folder = Path(os.fsdecode(super().convert(value, param, ctx)))
        if ctx is not None and ctx.resilient_parsing:  # a shell completes; nothing is to be made yet
            return folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            self.fail(f"{folder} cannot be written: {error.strerror}; give another directory", param, ctx)
        return folder
