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
from periplus.audit.read import Progress, audit_run
from periplus.audit.report import report_text, report_tree
from periplus.errors import NotFound

EXIT_NOT_CLEAN = 1
QUIET_S = 1.0
"""Seconds before any progress is shown; chosen by hand, because most audits take less."""

REDRAW_S = 0.1
"""Least seconds between two updates of the progress line on a terminal; chosen by hand."""

LINE_S = 10.0
"""Least seconds between two lines of progress where a line cannot be redrawn, as in a log file; chosen by hand."""

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
    progress = progress_of(sys.stderr.isatty(), sys.stderr.write, sys.stderr.flush, clock.monotonic_s)
    report = audit_run(run, spools, progress, authorities)
    progress("", 0, 0)
    form = Output(output)
    click.echo(report_text(report) if form is Output.TABLE else render_tree(report_tree(report), form))
    if not report.is_clean:
        raise click.exceptions.Exit(EXIT_NOT_CLEAN)


def progress_of(
    can_redraw: bool, write: Callable[[str], object], flush: Callable[[], None], now_s: Callable[[], float]
) -> Progress:
    """Return a function that shows an audit's progress, first after QUIET_S seconds.

    On a terminal it redraws one line, which it clears when it is called with an empty text at the end. Elsewhere it
    writes a line at most every LINE_S seconds.
    """
    started_s = shown_s = now_s()
    width = 0

    def show(what: str, done: int, total: int) -> None:
        nonlocal shown_s, width
        if not what:
            if width:
                write(f"\r{' ' * width}\r")
            return
        time_s = now_s()
        if time_s - started_s < QUIET_S or time_s - shown_s < (REDRAW_S if can_redraw else LINE_S):
            return
        shown_s = time_s
        text = f"auditing {what}: {done * 100 // max(total, 1)} %"
        write(f"\r{text.ljust(width)}" if can_redraw else f"{text}\n")
        flush()
        width = max(width, len(text)) if can_redraw else 0

    return show
