"""The commands `periplus job`, `periplus region` and `periplus links`, which ask a coordinator.

Results go to standard output and everything else to standard error. The exit code of a command that waits for a job
follows the job: 0 when it succeeded, 4 when no placement satisfies it, 1 otherwise.
"""

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console

from coordinator.client import listing, runs
from coordinator.client.address import coordinator_address, coordinator_option
from coordinator.client.audit import audit_command
from coordinator.client.code_agreement import agree_to_code, show_code
from coordinator.client.connection import Coordinator, connect, job_state, raise_outcome, view_event
from coordinator.client.fleet_file import fleet_tree
from coordinator.client.listing import Output, Tree
from coordinator.client.planned import frontier_words, plan_words, run_words, until_planned
from coordinator.client.preflight import check_job
from coordinator.client.report import report_command
from coordinator.client.resuming import job_to_submit
from coordinator.client.reward_trial import try_rewards
from coordinator.client.samples import samples_command
from coordinator.client.submission import plan_by_hand, submission
from coordinator.members.access import access_of
from coordinator.state import ENDED_STATES
from periplus import clock
from periplus.cli.command_groups import CommandGroup
from periplus.config import finite_json, yaml_text
from periplus.errors import Conflict, NotFound, Unreachable
from periplus.job.job_file import JobFile, job_schema
from periplus.pb.v1 import control_pb2
from periplus.view.state import Event, FleetSeen, JobChanged, RecordSeen, ViewState
from periplus.view.terminal.listing import output_option
from periplus.view.terminal.visible import say
from periplus.view.terminal.watch import watch as show

T = TypeVar("T")

LOG_POLL_S = 0.5
"""Seconds between two looks for new log lines; chosen by hand. Each look reads only what is new."""

_FILE = click.Path(path_type=Path, dir_okay=False)
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.group(cls=CommandGroup)
def job() -> None:
    """Submit jobs, watch them and check their results."""


job.add_command(audit_command)
job.add_command(report_command)
job.add_command(samples_command)


