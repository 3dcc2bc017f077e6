"""Which devices of the regions are held by which jobs, and which ones the processes of a new job get.

A job holds the devices of its tasks from the moment it is placed until it has ended and its processes are gone. An
accelerator is held by one job at a time; a group of cores by at most `Settings.jobs_per_region`. A job whose processes
need more devices than a whole region has gets all of them, and its own processes share. A job holds as much of a
machine's memory as its processes there were planned to take, for as long as its devices. Only machines on which the
region's agent can start processes are given out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from coordinator.machine.shares import Offer, Places, shared_out, turns_with
from coordinator.state import (
    Avoided,
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
from periplus.values.machine import Device, DeviceCount, Inventory, Machine
from periplus.values.task import ENDED, FailureCause, TaskReport
from planner.devices.catalogue import type_of

ENDING_WAIT_S = 60.0
"""Seconds that jobs wait for the processes of those that have ended: twice what an agent gives them before it kills
them. Chosen by hand."""


Place = tuple[str, int]
"""A device of a region: the name of its machine, and its index there."""

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


def usable_devices(state: State, region: str) -> Mapping[Place, Device]:
    """Return the devices of the region that work: its accelerators, or its groups of cores if it has none."""
    found = {
        (machine.name, device.index): device
        for machine in state.regions[region].hello.inventory.usable
        for device in machine.devices
    }
    has_accelerators = any(device.is_accelerator for device in found.values())
    return {
        place: device
        for place, device in found.items()
        if device.is_accelerator == has_accelerators and not device.problem
    }


def free_devices(state: State, region: str) -> Mapping[Place, Device]:
    """Return the region's devices that one more job may hold, in the order of machines and their devices."""
    holders = holders_of(state, region)
    return {
        place: device
        for place, device in usable_devices(state, region).items()
        if len(holders.get(place, ())) < (1 if device.is_accelerator else state.settings.jobs_per_region)
    }


def holders_of(state: State, region: str) -> dict[Place, tuple[str, ...]]:
    """Return the jobs that hold each device of the region. Free devices are left out."""
    held: dict[Place, dict[str, None]] = {}
    for job_id, status in _holding(state, region):
        for place in held_places(status) if status else usable_devices(state, region):
            held.setdefault(place, {})[job_id] = None
    return {place: tuple(jobs) for place, jobs in held.items()}


def held_places(status: TaskStatus) -> list[Place]:
    """Return the devices that a task holds."""
    return [(place.machine, index) for place in status.places for index in place.devices]


def memory_held(state: State, region: str, machine: str = "") -> dict[str, int]:
    """Return the bytes of memory that each job with some holds on a machine, or in the region if it is empty."""
    held = Counter[str]()
    for job_id, status in _holding(state, region):
        for each in state.regions[region].hello.inventory.usable:
            if machine in ("", each.name):
                held[job_id] += _memory_on(each.name, status) if status else each.memory_bytes
    return {job_id: num_bytes for job_id, num_bytes in held.items() if num_bytes}


def _memory_on(machine: str, status: TaskStatus) -> int:
    """Return the bytes that a task takes of the memory of a machine: a part for each of its devices."""
    num_devices = sum(len(place.devices) for place in status.places)
    for place in status.places:
        if place.machine == machine:
            part = len(place.devices) / num_devices if status.others else 1.0
            return int(status.process.memory_bytes * part)
    return 0


def free_memory(state: State, region: str, besides: str = "") -> int:
    """Return the bytes of the machines' memory that no job holds, apart from the job `besides`; 0 without a limit."""
    if not state.regions[region].hello.inventory.memory_bytes:
        return 0
    free = 0
    for machine in state.regions[region].hello.inventory.usable:
        held = memory_held(state, region, machine.name)
        free += max(0, machine.memory_bytes - sum(number for job_id, number in held.items() if job_id != besides))
    # Not 0 if all is held, since that would mean no limit.
    return max(1, free)


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
        own = {place for status in job.tasks.values() if status.region == name for place in held_places(status)}
        now = own.union(free_devices(state, name))
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
            what = "accelerators" if next(iter(usable.values())).is_accelerator else "groups of cores"
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
        for machine in state.regions[name].hello.inventory.usable:
            held = memory_held(state, name, machine.name)
            if held and machine.memory_bytes:
                free = max(0, machine.memory_bytes - sum(held.values()))
                jobs = " and ".join(f"{job_id} holds {_gb(num_bytes)}" for job_id, num_bytes in held.items())
                found.append(f"{machine.name} in {name} has {_gb(free)} of {_gb(machine.memory_bytes)} free, {jobs}")
    return f"; memory: {'; '.join(found)}" if found else ""


def memory_shortage(state: State, placement: PlacedProcesses) -> str:
    """Say where a placement takes memory that jobs hold; an empty text if it does not.

    A job that has a region to itself may take more than its machines state: the figures are coarse.
    """
    for name in sorted(placement.regions & state.regions.keys()):
        total, held = state.regions[name].hello.inventory.memory_bytes, memory_held(state, name)
        wanted = sum(process.memory_bytes for process in placement.processes if process.region == name)
        if held and total and wanted > free_memory(state, name):
            names = ", ".join(machine.name for machine in state.regions[name].hello.inventory.usable)
            free = _gb(max(0, total - sum(held.values())))
            return f"the plan takes {_gb(wanted)} of the memory of {names} in {name}, of which {free} are free"
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


