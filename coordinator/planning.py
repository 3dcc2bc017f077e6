"""Translates between the coordinator's state and the planner.

A snapshot of the free regions and of their measured links goes in as a `Fleet`; a placement, a proof that none exists,
or a failure comes out as a `PlanFinished` event. A crash of the planner fails the job and leaves the coordinator
running.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from coordinator.events import PlanFinished, PlannerFailed, RunPlanner
from coordinator.machine.growth import without_job
from coordinator.machine.reservations import free_devices, free_memory, memory_shortage
from coordinator.state import Avoided, JobRequest, PlacedProcess, PlacedProcesses, State, dialled_address
from periplus.errors import ConfigError, PeriplusError, explained_error
from periplus.job.job_file import JobFile
from periplus.process.telemetry import event as log_event
from periplus.values.machine import DeviceCount
from periplus.values.profile import Profile, model_key
from periplus.values.task import Role
from planner.answer.outcome import BudgetExhausted, Fact, Found, Infeasible
from planner.calibration.profiled_fleet import profiled
from planner.devices.catalogue import type_of
from planner.files.hub_checkpoint import sent_architecture, visible_architecture
from planner.plan import Assignment, Plan, PlanOutcome, TaskKind
from planner.plan_of_placement import without_question
from planner.problem.architecture import Architecture
from planner.problem.fleet import FABRIC_LATENCY_S, ONE_HOST_BYTES_PER_S, Fleet, Link, Machines, Region
from planner.problem.hardware import GpuType

log = logging.getLogger(__name__)

_NO_REGION = Fact(kind="inventory", name="regions", what="the job cannot start in any region that is free")

Ask = Callable[..., PlanOutcome]
"""A function with the interface of `coordinator.app.plan_request`."""


def architecture_of(request: JobRequest) -> Architecture | None:
    """Return the architecture of a job's model; None if its configuration is not visible. Raises: ConfigError."""
    path, sent = JobFile.from_json(request.job_json).model.path, request.model_config
    return sent_architecture(sent, path) if sent else visible_architecture(path)


def profiles_of(state: State, regions: Iterable[str], request: JobRequest) -> Mapping[str, Profile]:
    """Return the whole profiles of the job's model and engine, by region. Raises: ConfigError."""
    there = {name: state.regions[name].hello.inventory.profiles for name in regions}
    if not any(there.values()):
        return {}
    job = JobFile.from_json(request.job_json)
    rank = job.model.lora_rank
    key = (model_key(job.model.path, request.model_config, rank), job.engine.name)
    return {
        name: profile
        for name, profiles in there.items()
        for profile in profiles
        if (profile.model, profile.engine) == key and profile.is_complete
    }


def _asked(state: State, fleet: Fleet, free: Mapping[str, DeviceCount], request: JobRequest, ask: Ask) -> PlanOutcome:
    """Return the planner's answer with what the regions' profiles say of the job's model. Raises: ConfigError."""
    profiles = profiles_of(state, (region.name for region in fleet.regions), request)
    arch = architecture_of(request) if profiles else None
    if arch is None:
        return ask(fleet, free, request)
    job = JobFile.from_json(request.job_json)
    rank = job.model.lora_rank
    deltas = [each.host.delta_bytes_per_param for each in profiles.values() if each.host.delta_bytes_per_param]
    measured = profiled(fleet, arch, profiles, lora_rank=rank)
    return ask(measured, free, request, delta_bytes_per_param=max(deltas, default=None))


