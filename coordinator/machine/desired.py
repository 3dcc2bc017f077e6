"""The tasks that each region should run now, as the placed jobs say."""

from collections import Counter
from math import ceil

from coordinator.machine.moves import waits_for_devices
from coordinator.machine.reservations import Place, held_places
from coordinator.state import Job, RegionMode, State, TaskStatus, dialled_address, live_jobs
from periplus.values.machine import Pace
from periplus.values.task import AssignedTask, Role


def desired_by_region(state: State) -> dict[str, tuple[AssignedTask, ...]]:
    """Return the tasks that each region should run now: those of live jobs that are placed there and have not ended."""
    found: dict[str, list[AssignedTask]] = {}
    for job in live_jobs(state):
        for task_id, status in sorted(job.tasks.items()):
            if not status.ended and not _is_withheld(state, job, status):
                found.setdefault(status.region, []).append(_task(state, job, task_id, status))
    return {region: tuple(tasks) for region, tasks in found.items()}


def _is_withheld(state: State, job: Job, status: TaskStatus) -> bool:
    if status.role is Role.TRAINER:
        return job.restart_at_s is not None or waits_for_devices(state, job)
    return state.regions[status.region].mode is RegionMode.DRAINED


def _task(state: State, job: Job, task_id: str, status: TaskStatus) -> AssignedTask:
    assert job.placement is not None
    return AssignedTask(
        task_id=task_id,
        job_id=job.job_id,
        role=status.role,
        job_json=job.request.job_json,
        trainer_region=job.placement.trainer_region,
        trainer_gateway=dialled_address(state, job.placement.trainer_region),
        fork=job.fork,
        resume_from=job.request.resume_from,
        plan_json=job.placement.plan_json,
        # Only the trainer is told to stop. Its rollout workers run until it has ended, when no task is desired any
        # more.
        stopping=job.cancelling and status.role is Role.TRAINER,
        authority_key=state.authority_key,
        allows_other_problems=job.request.allows_other_problems,
        machine=status.machine,
        devices=status.devices,
        others=status.others,
        model_config=job.request.model_config if status.role is Role.TRAINER else "",
        engine=status.process.engine,
        tensor=status.process.tensor,
        data=status.process.data,
        pace=_pace(job, status),
        by_turns=_takes_turns(job, status),
        is_restart=job.last_files is not None and status.role is Role.TRAINER,
        operator=job.request.operator,
    )


def _takes_turns(job: Job, status: TaskStatus) -> bool:
    trains = status.role is Role.TRAINER
    return any(each.process.by_turns for each in job.tasks.values()) if trains else status.process.by_turns


def _pace(job: Job, status: TaskStatus) -> Pace | None:
    """Return the pace of a process, which has an equal part of the time of each emulated device that it shares.

    Only processes of one job share an accelerator. The busiest of a process's devices decides. In its turn a process
    shares them only with those whose turn it is, too.
    """
    if status.process.pace is None:
        return None
    num_processes = Counter[Place]()
    for each in job.tasks.values():
        if each.region == status.region and each.process.by_turns == status.process.by_turns:
            places = held_places(each)
            for place in places:
                # A trainer with fewer devices than it has processes shares them with itself.
                num_processes[place] += ceil(each.process.num_devices / len(places))
    return status.process.pace.shared(max(num_processes[place] for place in held_places(status)))
