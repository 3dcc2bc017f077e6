"""Which devices of the regions are held by which jobs, and which ones the processes of a new job get.

A job holds the devices of its tasks from the moment it is placed until it has ended and its processes are gone. An
accelerator is held by one job at a time; a group of cores by at most `Settings.jobs_per_region`. A job whose processes
need more devices than a whole machine has gets all of them, and its own processes share. A job holds as much of the
machine's memory as its processes were planned to take, for as long as its devices. Only the agent's own machine is
given out, because no agent starts processes on another one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from coordinator.state import (
    Job,
    PlacedProcess,
    PlacedProcesses,
    RegionMode,
    State,
    TaskStatus,
    live_jobs,
    ready_regions,
    trainer_task_id,
)
from periplus.errors import ConfigError
from periplus.values.machine import Device, DeviceCount
from periplus.values.task import ENDED, FailureCause, TaskReport
from planner.devices.catalogue import type_of

ENDING_WAIT_S = 60.0
"""Seconds that jobs wait for the processes of those that have ended: twice what an agent gives them before it kills
them. Chosen by hand."""


MAX_ORDER_BYTES = 10 << 20
"""Most bytes of the texts of all jobs in one region. They go to its agent as one message, of which gRPC takes 12 MiB;
the rest of it is kilobytes a job. Chosen by hand."""


def device_counts(state: State) -> dict[str, DeviceCount]:
    """Return the counts of every ready region that has a free device and is open to jobs."""
    found = {}
    for name, region in sorted(state.regions.items()):
        if region.mode is not RegionMode.OPEN:
            continue
        usable = usable_devices(state, name)
        free = len(free_devices(state, name))
        if region.connected and free:
            found[name] = DeviceCount(free, len(usable), free_memory(state, name))
    return found


def usable_devices(state: State, region: str) -> tuple[Device, ...]:
    """Return the devices of the region that work: its accelerators, or its groups of cores if it has none."""
    devices = state.regions[region].hello.inventory.own.devices
    accelerators = [device for device in devices if device.is_accelerator]
    return tuple(device for device in accelerators or devices if not device.problem)


def free_devices(state: State, region: str) -> tuple[Device, ...]:
    """Return the region's devices that one more job may hold, in the machine's order."""
    holders = holders_of(state, region)
    return tuple(
        device
        for device in usable_devices(state, region)
        if len(holders.get(device.index, ())) < (1 if device.is_accelerator else state.settings.jobs_per_region)
    )


def holders_of(state: State, region: str) -> dict[int, tuple[str, ...]]:
    """Return the jobs that hold each device of the region, by the device's index. Free devices are left out."""
    held: dict[int, dict[str, None]] = {}
    for job_id, status in _holding(state, region):
        for index in status.devices if status else [device.index for device in usable_devices(state, region)]:
            held.setdefault(index, {})[job_id] = None
    return {index: tuple(jobs) for index, jobs in held.items()}


def memory_held(state: State, region: str) -> dict[str, int]:
    """Return the bytes of the machine's memory that each job holds in the region. Jobs that hold none are left out."""
    held, own = Counter[str](), state.regions[region].hello.inventory.own
    for job_id, status in _holding(state, region):
        held[job_id] += status.process.memory_bytes if status else own.memory_bytes
    return {job_id: num_bytes for job_id, num_bytes in held.items() if num_bytes}


def free_memory(state: State, region: str, besides: str = "") -> int:
    """Return the bytes of the machine's memory that no job holds, apart from the job `besides`; 0 without a limit."""
    total = state.regions[region].hello.inventory.own.memory_bytes
    held = sum(num_bytes for job_id, num_bytes in memory_held(state, region).items() if job_id != besides)
    # Not 0 if all is held, since that would mean no limit.
    return max(1, total - held) if total else 0


