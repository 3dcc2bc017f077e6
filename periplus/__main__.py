"""The `periplus` command: it runs commands of the installed packages, and reports an error as a line and an exit code.

Packages register their commands in the entry-point group `periplus.commands`, so this module names none of them. An
entry point is loaded only when its command, or its line in the help, is needed, so that heavy packages are not imported
by other commands.
"""

import contextlib
import errno
import importlib.metadata
import io
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

import click

from periplus import errors
from periplus.cli.command_groups import CommandGroup
from periplus.process import threads
from periplus.view.terminal.visible import say

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "periplus.commands"
"""Entry-point group in which packages register their commands."""

TRACEBACK_VARIABLE = "PERIPLUS_TRACEBACK"
"""Environment variable that makes a command which fails by a bug show the Python traceback."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of a failed write to standard output."""


class MountedGroup(CommandGroup):
    """A click group whose commands are entry points, which are loaded on demand."""

    def _entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._entry_points())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        point = self._entry_points().get(cmd_name)
        if point is None:
            return None
        command = point.load()
        assert isinstance(command, click.Command)
        return command


@click.command(cls=MountedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="periplus")
def root() -> None:
    """Train language models with reinforcement learning across regions, clouds and continents."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. An error is printed as one message, without a traceback."""
    try:
        code = root.main(args=list(arguments), prog_name="periplus", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        return errors.EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        say("interrupted", err=True)
        return errors.EXIT_INTERRUPTED
    except Exception as error:  # the root of the process: the user gets a sentence and an exit code for any error
        return _failed(error)
    return code if isinstance(code, int) else errors.EXIT_OK


def _failed(error: Exception) -> int:
    """Print why the command failed, and return its exit code."""
    cause = errors.innermost(error)
    # An error without a file's name comes from the output stream, for example on a full disk.
    if isinstance(cause, OSError) and cause.errno in _NO_ROOM and cause.filename is None:
        _drop_output()
        with contextlib.suppress(OSError):
            say(f"error: the output cannot be written: {cause.strerror}; make room there", err=True)
        return errors.MEANING[errors.StorageError].exit_code
    if isinstance(cause, errors.PeriplusError):
        say(f"error: {errors.explained_error(error)}", err=True)
        return errors.meaning(cause).exit_code
    # Everything below is unexpected: a service logs its traceback, and others show it on demand.
    if logging.getLogger().handlers:  # the command is a service, which keeps a log
        log.exception("command_crashed")
    elif os.environ.get(TRACEBACK_VARIABLE):
        raise error
    if isinstance(cause, PermissionError):
        remedy = "run the command as a user who may use it, or change its mode or owner"
        say(f"error: {errors.explained_error(error)}; {remedy}", err=True)
        return errors.MEANING[errors.Denied].exit_code
    hint = (
        ""
        if isinstance(cause, OSError)
        else f"; this is a defect of Periplus: {TRACEBACK_VARIABLE}=1 shows the traceback"
    )
    say(f"error: {errors.explained_error(error)}{hint}", err=True)
    return errors.MEANING[errors.PeriplusError].exit_code


def _drop_output() -> None:
    """Redirect standard output to the null device, so that the interpreter does not fail again when it flushes it."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def never_fail_to_encode(streams: Iterable[TextIO]) -> None:
    """Let streams write a question mark for each character that their encoding lacks, as in the locale C."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the `periplus` command with the process's arguments and exit.

    The exit skips the interpreter's clean-up if a thread with native code still runs (`periplus.process.threads`).
    """
    never_fail_to_encode((sys.stdout, sys.stderr))
    # Warnings of libraries go to the log of a service, and do not mix with a command's output.
    logging.captureWarnings(True)
    # gRPC reads it when it is loaded: by default it notes each handshake that fails, and a stranger may fill a disk.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    code = run(sys.argv[1:])
    if threads.is_any_running():
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
