"""Tasks whose machine or devices are gone get others of their region, while their job goes on.

A rollout worker that could not be started again for that reason is moved as soon as its region has room. A trainer is
moved when it is to start again; until there is room for it, its job waits. A job that has not trained is planned again
instead.
"""

from dataclasses import replace

from coordinator.events import FleetEventKind
from coordinator.machine.draft import Draft
from coordinator.machine.reservations import held_places, reserved, usable_devices
from coordinator.machine.shares import turns_with
from coordinator.state import Job, PlacedProcesses, State, TaskStatus
from periplus.values.machine import MachineDevices
from periplus.values.task import FailureCause, Role, TaskState


def is_lost(state: State, status: TaskStatus) -> bool:
    """Return whether a machine or a device of a task is not there any more, as its region said last."""
    region = state.regions[status.region]
    names = {machine.name for machine in region.hello.inventory.usable}
    gone = any(place.machine not in names for place in status.places)
    return region.connected and (gone or not set(held_places(status)) <= usable_devices(state, status.region).keys())


def move_lost(draft: Draft, job: Job, *, has_news: bool = False) -> None:
    """Move the tasks of a placed job that wait for other devices, as far as there is room.

    With `has_news` a region has just told of its devices, so that those which a task had may work again.
    """
    if not job.has_trained or job.placement is None or job.cancelling or job.request.plan_json:
        return
    for task_id, status in job.tasks.items():
        if status.process.by_turns or not _waits(draft.state, job, status):
            continue
        moved = moved_job(draft.state, draft.state.jobs[job.job_id], task_id, may_stay=has_news)
        if moved is not None:
            draft.put_job(moved)
            places = " and ".join(place.machine for place in moved.tasks[task_id].places)
            usable = usable_devices(draft.state, status.region)
            gone = dict.fromkeys(place[0] for place in held_places(status) if place not in usable)
            why = f", since devices of {' and '.join(gone)} are gone" if gone else ""
            text = f"{task_id} starts again on {places}{why}"
            draft.tell(FleetEventKind.TASK_MOVED, text, job_id=job.job_id, region=status.region)


def waits_for_devices(state: State, job: Job) -> bool:
    """Return whether the trainer of a job is not started again before its region has other devices for it."""
    return job.has_trained and job.trainer is not None and job.trainer.report is None and is_lost(state, job.trainer)


def worker_waits(job: Job, status: TaskStatus) -> bool:
    """Return whether a rollout worker has failed, and starts again once its region has other devices for it."""
    report, request = status.report, job.request
    is_moved = job.has_trained and not job.cancelling and not request.plan_json and status.role is Role.ROLLOUT
    return is_moved and report is not None and report.state is TaskState.FAILED and report.cause is FailureCause.DEVICE


def _waits(state: State, job: Job, status: TaskStatus) -> bool:
    if status.role is Role.TRAINER:
        return status.report is None and is_lost(state, status)
    return worker_waits(job, status)


def moved_job(state: State, job: Job, task_id: str, *, may_stay: bool = False) -> Job | None:
    """Return a job one of whose tasks has other devices of its region and no report yet; None if there is no room.

    Devices that its region counts as usable are not given to it again, unless it `may_stay`: its agent knew better.
    """
    status = job.tasks[task_id]
    tasks = {each: other for each, other in job.tasks.items() if each != task_id}
    if status.role is Role.TRAINER:
        tasks = {each: other for each, other in tasks.items() if not other.process.by_turns}
    reports = {each: report for each, report in state.regions[status.region].tasks.items() if each in tasks}
    regions = {**state.regions, status.region: replace(state.regions[status.region], tasks=reports)}
    without = replace(state, regions=regions, jobs={**state.jobs, job.job_id: replace(job, tasks=tasks)})
    usable = usable_devices(state, status.region)
    gone = [place for place in held_places(status) if place not in usable]
    gone = gone or ([] if may_stay else held_places(status))
    avoided = job.avoided | {(status.region, machine, index) for machine, index in gone}
    alone = PlacedProcesses(processes=(status.process,), plan_json="")
    found = reserved(without, job.job_id, alone, avoided)
    if found is None:
        return None
    (places,) = found.values()
    moved = {task_id: _at(status, places)}
    if status.role is Role.TRAINER:
        turns = turns_with({each: other.process for each, other in job.tasks.items()}, places)
        moved |= {each: _at(job.tasks[each], of_worker) for each, of_worker in turns.items()}
    return replace(job, tasks={**job.tasks, **moved})


def _at(status: TaskStatus, places: tuple[MachineDevices, ...]) -> TaskStatus:
    first, *others = places
    return replace(status, machine=first.machine, devices=first.devices, others=tuple(others), report=None)