def reserved(
    state: State, job_id: str, placement: PlacedProcesses, avoided: Avoided = frozenset()
) -> Mapping[str, Places] | None:
    """Return the machines and devices that each task of a placement gets, by task id; none of those `avoided`.

    None if a region has fewer free devices or less memory than the job needs there, or is not ready.
    """
    tasks = placement.tasks(job_id)
    found: dict[str, Places] = {}
    for region in sorted(placement.regions):
        if not state.regions[region].connected:
            return None
        own = {task_id: process for task_id, process in tasks.items() if not process.by_turns}
        here = {task_id: process for task_id, process in own.items() if process.region == region}
        offers = _offers(state, region, avoided)
        for device in sorted({process.device for process in here.values()}):
            alike = {task_id: process for task_id, process in here.items() if process.device == device}
            usable = _of_type(usable_devices(state, region), region, device, avoided)
            free = usable & free_devices(state, region).keys()
            wanted = sum(process.num_devices for process in alike.values())
            if not DeviceCount(len(free), len(usable)).has_room(wanted):
                return None
            of_type = [
                replace(offer, devices=tuple(index for index in offer.devices if (offer.machine, index) in free))
                for offer in offers
            ]
            shares = shared_out(of_type, alike, trainer_task_id(job_id))
            if shares is None:
                return None
            found |= shares[0]
            memory = {offer.machine: offer.memory_bytes for offer in shares[1]}
            offers = [replace(offer, memory_bytes=memory[offer.machine]) for offer in offers]
    if of_trainer := found.get(trainer_task_id(job_id)):  # else only workers in further regions are placed
        found |= turns_with(tasks, of_trainer)
    return None if memory_shortage(state, placement) else found


def _of_type(devices: Mapping[Place, Device], region: str, device: str, avoided: Avoided) -> set[Place]:
    """Return the devices of a type that are not avoided; of any type if it is empty."""
    return {
        (machine, index)
        for (machine, index), each in devices.items()
        if device in ("", type_name(each)) and avoided.isdisjoint({(region, machine, None), (region, machine, index)})
    }


def _offers(state: State, region: str, avoided: Avoided) -> list[Offer]:
    """Return what the machines of a region have free for one more job, the agent's own first."""
    free, holders = free_devices(state, region), holders_of(state, region)

    def offer(machine: Machine) -> Offer:
        held = sum(memory_held(state, region, machine.name).values())
        indices = [index for name, index in free if name == machine.name]
        num_holders = {index: len(holders.get((machine.name, index), ())) for index in indices}
        return Offer(
            machine=machine.name,
            devices=tuple(sorted(indices, key=lambda index: num_holders[index])),
            num_holders=sum(num_holders.values()),
            memory_bytes=machine.memory_bytes - held if machine.memory_bytes else inf,
            is_alone=not held,
            engines=frozenset(engine.name for engine in machine.engines),
        )

    machines = state.regions[region].hello.inventory.usable
    return [offer(machine) for machine in machines if (region, machine.name, None) not in avoided]


def placed_tasks(job_id: str, placement: PlacedProcesses, places: Mapping[str, Places]) -> dict[str, TaskStatus]:
    """Return the tasks of a placement, by id, with the devices that each one got."""
    return {task_id: _placed(process, places[task_id]) for task_id, process in placement.tasks(job_id).items()}


def _placed(process: PlacedProcess, places: Places) -> TaskStatus:
    first, *others = places
    return TaskStatus(process=process, machine=first.machine, devices=first.devices, others=tuple(others))


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
        for place in status.places:
            job = avoiding(job, region, place.machine, place.devices, report.message)
        return job
    notice = f"planned again without {engine} in {region}: {report.message}"
    return replace(job, refused_engines=job.refused_engines | {(region, engine)}, notice=notice)


def forgiven(job: Job, region: str) -> Job:
    """Return a job whose later plans use all of a region again, since what is there has changed."""
    avoided = frozenset(place for place in job.avoided if place[0] != region)
    return replace(job, avoided=avoided, refused_engines=frozenset(e for e in job.refused_engines if e[0] != region))


def renamed(job: Job, region: str, before: Inventory, now: Inventory) -> Job:
    """Return a job whose tasks in a region of one machine follow it when it comes back under another name."""
    if len(before.machines) > 1 or len(now.machines) > 1 or before.own.name == now.own.name:
        return job
    tasks = {
        task_id: replace(status, machine=now.own.name) if status.region == region else status
        for task_id, status in job.tasks.items()
    }
    return replace(job, tasks=tasks)


def change_of(before: Inventory, now: Inventory) -> str:
    """Say which machines have come or gone, and which devices do not work, if that has changed; else an empty text."""
    names, known = [{each.name for each in inventory.machines} for inventory in (now, before)]
    problems, told = (
        [device.problem for machine in inventory.machines for device in machine.devices if device.problem]
        for inventory in (now, before)
    )
    came = [f"{name} has come" for name in sorted(names - known)] + [
        f"{name} is gone" for name in sorted(known - names)
    ]
    if problems != told:
        came += problems or ["all devices work"]
    return "; ".join(came)


def type_name(device: Device) -> str:
    """Return the planner's type of an accelerator; empty for cores, and for a model that the planner does not know."""
    if not device.is_accelerator:
        return ""
    try:
        return type_of(device).name
    except ConfigError:
        return ""


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
