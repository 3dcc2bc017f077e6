"""The command `periplus job report RUN`: it writes a run's report page from its directory, without a coordinator."""

from pathlib import Path

import click

from periplus.job.run_directory import RunDirectory
from periplus.view.page.write_report import write_report
from periplus.view.terminal.visible import say


@click.command("report")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
def report_command(run: Path) -> None:
    """Write report.html into the run directory RUN, replacing an older one, and print its path.

    The agent writes it whenever a trainer ends. Use this command if the agent died too, or while the run goes on.
    """
    say(str(write_report(RunDirectory(run.resolve()))))
