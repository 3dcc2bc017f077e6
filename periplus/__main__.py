"""The `periplus` command: mounts what the installed packages export, and turns every error into one line and a code.

Commands come from the entry-point group `periplus.commands`; the kernel names none of them. Nothing heavy is imported
before a command runs: each entry point is loaded when it is called for.
"""

import importlib.metadata
import logging
import sys
from collections.abc import Sequence

import click

from periplus import errors

ENTRY_POINT_GROUP = "periplus.commands"


class MountedGroup(click.Group):
    """A click group whose commands are entry points, loaded on demand."""

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
    """Run one command line and return its exit code. One message for an error, never a traceback."""
    try:
        code = root.main(args=list(arguments), prog_name="periplus", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        return errors.EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return errors.EXIT_INTERRUPTED
    except errors.PeriplusError as error:
        click.echo(f"error: {error}", err=True)
        return errors.meaning(error).exit_code
    return code if isinstance(code, int) else errors.EXIT_OK


def main() -> None:
    """Entry point of the script."""
    logging.captureWarnings(True)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
