"""`periplus job report RUN`: writes the page about a run from its directory. Asks no coordinator."""

from pathlib import Path

import click

from periplus.job.run_directory import RunDirectory
from periplus.view.page.write_report import write_report


@click.command("report")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
def report_command(run: Path) -> None:
    """Write report.html anew into the run directory RUN, and print its path.

    The agent writes it whenever a trainer ends. This is for a run whose agent died too, or that still goes on.
    """
    click.echo(write_report(RunDirectory(run.resolve())))