def _holding(state: State, region: str) -> list[tuple[str, TaskStatus | None]]:
    """Return the job and the status of each task for which something is held; None where it is not known what.

    Such tasks are those of an earlier coordinator or placement, and they hold all.
    """
    placed = {task_id: (job.job_id, status) for job in live_jobs(state) for task_id, status in job.tasks.items()}
    found = {task_id: pair for task_id, pair in placed.items() if pair[1].region == region}
    # Processes that end.
    ending = list[tuple[str, TaskStatus | None]]()
    for task_id, report in state.regions[region].tasks.items():
        if report.state not in ENDED and task_id not in found:
            status = state.jobs[report.job_id].tasks.get(task_id) if report.job_id in state.jobs else None
            ending.append((report.job_id, status if status and status.region == region else None))
    return [*found.values(), *ending]


def has_more_now(state: State, job: Job) -> bool:
    """Return whether more devices or memory than a placed job was planned on are free, or held by itself."""
    if job.request.plan_json or job.cancelling or job.last_files or any(status.report for status in job.tasks.values()):
        return False
    for name in ready_regions(state):
        own = {index for status in job.tasks.values() if status.region == name for index in status.devices}
        now = own.union(device.index for device in free_devices(state, name))
        before = job.planned_on.get(name, DeviceCount(0, 0))
        if len(now) > before.free or (before.free and free_memory(state, name, job.job_id) > before.memory_bytes):
            return True
    return False


def all_are_free(state: State) -> bool:
    """Return whether no job holds a device or memory of a ready region."""
    return not any(holders_of(state, name) or memory_held(state, name) for name in ready_regions(state))


def ending_words(state: State) -> str:
    """Name the jobs that have ended and still have processes, with their regions; an empty text if there are none."""
    found: dict[str, list[str]] = {}
    for name in sorted(ready_regions(state)):
        reports = state.regions[name].tasks.values()
        running = dict.fromkeys(report.job_id for report in reports if report.state not in ENDED)
        for job_id in running:
            if job_id in state.jobs and state.jobs[job_id].ended:
                found.setdefault(job_id, []).append(name)
    return " and ".join(f"the processes of {job_id} in {', '.join(regions)}" for job_id, regions in found.items())


def held_words(state: State) -> str:
    """Name the devices that others hold, and the keys with which a job leaves regions to others."""
    held = []
    for name in sorted(ready_regions(state)):
        usable, free = usable_devices(state, name), free_devices(state, name)
        jobs = dict.fromkeys(job for jobs in holders_of(state, name).values() for job in jobs)
        if len(free) < len(usable):
            what = "accelerators" if usable[0].is_accelerator else "groups of cores"
            held.append(f"{' and '.join(jobs)} in {name}, {len(free)} of whose {len(usable)} {what} are free")
    closed = [
        f"{name} is {each.mode}" for name, each in sorted(state.regions.items()) if each.mode is not RegionMode.OPEN
    ]
    shut = f" ({', '.join(closed)}; `periplus region uncordon` opens it)" if closed else ""
    if not held:
        return shut
    return shut + (
        f" (held by {'; by '.join(held)}, until the job ends or is cancelled; a job leaves regions to others by "
        "regions.max, regions.rollout or regions.forbid, and a coordinator lets more than "
        f"{state.settings.jobs_per_region} share cores by --jobs-per-region)"
    )


def memory_words(state: State) -> str:
    """Say how much memory of each machine is free and which jobs hold the rest; an empty text if they hold none."""
    found = []
    for name in sorted(ready_regions(state)):
        own, held = state.regions[name].hello.inventory.own, memory_held(state, name)
        if held and own.memory_bytes:
            free = max(0, own.memory_bytes - sum(held.values()))
            jobs = " and ".join(f"{job_id} holds {_gb(num_bytes)}" for job_id, num_bytes in held.items())
            found.append(f"{own.name} in {name} has {_gb(free)} of {_gb(own.memory_bytes)} free, {jobs}")
    return f"; memory: {'; '.join(found)}" if found else ""