@job.command()
@click.argument("file", type=_FILE, required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--dry-run", is_flag=True, help="Check the job and print it as it would run; ask no coordinator.")
@click.option("--wait", is_flag=True, help="Wait until the job has ended; the exit code tells how.")
@click.option("--watch", is_flag=True, help="Show the job until it has ended; this implies --wait.")
@click.option(
    "--resume",
    type=_DIRECTORY,
    metavar="RUN",
    help="Resume from the newest checkpoint in this run directory, with the run's own job; FILE is not needed.",
)
@click.option("--change", is_flag=True, help="With --resume: let FILE and KEY=VALUE change the run's job.")
@click.option("--plan", type=_FILE, help="Run the processes of this plan (periplus.plan/1) in place of a search.")
@click.option("--objective", type=click.Choice(["time", "cost"]), help="What the plan minimises: plan.objective.")
@click.option("--max-usd-per-hour", type=float, metavar="N", help="Most dollars an hour: plan.max_usd_per_hour.")
@click.option("--allow-code", is_flag=True, help="Agree to send the job's own code (reward.code) without being asked.")
@output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
@coordinator_option
def submit(
    file: Path | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    watch: bool,
    resume: Path | None,
    change: bool,
    plan: Path | None,
    objective: str | None,
    max_usd_per_hour: float | None,
    allow_code: bool,
    output: str,
    coordinator: str | None,
) -> None:
    """Submit the job in FILE, with keys such as optimizer.lr overridden by KEY=VALUE, and print its id.

    Its plan is shown too, with its dollars and what would be faster or cheaper; -o name prints the id at once.
    """
    # Later overrides win: the named options override KEY=VALUE, and both override the file.
    flags = {"plan.objective": objective, "plan.max_usd_per_hour": max_usd_per_hour}
    changes = [f"{key}={value}" for key, value in flags.items() if value is not None]
    if plan is not None and changes:
        raise click.UsageError("--plan says where the job runs; --objective and --max-usd-per-hour are for a search")
    by_hand = None if plan is None else plan_by_hand(plan)
    job_file, checkpoint = job_to_submit(file, [*overrides, *changes], resume, may_change=change)
    show_code(job_file)
    if not dry_run:
        agree_to_code(job_file, is_agreed=allow_code)
    # Mistakes in the job are found here, before it waits for regions.
    checked = check_job(job_file)
    tried = try_rewards(job_file)
    for sentence in (*checked.left, *((*checked.shown, *tried) if dry_run else ())):
        _say(sentence)
    form = Output(output)
    # The id makes a repeated request harmless: the coordinator answers it with the same job.
    request = submission(job_file, uuid.uuid4().hex, checkpoint, by_hand)
    if dry_run:
        tree = json.loads(request.job_json)
        click.echo(listing.render_tree(tree, Output.JSON if form is Output.JSON else Output.YAML))
        return

    async def call(remote: Coordinator) -> tuple[control_pb2.Job, control_pb2.Fleet] | None:
        submitted = await remote.submit(request)
        job_id = submitted.job_id
        _say(f"submitted {job_id}; `periplus job watch {job_id}` follows it, `periplus job show {job_id}` shows where")
        if job_file.checkpoint.replicate == "none":
            _say("checkpoints stay in the trainer's region (checkpoint.replicate: none): the job is lost if it is lost")
        if not (wait or watch) and form is Output.NAME:
            _print_job(submitted, form)
            return None
        if not (wait or watch):
            planned = await until_planned(remote, submitted)
            _say_plan(planned)
            if not planned.plan_json and planned.reason and not _has_ended(planned):
                _say(f"{job_state(planned)}: {planned.reason}")
            _print_job(planned, form)
            if _has_ended(planned):
                raise_outcome(planned)
            return planned, await remote.fleet()
        # With -o json or yaml, standard output holds only the final tree, so the live view goes to standard error.
        if watch:
            await _show(remote, submitted, Console(stderr=form is not Output.TABLE))
        else:
            await _until_ended(remote, job_id)
        # A watch ends on an event; the files and the reason are read from the job as it is after its end.
        ended = await remote.job(job_id)
        if watch:
            _say_plan(ended)
        if ended.notice and not watch:  # a watch has shown it
            _say(f"NOTICE: {ended.notice}")
        _print_job(ended, form)
        await _say_what_is_left(remote, ended)
        raise_outcome(ended)
        return None

    # After the connection is closed: the searches take seconds, and nobody needs them to go on.
    if planned := _ask(coordinator, call):
        _say_more(*planned, is_new=not request.resume_from)


@job.command("list")
@output_option()
@coordinator_option
def list_jobs(output: str, coordinator: str | None) -> None:
    """List all jobs, the newest last."""
    jobs = _ask(coordinator, lambda remote: remote.jobs())
    _print_listing(listing.JOBS, [listing.job_tree(job) for job in jobs], output)


@job.command("show")
@click.argument("job_id", metavar="JOB")
@output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
@coordinator_option
def show_job(job_id: str, output: str, coordinator: str | None) -> None:
    """Show one job: its state, reason and processes, and with -o json or yaml also its job file and plan.

    JOB may be the beginning of an id.
    """

    async def call(remote: Coordinator) -> None:
        found = await remote.job(job_id)
        if output == Output.TABLE:
            say(listing.describe_job(found, clock.unix_s(), is_gone=await _is_gone(remote, found)))
        else:
            _print_job(found, Output(output))

    _ask(coordinator, call)


@job.command("watch")
@click.argument("job_id", metavar="JOB")
@output_option(Output.TABLE, Output.JSON)
@coordinator_option
def watch_job(job_id: str, output: str, coordinator: str | None) -> None:
    """Show a job until it has ended: live on a terminal, as lines elsewhere, or as one JSON object for each event."""

    async def call(remote: Coordinator) -> None:
        found = await remote.job(job_id)
        if output == Output.TABLE:
            await _show(remote, found, Console())
        else:
            async for event in _events(remote, found.job_id):
                click.echo(finite_json.dumps(_event_tree(event)))
        ended = await remote.job(found.job_id)
        await _say_what_is_left(remote, ended)
        raise_outcome(ended)

    _ask(coordinator, call)


@job.command()
@click.argument("job_id", metavar="JOB")
@output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
@coordinator_option
def cancel(job_id: str, output: str, coordinator: str | None) -> None:
    """Cancel a job. Its trainer writes a checkpoint and ends; then its rollout workers end."""
    cancelled = _ask(coordinator, lambda remote: remote.cancel(job_id))
    _say(cancelled.reason)
    _print_job(cancelled, Output(output))


@job.command()
@click.argument("job_id", metavar="JOB")
@click.option("--task", default="", metavar="TASK", help="Only this task, such as trainer or rollout-REGION-0.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the job has ended.")
@click.option("--all-forks", is_flag=True, help="Also print what was logged before the job was resumed.")
@click.option("--runs-dir", type=_DIRECTORY, help="Directory of the runs on this machine  [default: the job's]")
@coordinator_option
def logs(job_id: str, task: str, follow: bool, all_forks: bool, runs_dir: Path | None, coordinator: str | None) -> None:
    """Print the logs of a job's processes that ran on this machine."""

    async def call(remote: Coordinator) -> None:
        found = await remote.job(job_id)
        folders = _log_folders(found, runs_dir)
        if not any(folder.is_dir() for folder in folders):
            raise NotFound(await _elsewhere(remote, found, folders[-1]))
        # Where the newest fork begins is found over the logs of all tasks, even if only one is shown.
        tail = runs.RunTail({} if all_forks else runs.newest_fork_starts(runs.log_files(folders, found.job_id, "")))
        while True:
            # The state is read before the lines, so that lines written up to the job's end are still printed.
            found = await remote.job(found.job_id) if follow else found
            files = runs.log_files(folders, found.job_id, task)
            for file, line in tail.new_lines(files):
                say(line if task else f"{file.stem}: {line}")
            if not follow or _has_ended(found):
                return
            await asyncio.sleep(LOG_POLL_S)

    _ask(coordinator, call)


@job.command()
def schema() -> None:
    """Print the JSON schema of job files, for editors."""
    click.echo(json.dumps(job_schema(), indent=2))


@click.group(cls=CommandGroup)
def region() -> None:
    """Show the regions that have joined, and close, empty or forget them."""


@region.command("list")
@output_option()
@coordinator_option
def list_regions(output: str, coordinator: str | None) -> None:
    """List all regions."""
    fleet = _ask(coordinator, lambda remote: remote.fleet())
    _print_listing(listing.REGIONS, [listing.region_tree(region) for region in fleet.regions], output)


@region.command("show")
@click.argument("name", metavar="REGION")
@output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
@coordinator_option
def show_region(name: str, output: str, coordinator: str | None) -> None:
    """Show one region and the tasks that run there. REGION may be the beginning of a name."""
    fleet = _ask(coordinator, lambda remote: remote.fleet())
    tree = listing.region_tree(_find_region(list(fleet.regions), name))
    match Output(output):
        case Output.TABLE:
            say(listing.render(listing.REGIONS, [tree], Output.WIDE, clock.unix_s()))
            if fabric := listing.describe_fabric(tree):
                say(fabric)
            say()
            if len(tree["machines"]) > 1 or not tree["machines"][0]["has_launcher"]:
                _print_listing(listing.MACHINES, tree["machines"], output)
                say()
            _print_listing(listing.TASKS, tree["tasks"], output)
            if tree["profiles"]:
                say()
                _print_listing(listing.PROFILES, tree["profiles"], output)
        case Output.NAME:
            say(tree["name"])
        case form:
            click.echo(listing.render_tree({"schema": "periplus.region-status/1", **tree}, form))


@region.command("export")
@coordinator_option
def export_regions(coordinator: str | None) -> None:
    """Print the regions' accelerators and the measured links as a fleet file, for `periplus plan --fleet`.

    The file lists only the hosts on which agents run, with the rents that they declare. Add other machines by hand.
    """
    fleet = _ask(coordinator, lambda remote: remote.fleet())
    if not fleet.regions:
        raise NotFound(f"no region to export: {listing.REGIONS.empty}")
    tree, left_out = fleet_tree(fleet, clock.unix_s())
    click.echo(yaml_text.dump(tree).rstrip("\n"))
    for sentence in left_out:
        _say(f"left out: {sentence}")


def _region_order(name: str, words: str) -> None:
    @region.command(name, help=words)
    @click.argument("region_name", metavar="REGION")
    @coordinator_option
    def command(region_name: str, coordinator: str | None) -> None:
        _ask(coordinator, lambda remote: remote.order_region(region_name, name))
        _say(f"{region_name}: {name} done; `periplus region list` shows it")


_region_order("cordon", "Place nothing new in REGION. What runs there goes on.")
_region_order("drain", "Place nothing new in REGION, and end its rollout workers. Trainers stay until their jobs end.")
_region_order("uncordon", "Open REGION to jobs again, and start the workers that were drained.")
_region_order("remove", "Forget REGION, where no job has tasks. Its session ends, and its certificates are refused.")


@click.command()
@output_option()
@coordinator_option
def links(output: str, coordinator: str | None) -> None:
    """List the links between regions, with their measurements and the bytes that they carried."""
    fleet = _ask(coordinator, lambda remote: remote.fleet())
    _print_listing(listing.LINKS, [listing.link_tree(link) for link in fleet.links], output)


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with later events, until interrupted.")
@click.option("--job", "job_id", default="", metavar="JOB", help="Of this job alone, by its whole id.")
@click.option("--region", "name", default="", metavar="REGION", help="Of this region alone.")
@output_option(Output.TABLE, Output.JSON)
@coordinator_option
def events(follow: bool, job_id: str, name: str, output: str, coordinator: str | None) -> None:
    """List what happened in the fleet, the oldest first: jobs, regions, links, restarts, and who asked for what.

    The coordinator keeps events for 30 days in its --state-dir.
    """

    async def call(remote: Coordinator) -> None:
        async for event in remote.events(job_id, name, follow=follow):
            if output == Output.JSON:
                click.echo(finite_json.dumps(listing.fleet_event_tree(event)))
            else:
                say(listing.describe_fleet_event(event))

    _ask(coordinator, call)


# ---- calls -----------------------------------------------------------------------------------------------------------


def _ask(given: str | None, call: Callable[[Coordinator], Awaitable[T]]) -> T:
    address = coordinator_address(given)

    async def connected() -> T:
        async with connect(address, access_of(address)) as remote:
            return await call(remote)

    return asyncio.run(connected())


async def _show(remote: Coordinator, found: control_pb2.Job, console: Console) -> None:
    job_file = JobFile.from_json(found.job_json)
    start = ViewState(steps_total=job_file.steps, staleness_bound=job_file.staleness)
    await show(_view_events(remote, found.job_id), console, live=True, start=start)


async def _view_events(remote: Coordinator, job_id: str) -> AsyncIterator[Event]:
    async for event in _events(remote, job_id):
        seen = view_event(event)
        if seen is not None:
            yield seen


async def _until_ended(remote: Coordinator, job_id: str) -> None:
    """Wait for the job's end; say its plan, and each new reason but that of the end, which the command's error says."""
    said = planned = ""
    async for event in _events(remote, job_id):
        if event.HasField("job") and event.job.plan_json != planned:
            planned = event.job.plan_json
            _say_plan(event.job)
        if not event.HasField("job") or not event.job.reason or _has_ended(event.job):
            continue
        line = f"{job_state(event.job)}: {event.job.reason}"
        if line != said:
            _say(line)
        said = line


async def _events(remote: Coordinator, job_id: str) -> AsyncIterator[control_pb2.JobEvent]:
    try:
        async for event in remote.watch(job_id):
            yield event
    except Unreachable as error:
        raise Unreachable(f"the job goes on, `periplus job watch {job_id}` shows it again, but {error}") from error
    except asyncio.CancelledError:
        _say(f"the job goes on; `periplus job watch {job_id}` shows it again, `periplus job cancel {job_id}` ends it")
        raise


def _log_folders(found: control_pb2.Job, runs_dir: Path | None) -> tuple[Path, ...]:
    """Return the folders that may hold logs of the job, resolved and each once.

    The trainer's logs are in its run directory; those of other tasks are under the job's output directory.
    """
    root = runs_dir or Path(JobFile.from_json(found.job_json).output.dir)
    at_the_trainer = [Path(found.files.run_dir)] if found.files.run_dir and runs_dir is None else []
    return tuple(dict.fromkeys((run / "logs").resolve() for run in (*at_the_trainer, root / found.job_id)))


async def _is_gone(remote: Coordinator, found: control_pb2.Job) -> bool:
    """Return whether the run directory must be on this machine, where its trainer ran, and is not."""
    run_dir = Path(found.files.run_dir)
    if not run_dir.is_absolute() or await asyncio.to_thread(run_dir.exists):
        return False
    trained = {each["region"] for each in _assignments(found) if each["task"] == "trainer"}
    fleet = await remote.fleet()
    return any(r.name in trained and r.inventory.machines[0].name == socket.gethostname() for r in fleet.regions)


def _assignments(found: control_pb2.Job) -> list[dict[str, str]]:
    assignments: list[dict[str, str]] = json.loads(found.plan_json)["assignments"] if found.plan_json else []
    return assignments


async def _elsewhere(remote: Coordinator, found: control_pb2.Job, folder: Path) -> str:
    if await _is_gone(remote, found):
        return f"the logs of {found.job_id} are gone: {found.files.run_dir} was removed from this machine"
    # Log files stay on the hosts of the job's agents, so that the answer names these hosts.
    placed = {each["region"] for each in _assignments(found)}
    fleet = await remote.fleet()
    hosts = [
        f"{region.name} on {region.inventory.machines[0].name}" for region in fleet.regions if region.name in placed
    ]
    if not hosts and found.files.run_dir:
        return (
            f"{folder} is not on this machine, and no agent of the job's regions is known; run this command on the "
            f"host that has {found.files.run_dir}, or name a copy with --runs-dir"
        )
    if not hosts:
        return f"job {found.job_id} has no logs yet: it is {job_state(found)}, and no process of it has run"
    return (
        f"{folder} is not on this machine; the logs of {found.job_id} are on the hosts of its agents: "
        f"{', '.join(hosts)}; run this command there, or name their directory with --runs-dir"
    )


def _find_region(regions: list[control_pb2.Region], name: str) -> control_pb2.Region:
    matches = [region for region in regions if region.name == name]
    matches = matches or [region for region in regions if name and region.name.startswith(name)]
    if not matches:
        raise NotFound(f"no region {name!r}; joined: {', '.join(region.name for region in regions) or 'none'}")
    if len(matches) > 1:
        raise Conflict(f"region {name!r} could be any of {', '.join(region.name for region in matches)}")
    return matches[0]


# ---- what is printed -------------------------------------------------------------------------------------------------


def _say(message: str) -> None:
    say(message, err=True)


def _say_plan(found: control_pb2.Job) -> None:
    if words := plan_words(found):
        _say(words)


def _say_more(planned: control_pb2.Job, fleet: control_pb2.Fleet, *, is_new: bool) -> None:
    if is_new and (where := run_words(planned, fleet)):
        _say(where)
    if frontier := frontier_words(planned, fleet):
        _say(frontier)


async def _say_what_is_left(remote: Coordinator, ended: control_pb2.Job) -> None:
    for line in listing.describe_files(ended, is_gone=await _is_gone(remote, ended)):
        _say(line)


def _print_listing(kind: listing.Listing, trees: list[Tree], output: str) -> None:
    text = listing.render(kind, trees, Output(output), clock.unix_s())
    if text and output in (Output.JSON, Output.YAML):
        click.echo(text)
    elif text:
        say(text)
    if not trees:
        _say(kind.empty)


def _print_job(found: control_pb2.Job, output: Output) -> None:
    if output in (Output.TABLE, Output.NAME):
        say(found.job_id)
    else:
        click.echo(listing.render_tree(listing.job_details(found), output))


def _event_tree(event: control_pb2.JobEvent) -> Tree:
    tree: Tree = {"sequence": event.sequence, "time_s": round(event.time_s, 3)}
    match view_event(event):
        case JobChanged():
            tree["job"] = listing.job_tree(event.job)
        case RecordSeen(record):
            tree["record"] = json.loads(record.to_json())
        case FleetSeen():
            regions = [listing.region_tree(region) for region in event.fleet.regions]
            tree["fleet"] = {"regions": regions, "links": [listing.link_tree(link) for link in event.fleet.links]}
    return tree


def _has_ended(found: control_pb2.Job) -> bool:
    return job_state(found) in {state.value for state in ENDED_STATES}
