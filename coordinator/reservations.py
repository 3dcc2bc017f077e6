"""Which devices of the regions are held by which jobs, and which ones the processes of a new job get.

A job holds the devices of its tasks from the moment it is placed until it has ended and its processes are gone. An
accelerator is held by one job at a time; a group of cores by at most `Settings.jobs_per_region`. A job whose processes
need more devices than a whole machine has gets all of them, and its own processes share. Only the agent's own machine
is given out, because no agent starts processes on another one.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice

from coordinator.state import PlacedRoles, State, live_jobs, ready_regions, rollout_task_id, trainer_task_id
from periplus.values.machine import Device, DeviceCount
from periplus.values.task import ENDED

ENDING_WAIT_S = 60.0
"""Seconds that jobs wait for the processes of those that have ended: twice what an agent gives them before it kills
them. Chosen by hand."""


def device_counts(state: State) -> dict[str, DeviceCount]:
    """Return the counts of every ready region that has a free device."""
    found = {}
    for name, region in sorted(state.regions.items()):
        usable = usable_devices(state, name)
        free = len(free_devices(state, name))
        if region.connected and free:
            found[name] = DeviceCount(free, len(usable))
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

    def holds(job_id: str, devices: Iterable[int]) -> None:
        for index in devices:
            held.setdefault(index, {})[job_id] = None

    for job in live_jobs(state):
        for status in job.tasks.values():
            if status.region == region:
                holds(job.job_id, status.devices)
    # Processes that end, and those of an earlier coordinator. Where it is not known what they hold, they hold all.
    for task_id, report in state.regions[region].tasks.items():
        if report.state not in ENDED:
            ending = state.jobs[report.job_id].tasks.get(task_id) if report.job_id in state.jobs else None
            holds(report.job_id, ending.devices if ending else (d.index for d in usable_devices(state, region)))
    return {index: tuple(jobs) for index, jobs in held.items()}


def all_are_free(state: State) -> bool:
    """Return whether no job holds a device of a ready region."""
    return not any(holders_of(state, name) for name, region in state.regions.items() if region.connected)


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
    if not held:
        return ""
    return (
        f" (held by {'; by '.join(held)}, until the job ends or is cancelled; a job leaves regions to others by "
        "regions.max, regions.rollout or regions.forbid, and a coordinator lets more than "
        f"{state.settings.jobs_per_region} share cores by --jobs-per-region)"
    )


def reserved(state: State, job_id: str, placement: PlacedRoles) -> Mapping[str, tuple[int, ...]] | None:
    """Return the indices of the devices that each task of a placement gets, by task id.

    None if a region has fewer free devices than the job needs there, or is not ready.
    """
    request = state.jobs[job_id].request
    found: dict[str, tuple[int, ...]] = {}
    for region in sorted(placement.regions):
        if not state.regions[region].connected:
            return None
        wants = {trainer_task_id(job_id): request.trainer_devices} if region == placement.trainer_region else {}
        wants |= {
            rollout_task_id(job_id, region, index): request.worker_devices
            for index in range(placement.num_rollout_workers.get(region, 0))
        }
        free, usable = free_devices(state, region), usable_devices(state, region)
        if not DeviceCount(len(free), len(usable)).has_room(sum(wants.values())):
            return None
        found |= _shared_out([device.index for device in free], wants, trainer_task_id(job_id))
    return found


def _shared_out(free: Sequence[int], wants: Mapping[str, int], trainer: str) -> dict[str, tuple[int, ...]]:
    """Give each task the devices that it wants. If there are too few, workers take turns on what the trainer leaves."""
    if sum(wants.values()) <= len(free):
        left = iter(free)
        return {task_id: tuple(islice(left, number)) for task_id, number in wants.items()}
    own = wants.get(trainer, 0)
    turns = cycle(free[own:] or free)
    return {
        # A task that wants more than there are gets each once.
        task_id: tuple(free[:own]) if task_id == trainer else tuple(dict.fromkeys(islice(turns, number)))
        for task_id, number in wants.items()
    }
