"""The command `periplus profile JOB`: it has the machines of regions measured for the work of a job's model.

Each region's agent measures its own machine, with a worker's engine and a trainer, and keeps the result. Plans of jobs
with that model and engine use it from then on. Regions on one machine take turns.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from coordinator.client.address import coordinator_address, coordinator_option, local_fleet
from coordinator.client.connection import Coordinator, connect
from coordinator.client.library.starting import up
from coordinator.client.listing import PROFILES, profile_summary
from coordinator.client.submission import submission
from coordinator.members.access import access_of
from periplus import clock
from periplus.config.loading import tree_of
from periplus.errors import NotFound, PeriplusError, TimedOut
from periplus.job.job_file import JobFile, job_of, load_job
from periplus.net.convert import inventory_from_pb
from periplus.pb.v1 import control_pb2
from periplus.values.profile import Profile, model_key
from periplus.view.terminal.listing import Output, output_option, render
from periplus.view.terminal.visible import say
from planner.calibration.efficiencies import calibrated
from planner.devices.catalogue import CPU, gpu_name, gpu_types
from planner.files.hub_checkpoint import sent_architecture, visible_architecture

POLL_S = 0.5
"""Seconds between two looks at how far regions are. Chosen by hand."""
SILENT_S = 240.0
"""Seconds without a new figure after which a region is given up. Chosen by hand: an engine of a large model may take
minutes to start."""


@click.command("profile")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--fleet", is_flag=True, help="Measure all regions of the coordinator.")
@click.option("--region", "names", multiple=True, metavar="REGION", help="Measure this region. It may be repeated.")
@output_option(Output.TABLE, Output.JSON, Output.YAML)
@coordinator_option
def profile_command(
    file: Path, overrides: tuple[str, ...], fleet: bool, names: tuple[str, ...], output: str, coordinator: str | None
) -> None:
    """Measure what the work of the model of the job in FILE takes on machines, for the plans of its jobs.

    Without --fleet and --region, all regions of the fleet on this machine are measured. If there is none, a fleet of
    one region runs for that alone. Regions keep what they have measured; `periplus region show` shows it.
    """
    job = load_job(file, overrides)

    async def call(address: str) -> list[tuple[str, Profile]]:
        async with connect(address, access_of(address)) as remote:
            known = [region.name for region in (await remote.fleet()).regions]
            wanted = list(names) or known
            if missing := sorted(set(wanted) - set(known)):
                raise NotFound(f"no region {missing[0]!r}; `periplus region list` names them")
            return await profiled_regions(remote, job, wanted, lambda text: say(text, err=True))

    if fleet or names or coordinator is not None or local_fleet() is not None:
        found = asyncio.run(call(coordinator_address(coordinator)))
    else:
        say("a fleet of one region is started on this machine for this measurement", err=True)
        with up() as alone:
            found = asyncio.run(call(alone.address))
    rows = [profile_tree(region, profile, job) for region, profile in found]
    say(render(PROFILES, rows, Output(output), clock.unix_s()))


async def profiled_regions(
    remote: Coordinator, job: JobFile, names: Sequence[str], tell: Callable[[str], None]
) -> list[tuple[str, Profile]]:
    """Have regions measured for a job's model, and return (region, profile) of each. `tell` gets the progress.

    Raises: Conflict for a region with tasks, PeriplusError if a region could not measure all, TimedOut.
    """
    request = submission(_measured_job(job), "profile")
    machines = defaultdict[str, list[str]](list)
    for region in (await remote.fleet()).regions:
        if region.name in names:
            own = region.inventory.machines[0]
            machines[own.name if own.shares_cores else region.name].append(region.name)

    async def in_turn(there: Sequence[str]) -> list[tuple[str, Profile]]:
        return [(name, await _profiled(remote, request, job, name, tell)) for name in there]

    # The first failure is raised as it is; what other agents measure goes on without this command.
    found = await asyncio.gather(*map(in_turn, machines.values()))
    return sorted((pair for each in found for pair in each), key=lambda pair: pair[0])


async def _profiled(
    remote: Coordinator, request: control_pb2.SubmitJobRequest, job: JobFile, name: str, tell: Callable[[str], None]
) -> Profile:
    begun_s = clock.unix_s()
    before = await _profile_of(remote, request, job, name)
    await remote.profile_region(name, request.job_json, request.model_config)
    shown, changed_s = "", clock.monotonic_s()
    while True:
        await asyncio.sleep(POLL_S)
        found = await _profile_of(remote, request, job, name)
        if found is None or found == before:
            text = "waits for its agent"
        else:
            num = len(found.generation) + len(found.training)
            text = f"{num} rows measured" if not found.is_complete else f"done in {clock.unix_s() - begun_s:.0f} s"
        if text != shown:
            tell(f"{name}: {text}")
            shown, changed_s = text, clock.monotonic_s()
        if found is not None and found != before and found.problem:
            raise PeriplusError(f"{name} could not measure: {found.problem}")
        if found is not None and found != before and found.is_complete:
            return found
        if clock.monotonic_s() - changed_s > SILENT_S:
            raise TimedOut(f"{name}: no new figure for {SILENT_S:.0f} s; the log of its agent says more")


async def _profile_of(
    remote: Coordinator, request: control_pb2.SubmitJobRequest, job: JobFile, name: str
) -> Profile | None:
    key = (model_key(job.model.path, request.model_config, job.model.lora_rank), job.engine.name)
    (region,) = (each for each in (await remote.fleet()).regions if each.name == name)
    profiles = inventory_from_pb(region.inventory).profiles
    return next((each for each in profiles if (each.model, each.engine) == key), None)


def _measured_job(job: JobFile) -> JobFile:
    """Return the job whose steps are measured: those of the actor alone, once over the samples.

    The cost model adds a critic, a reference and more epochs by itself.
    """
    tree: dict[str, Any] = job.model_dump(mode="json", exclude={"algorithm"})
    tree["algorithm"] = {"name": "grpo", "group_size": max(2, job.algorithm.group_size)}
    tree["train"] |= {"epochs": 1, "minibatches": 1, "warmup": None}
    return job_of(tree, (), "the job")


def profile_tree(region: str, profile: Profile, job: JobFile) -> dict[str, Any]:
    """Return a region's profile, with the device type that fits it, and the cost model's error before and after."""
    path, request = job.model.path, submission(job, "profile")
    arch = sent_architecture(request.model_config, path) if request.model_config else visible_architecture(path)
    gpu = gpu_types()[gpu_name(profile.device) if profile.device else CPU]
    fit = None if arch is None else calibrated(gpu, arch, profile, lora_rank=job.model.lora_rank)
    return {
        "region": region,
        **profile_summary(profile),
        "error_before": None if fit is None else fit.before,
        "error_after": None if fit is None else fit.after,
        "gpu_type": None if fit is None else tree_of(fit.gpu),
        "profile": tree_of(profile),
    }
