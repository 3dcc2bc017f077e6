"""`periplus weights`: deltas between checkpoint directories, as files. docs/weights.md is for those who use it.

Results go to standard output, everything else to standard error. The exit code is 1 for a directory that does not hold
the result of a delta, for a damaged file and for a delta of another base, and 7 if the output exists already.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from periplus.cli.command_groups import CommandGroup
from periplus.config import finite_json, yaml_text
from periplus.view.state import printable
from periplus.weights.output import terminable
from periplus.weights.progress import stderr_progress

EXIT_MISMATCH = 1
"""Exit code of `verify` if the directory does not hold the result of the delta."""

_FILE = click.Path(path_type=Path)
_DIRECTORY = click.Path(path_type=Path)
_force = click.option("--force", is_flag=True, help="Replace an existing file or checkpoint of that name.")
_floors = click.option(
    "--floors/--no-floors",
    "with_floors",
    default=True,
    show_default=True,
    help="Compute the entropy floors that `inspect` shows: another pass over both checkpoints.",
)
_form = click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)


@click.group(cls=CommandGroup)
def weights() -> None:
    """Deltas between checkpoint directories, as files.

    A delta holds, losslessly, what differs between the weights in two Hugging Face checkpoint directories
    (model.safetensors, or shards with their index), and turns the one into the other.
    """


@weights.command("diff")
@click.argument("old", type=_DIRECTORY)
@click.argument("new", type=_DIRECTORY)
@click.option("-o", "--output", required=True, type=_FILE, metavar="FILE", help="The delta's file.")
@_force
@_floors
def diff_command(old: Path, new: Path, output: Path, force: bool, with_floors: bool) -> None:
    """Write the delta that turns the weights in OLD into those in NEW."""
    from periplus.weights import operations, report

    with terminable(), stderr_progress() as progress:
        delta = operations.diff(old, new, output, force=force, with_floors=with_floors, progress=progress)
    click.echo(report.summary(delta), err=True)


@weights.command("apply")
@click.argument("old", type=_DIRECTORY)
@click.argument("file", type=_FILE)
@click.option("-o", "--output", required=True, type=_DIRECTORY, metavar="NEW", help="The new checkpoint's directory.")
@_force
def apply_command(old: Path, file: Path, output: Path, force: bool) -> None:
    """Write OLD with the delta in FILE applied: OLD's other files are copied, its sharding is kept."""
    from periplus.weights import operations

    with terminable(), stderr_progress() as progress:
        applied = operations.apply(old, file, output, force=force, progress=progress)
    if applied.left_out:
        names = ", ".join(printable(str(path)) for path in applied.left_out)
        click.echo(f"not copied, since they hold other weights of {old}: {names}", err=True)
    click.echo(f"{output}: state digest {applied.delta.head.result_digest.hex()}, as promised", err=True)


@weights.command("fold")
@click.argument("base", type=_DIRECTORY)
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="A B [C]...")
@click.option("-o", "--output", required=True, type=_FILE, metavar="FILE", help="The delta's file.")
@_force
@_floors
def fold_command(base: Path, files: tuple[Path, ...], output: Path, force: bool, with_floors: bool) -> None:
    """Write one delta that turns BASE into what the deltas A, B, C lead to, given in their order."""
    from periplus.weights import operations, report

    with terminable(), stderr_progress() as progress:
        delta = operations.fold(base, files, output, force=force, with_floors=with_floors, progress=progress)
    click.echo(report.summary(delta), err=True)


@weights.command("inspect")
@click.argument("file", type=_FILE)
@_form
def inspect_command(file: Path, form: str) -> None:
    """Check the delta in FILE, and show what it holds and how its size compares with the entropy floors."""
    from periplus.weights import reading, report

    with stderr_progress() as progress:
        tree = report.delta_tree(reading.inspect(file, progress))
    _print(tree, form, report.delta_text)


@weights.command("verify")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.argument("file", type=_FILE)
@_form
def verify_command(directory: Path, file: Path, form: str) -> None:
    """Check whether the weights in DIR are exactly those that the delta in FILE leads to; exit code 1 if not."""
    from periplus.weights import reading, report

    with stderr_progress() as progress:
        verdict = reading.verify(directory, file, progress)
    _print(report.verdict_tree(verdict, str(directory)), form, report.verdict_text)
    if not verdict.is_result:
        raise click.exceptions.Exit(EXIT_MISMATCH)


def _print(tree: dict[str, Any], form: str, text: Callable[[dict[str, Any]], str]) -> None:
    match form:
        case "json":
            click.echo(finite_json.dumps(tree, indent=2))
        case "yaml":
            click.echo(yaml_text.dump(tree).rstrip("\n"))
        case _:
            click.echo(text(tree))