def planned(state: State, order: RunPlanner, ask: Ask) -> PlanFinished:
    """Run the planner for one RunPlanner effect and return its answer. Never raises: a crash becomes PlannerFailed."""
    job = state.jobs[order.job_id]
    try:
        if order.new_regions:
            return PlanFinished(order.job_id, order.free, _growth(state, order, ask), order.new_regions)
        usable = {
            name: count
            for name, count in order.free.items()
            if any((name, each.name, None) not in job.avoided for each in state.regions[name].hello.inventory.usable)
        }
        if not usable:
            return PlanFinished(order.job_id, order.free, Infeasible(facts=(_NO_REGION,)))
        fleet = fleet_of(state, frozenset(usable), job.avoided, job.refused_engines)
        found = _asked(state, fleet, usable, job.request, ask)
        if isinstance(found, BudgetExhausted) and (wrong := found.refuted):
            numbers = {"method": wrong.method, "bound": wrong.bound, "value": wrong.value}
            log_event(log, logging.WARNING, "bound_refuted", job=order.job_id, **numbers)
        outcome = placement(found)
        if job.request.plan_json and isinstance(outcome, PlacedProcesses):
            outcome = _startable(state, outcome)
        if isinstance(outcome, PlacedProcesses) and (short := memory_shortage(state, outcome)):
            outcome = Infeasible(facts=(Fact(kind="inventory", name="memory", what=short),))
    except (PeriplusError, ValueError) as error:
        log_event(log, logging.ERROR, "planner_failed", job=order.job_id, why=error)
        outcome = PlannerFailed(str(error))
    except Exception as error:  # the root of the planner's task: a bug in a search fails the job, not the coordinator
        log.exception("planner_crashed")
        outcome = PlannerFailed(explained_error(error))
    return PlanFinished(order.job_id, order.free, outcome, order.new_regions)


def _growth(state: State, order: RunPlanner, ask: Ask) -> PlacedProcesses | Infeasible | PlannerFailed:
    """Return the processes that a running job gets in these regions, none if a plan of all its regions has no more.

    The plan of the answer is that of the job with these processes; its predictions are those of the start.
    """
    job = state.jobs[order.job_id]
    assert job.placement is not None
    # The job is planned anew, as if it held nothing, with its trainer where it is.
    regions = frozenset(order.free)
    workers = [process for process in job.placement.processes if process.role is Role.ROLLOUT]
    # An engine that no worker has would change what the trainer may check.
    engines = {process.engine for process in workers}
    other_engines = {
        (name, engine)
        for name in order.new_regions
        for engine in state.regions[name].hello.inventory.engines
        if "" not in engines and engine not in engines
    }
    fleet = fleet_of(without_job(state, job.job_id), regions, job.avoided, job.refused_engines | other_engines)
    wanted = JobFile.from_json(job.request.job_json)
    rules = wanted.regions.model_copy(update={"trainer": job.placement.trainer_region, "min": 1})
    request = replace(job.request, job_json=wanted.model_copy(update={"regions": rules}).to_json())
    outcome = _asked(state, fleet, order.free, request, ask)
    if not isinstance(placed := placement(outcome), PlacedProcesses):
        return placed
    most = (wanted.regions.max or len(regions)) - len(job.placement.regions)
    entered = sorted((order.new_regions & placed.regions) - job.placement.regions)[: max(0, most)]
    used = {*entered, *(order.new_regions & job.placement.regions)}
    plan, found = Plan.from_json(job.placement.plan_json), Plan.from_json(placed.plan_json)
    running = Counter(process.region for process in workers if not process.by_turns)
    more = tuple(_further(found, used, running))
    return PlacedProcesses(
        processes=tuple(_process(each) for each in more for _ in range(each.num_workers)),
        plan_json=replace(plan, assignments=plan.assignments + more).to_json(),
    )


def _further(found: Plan, regions: Collection[str], running: Mapping[str, int]) -> Iterator[Assignment]:
    """Yield a plan's rollout workers with devices of their own in these regions, without as many as run there."""
    left = Counter(running)
    for each in found.assignments:
        if each.task is not TaskKind.ROLLOUT or each.by_turns or each.region not in regions:
            continue
        number = max(0, each.num_workers - left[each.region])
        left[each.region] -= each.num_workers - number
        if number:
            usd = None if each.usd_per_hour is None else each.usd_per_hour * number / each.num_workers
            yield replace(each, num_workers=number, usd_per_hour=usd)


def fleet_of(
    state: State,
    regions: frozenset[str],
    avoided: Avoided = frozenset(),
    refused_engines: frozenset[tuple[str, str]] = frozenset(),
) -> Fleet:
    """Return the fleet of these regions: their machines with free accelerators and memory, and the links.

    An accelerator whose type the planner does not know is left out: processes there are planned as if on cores. So are
    the places that are `avoided`, and the `refused_engines` of regions (see `Job`).
    """
    types: dict[str, GpuType] = {}
    inventories = {name: state.regions[name].hello.inventory for name in sorted(regions)}
    return Fleet(
        regions=tuple(
            Region(
                name=name,
                machines=tuple(_accelerators(state, name, avoided, types)),
                fabric_bytes_per_s=inventory.fabric_bytes_per_s or ONE_HOST_BYTES_PER_S,
                fabric_latency_s=inventory.fabric_latency_s or FABRIC_LATENCY_S,
                num_cores=inventory.num_cores,
                memory_bytes=free_memory(state, name),
                engines=tuple(each for each in inventory.engines if (name, each) not in refused_engines),
                allows_own_code=inventory.allows_own_code,
                host=inventory.own.name if inventory.own.shares_cores else "",
            )
            for name, inventory in inventories.items()
        ),
        links=tuple(
            Link(src_region=src, dst_region=dst, rtt_s=link.rtt_s, bytes_per_s=link.throughput_bits_per_s / 8)
            for (src, dst), link in sorted(state.links.items())
            if {src, dst} <= regions and dialled_address(state, dst)
        ),
        gpu_types=types,
    )


