"""The command `periplus job audit RUN`: it checks a run's guarantees by recomputing them from the run's own records.

It needs no coordinator. It exits with 0 for a clean run, 1 for a run with findings, and 3 if there is no such run. The
report goes to standard output, and the progress of a long audit to standard error.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import click

from coordinator.client.listing import Output, render_tree
from periplus import clock
from periplus.audit.report import report_text, report_tree
from periplus.audit.run_reader import Progress, audit_run
from periplus.cli.progress_line import ProgressLine, write_to_stderr
from periplus.errors import NotFound
from periplus.view.terminal.visible import say

EXIT_NOT_CLEAN = 1
"""Exit code of an audit with findings."""

_KEY = re.compile("[0-9a-fA-F]{64}")
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


def _keys(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(map(_key, values))


def _key(value: str) -> bytes:
    try:
        text = value if _KEY.fullmatch(value) else Path(value).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise click.BadParameter(
            f"{value[:80]!r} is neither a key of 64 hexadecimal digits nor a file: {why}"
        ) from error
    if not _KEY.fullmatch(text):
        raise click.BadParameter(f"{value[:80]!r} does not hold a public key of 64 hexadecimal digits")
    return bytes.fromhex(text)


@click.command("audit")
@click.argument("run", metavar="RUN", type=_DIRECTORY)
@click.option(
    "--spool",
    "spools",
    multiple=True,
    type=_DIRECTORY,
    metavar="DIR",
    help="A gateway's spool to compare with; may be given several times.",
)
@click.option(
    "--authority",
    "authorities",
    multiple=True,
    metavar="KEY",
    callback=_keys,
    help="Public key of the coordinator that certified the run's trainers: 64 hexadecimal digits, or a file "
    "that holds them; `periplus coordinator authority` prints it. May be given several times.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice([Output.TABLE.value, Output.JSON.value, Output.YAML.value]),
    default=Output.TABLE.value,
    show_default=True,
)
def audit_command(run: Path, spools: tuple[Path, ...], authorities: tuple[bytes, ...], output: str) -> None:
    """Recompute from the files in the run directory RUN what was trained on, and check the run's guarantees.

    No token may be older than the staleness bound, and no sample may be trained on twice or lost. Nothing needs to run.
    """
    if not run.is_dir():
        raise NotFound(f"{run} does not exist; give the directory of a run, such as runs/JOB-ID")
    line = ProgressLine.of_files(write_to_stderr, can_redraw=sys.stderr.isatty(), began_s=clock.monotonic_s())
    report = audit_run(run, spools, progress_on(line, clock.monotonic_s), authorities)
    # The progress line must be gone before the report, which may go to the same terminal.
    line.clear()
    form = Output(output)
    if form is Output.TABLE:
        say(report_text(report))
    else:
        click.echo(render_tree(report_tree(report), form))
    if not report.is_clean:
        raise click.exceptions.Exit(EXIT_NOT_CLEAN)


def progress_on(line: ProgressLine, now_s: Callable[[], float]) -> Progress:
    """Return a function that shows an audit's progress on a line."""

    def show(what: str, done: int, total: int) -> None:
        time_s = now_s()
        if line.is_due(time_s):
            line.show(f"auditing {what}: {done * 100 // max(total, 1)} %", time_s)

    return show