def memory_shortage(state: State, placement: PlacedProcesses) -> str:
    """Say where a placement takes memory that jobs hold; an empty text if it does not.

    A job that has a machine to itself may take more than the machine states: the figures are coarse.
    """
    for name in sorted(placement.regions & state.regions.keys()):
        own, held = state.regions[name].hello.inventory.own, sum(memory_held(state, name).values())
        wanted = sum(process.memory_bytes for process in placement.processes if process.region == name)
        if held and own.memory_bytes and wanted > own.memory_bytes - held:
            free = max(0, own.memory_bytes - held)
            return f"the plan takes {_gb(wanted)} of the memory of {own.name} in {name}, of which {_gb(free)} are free"
    return ""


def overfull_order(state: State, job: Job, placement: PlacedProcesses) -> str:
    """Say why the agents of a placement could not be sent the job beside their others; empty if they can."""
    for region in sorted(placement.regions):
        texts = [
            (each.request.job_json, each.request.model_config, each.plan_json)
            for each in live_jobs(state)
            if each.placement and region in each.placement.regions
        ]
        texts.append((job.request.job_json, job.request.model_config, placement.plan_json))
        num_bytes = sum(len(text.encode()) for of_job in texts for text in of_job)
        if num_bytes > MAX_ORDER_BYTES:
            return (
                f"the texts of this job and of the {len(texts) - 1} others in {region} have {num_bytes:,} bytes, and "
                f"an agent is sent at most {MAX_ORDER_BYTES:,}; make them smaller, or submit it again later"
            )
    return ""


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A process was planned on a machine of a region on which nothing can be started, and why."""

    region: str
    machine: str
    why: str


def reserved(state: State, job_id: str, placement: PlacedProcesses) -> Mapping[str, tuple[int, ...]] | Misplaced | None:
    """Return the indices of the devices that each task of a placement gets, by task id.

    None if a region has fewer free devices or less memory than the job needs there, or is not ready. Misplaced if the
    agent's own machine has fewer devices than that, whoever holds them.
    """
    tasks = placement.tasks(job_id)
    found: dict[str, tuple[int, ...]] = {}
    for region in sorted(placement.regions):
        if not state.regions[region].connected:
            return None
        own = {task_id: process for task_id, process in tasks.items() if not process.by_turns}
        here = {task_id: process for task_id, process in own.items() if process.region == region}
        for device in sorted({process.device for process in here.values()}):
            alike = {task_id: process for task_id, process in here.items() if process.device == device}
            usable = [each for each in usable_devices(state, region) if device in ("", type_name(each))]
            free = [each for each in free_devices(state, region) if each in usable]
            wanted = sum(process.num_devices for process in alike.values())
            if wanted > len(usable) and (elsewhere := _elsewhere(state, region, device)):
                return elsewhere
            if not DeviceCount(len(free), len(usable)).has_room(wanted):
                return None
            shares = _shared_out([each.index for each in free], alike, trainer_task_id(job_id))
            if shares is None:
                return None
            found |= shares
    if of_trainer := found.get(trainer_task_id(job_id)):  # else only workers in further regions are placed
        found |= _turns(tasks, of_trainer)
    return None if memory_shortage(state, placement) else found


def placed_tasks(
    state: State, job_id: str, placement: PlacedProcesses, devices: Mapping[str, tuple[int, ...]]
) -> dict[str, TaskStatus]:
    """Return the tasks of a placement, by id, with the devices that each one got."""
    return {
        task_id: TaskStatus(
            process=process,
            machine=state.regions[process.region].hello.inventory.own.name,
            devices=devices[task_id],
        )
        for task_id, process in placement.tasks(job_id).items()
    }


def _elsewhere(state: State, region: str, device: str) -> Misplaced | None:
    """Return the first other machine of a region that has devices of this type, as a place where nothing starts."""
    own, *others = state.regions[region].hello.inventory.machines
    for machine in others:
        if any(type_name(each) == device for each in machine.devices):
            return Misplaced(region, machine.name, f"the agent of {region} starts processes on {own.name} alone")
    return None


def avoiding(job: Job, region: str, machine: str, devices: Sequence[int], why: str) -> Job:
    """Return a job whose later plans use none of these devices of a machine, or nothing there if none are named."""
    places = frozenset((region, machine, device) for device in devices or (None,))
    what = f"device {', '.join(map(str, devices))} of {machine}" if devices else machine
    notice = f"planned again without {what} in {region}: {why}"
    return replace(job, avoided=job.avoided | places, notice=notice)


def avoiding_task(job: Job, status: TaskStatus, report: TaskReport) -> Job:
    """Return a job whose later plans leave out what made a task fail: its region, its devices, or its engine there."""
    region, engine = status.region, status.process.engine
    if report.cause in (FailureCause.STORAGE, FailureCause.OWNER):
        return avoiding(job, region, status.machine, (), report.message)
    if report.cause is FailureCause.DEVICE or not engine:
        return avoiding(job, region, status.machine, status.devices, report.message)
    notice = f"planned again without {engine} in {region}: {report.message}"
    return replace(job, refused_engines=job.refused_engines | {(region, engine)}, notice=notice)


def forgiven(job: Job, region: str) -> Job:
    """Return a job whose later plans use all of a region again, since what is there has changed."""
    avoided = frozenset(place for place in job.avoided if place[0] != region)
    return replace(job, avoided=avoided, refused_engines=frozenset(e for e in job.refused_engines if e[0] != region))


def type_name(device: Device) -> str:
    """Return the planner's type of an accelerator; empty for cores, and for a model that the planner does not know."""
    if not device.is_accelerator:
        return ""
    try:
        return type_of(device).name
    except ConfigError:
        return ""


