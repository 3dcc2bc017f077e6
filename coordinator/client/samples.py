"""The command `periplus job samples JOB`: it shows samples that a run was trained on, from the run's own directory.

It reads files only, so it works while the run goes on and with everything stopped. A coordinator is asked only for the
directory of a job that is not found under `--runs-dir`.

Start-up decides how long a page takes, so this module imports nothing that the usual call does not need; what draws
pages and what talks to a coordinator is imported where it is used.
"""

import asyncio
from pathlib import Path

import click

from periplus.config import finite_json
from periplus.errors import Conflict, NotFound, PeriplusError
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.gallery import gallery_of, gallery_tree
from periplus.job.samples.selection import SampleOrder, SampleQuery
from periplus.view.terminal.visible import say

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command("samples")
@click.argument("job", metavar="JOB")
@click.option("--step", type=click.IntRange(min=0), help="Samples of this step.  [default: the newest]")
@click.option("--worst", is_flag=True, help="Order by reward, the lowest first; of all steps without --step.")
@click.option("--best", is_flag=True, help="Order by reward, the highest first; of all steps without --step.")
@click.option("--region", default="", metavar="REGION", help="Only samples of workers in this region.")
@click.option("--group", type=click.IntRange(min=0), help="Only samples of this group; of all steps without --step.")
@click.option("--set", "evaluation", default="", metavar="NAME", help="Samples of an evaluation set, or held-out.")
@click.option("--page", type=click.IntRange(min=1), default=1, show_default=True, help="Which page to show.")
@click.option("--size", type=click.IntRange(1, 1000), default=8, show_default=True, help="Samples a page.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "html"]),
    default="table",
    show_default=True,
    help="Form of the result; html is one page to open in a browser.",
)
@click.option(
    "--runs-dir",
    type=_DIRECTORY,
    default=Path("runs"),
    show_default=True,
    help="Directory of this machine's runs.",
)
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    envvar="PERIPLUS_COORDINATOR",
    show_envvar=True,
    default="127.0.0.1:7070",
    show_default=True,
    help="Whom to ask for the directory of a job that is not in --runs-dir.",
)
def samples_command(
    job: str,
    step: int | None,
    worst: bool,
    best: bool,
    region: str,
    group: int | None,
    evaluation: str,
    page: int,
    size: int,
    output: str,
    runs_dir: Path,
    coordinator: str,
) -> None:
    """Show samples that a run was trained on, or evaluated with: prompt, completion, reward, policies, staleness.

    JOB is a job's id or its beginning, or a run directory. Nothing needs to run.
    """
    if worst and best:
        raise click.UsageError("give --worst or --best, not both")
    order = SampleOrder.WORST if worst else SampleOrder.BEST if best else SampleOrder.STEP
    query = SampleQuery(step=step, order=order, group=group, region=region, evaluation=evaluation, page=page, size=size)
    gallery = gallery_of(run_directory(job, runs_dir, coordinator), query)
    match output:
        case "json":
            click.echo(finite_json.dumps(gallery_tree(gallery)))
        case "html":
            from periplus.view.page.samples_section import samples_page

            click.echo(samples_page(gallery), nl=False)
        case _:
            from periplus.view.terminal.samples_text import samples_text

            say(samples_text(gallery))


def run_directory(job: str, runs_dir: Path, coordinator: str) -> RunDirectory:
    """Return the run directory that a user means by a path, a job's id or the beginning of an id.

    Raises: NotFound if there is none on this machine, Conflict if several begin so.
    """
    if Path(job).is_dir():
        return RunDirectory(Path(job))
    if "/" not in job and runs_dir.is_dir():
        found = sorted(path for path in runs_dir.iterdir() if path.name.startswith(job) and path.is_dir())
        exact = [path for path in found if path.name == job]
        if len(exact or found) == 1:
            return RunDirectory((exact or found)[0])
        if found:
            raise Conflict(f"{job!r} could be any of {', '.join(path.name for path in found)}; give more of its id")
    where = _asked(job, coordinator)
    if where is None or not where.is_dir():
        raise NotFound(
            f"no run {job!r} on this machine: it is no directory, and {runs_dir} has none of that name"
            + (f"; its trainer's is {where}, run this command there" if where else "")
        )
    return RunDirectory(where)


def _asked(job: str, coordinator: str) -> Path | None:
    """Return the run directory that a coordinator names for a job, or None if it does not answer or know the job."""
    # It loads gRPC, and is needed for a job that runs elsewhere only.
    from coordinator.client.connection import connect
    from coordinator.members.access import access_of

    async def ask() -> str:
        async with connect(coordinator, access_of(coordinator)) as remote:
            return str((await remote.job(job)).files.run_dir)

    try:
        return Path(found) if (found := asyncio.run(ask())) else None
    except PeriplusError:
        return None