def _accelerators(state: State, region: str, avoided: Avoided, types: dict[str, GpuType]) -> Iterator[Machines]:
    """Yield a region's machines by type of accelerators, free ones where processes start; add the types to `types`."""
    free = free_devices(state, region)
    for machine in state.regions[region].hello.inventory.machines:
        found: Counter[tuple[str, float]] = Counter()
        for device in machine.devices:
            if (machine.name, device.index) not in free:
                continue
            is_avoided = not avoided.isdisjoint({(region, machine.name, None), (region, machine.name, device.index)})
            if not device.is_accelerator or device.problem or is_avoided:
                continue
            try:
                gpu = type_of(device)
            except ConfigError as error:
                log_event(log, logging.WARNING, "accelerator_unknown", region=region, device=device.index, why=error)
                continue
            # The least memory of all that are of the type.
            known = types.get(gpu.name, gpu)
            types[gpu.name] = min(known, gpu, key=lambda each: each.memory_bytes)
            found[gpu.name, device.usd_per_hour] += 1
        for (name, usd), number in sorted(found.items()):
            yield Machines(gpu=name, gpus_per_machine=number, num_machines=1, usd_per_gpu_hour=usd or None)


def placement(outcome: PlanOutcome) -> PlacedProcesses | Infeasible | PlannerFailed:
    """Reduce the planner's answer to what the machine uses. The best plan when time ended is as good as any."""
    match outcome:
        # A plan that is not proved best is used as well: waiting for a better one would cost more than it saves.
        case Found(best=plan) | BudgetExhausted(best=Plan() as plan):
            rows = sorted(plan.assignments, key=lambda each: each.task is not TaskKind.TRAINER)
            processes = [_process(each) for each in rows for _ in range(each.num_workers)]
            return PlacedProcesses(processes=tuple(processes), plan_json=without_question(plan).to_json())
        case Infeasible():
            return outcome
        case BudgetExhausted():
            return PlannerFailed("it found no plan in time; submit again, or allow fewer regions")


def _process(each: Assignment) -> PlacedProcess:
    trains = each.task is TaskKind.TRAINER
    return PlacedProcess(
        role=Role.TRAINER if trains else Role.ROLLOUT,
        region=each.region,
        num_devices=each.data if trains else each.tensor,
        device=each.device,
        machine=each.machine,
        devices=each.devices,
        engine="" if trains else each.engine,
        tensor=0 if trains else each.tensor,
        data=each.data if trains else 0,
        pace=each.pace,
        by_turns=each.by_turns,
        usd_per_hour=(each.usd_per_hour or 0.0) / max(1, each.num_workers),
        memory_bytes=each.memory_bytes,
    )


def _startable(state: State, placed: PlacedProcesses) -> PlacedProcesses | Infeasible:
    """Return a placement that was made by hand, or why not all of its processes can start now."""
    for process in placed.processes:
        inventory = state.regions[process.region].hello.inventory
        names = [machine.name for machine in inventory.usable]
        if process.machine and process.machine not in names:
            what = (
                f"the plan puts the {process.role} on {process.machine} in {process.region}, whose agent starts "
                f"processes on {', '.join(names)} alone"
            )
            return Infeasible(facts=(Fact(kind="plan", name="machines", what=what),))
        machine = process.machine or inventory.own.name
        there = {index for name, index in free_devices(state, process.region) if name == machine}
        if missing := sorted(set(process.devices) - there):
            what = f"the plan uses device {missing[0]} of {machine} in {process.region}, which is not free"
            return Infeasible(facts=(Fact(kind="plan", name="devices", what=what),))
    return placed