def _shared_out(
    free: Sequence[int], wants: Mapping[str, PlacedProcess], trainer: str
) -> dict[str, tuple[int, ...]] | None:
    """Give each task the devices that it wants. If there are too few, workers take turns on what the trainer leaves.

    None if a plan names devices that are not free.
    """
    named = {task_id: process.devices for task_id, process in wants.items() if process.devices}
    taken = [index for devices in named.values() for index in devices]
    if len(set(taken)) < len(taken) or not set(taken) <= set(free):
        return None
    left_over = [index for index in free if index not in taken]
    numbers = {task_id: process.num_devices for task_id, process in wants.items() if task_id not in named}
    if sum(numbers.values()) <= len(left_over):
        left = iter(left_over)
        return named | {task_id: tuple(islice(left, number)) for task_id, number in numbers.items()}
    own = numbers.get(trainer, 0)
    turns = cycle(left_over[own:] or left_over or free)
    return named | {
        # A task that wants more than there are gets each once.
        task_id: tuple(left_over[:own]) if task_id == trainer else tuple(dict.fromkeys(islice(turns, number)))
        for task_id, number in numbers.items()
    }


def _turns(tasks: Mapping[str, PlacedProcess], of_trainer: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the devices of the trainer that each worker uses by turns with it, by task id."""
    devices = cycle(of_trainer)
    return {
        task_id: tuple(dict.fromkeys(islice(devices, process.num_devices)))
        for task_id, process in tasks.items()
        if process.by_turns
    }


def wait_for_regions(state: State, job: Job, free: Mapping[str, DeviceCount], now_s: float) -> str:
    """Say which regions a pending job waits for, if these are free; empty if it waits for none."""
    if len(free) < job.request.min_regions:
        wanted = job.request.min_regions
        return f"waits for {wanted} free region{'s' if wanted > 1 else ''}, {len(free)} there{held_words(state)}"
    # Their devices come free in a moment, one region after the other. A plan made now would never use the later ones.
    # A process that nobody can end must not hold up the whole fleet.
    if state.ending_since_s is not None and now_s - state.ending_since_s < ENDING_WAIT_S:
        return f"waits for {ending_words(state)} to end, for at most {ENDING_WAIT_S:.0f} s"
    return ""


def wait_for_room(state: State, job: Job, free: Mapping[str, DeviceCount]) -> str:
    """Say why a pending job does not fit what is free; empty unless the planner has proved that."""
    # The planner would only repeat its proof.
    if free == job.infeasible_on:
        held = f"{held_words(state)}{memory_words(state)}"
        return f"does not fit what is free ({job.conflict}); waits for what is in use{held}"
    return ""
