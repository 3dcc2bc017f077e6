"""What operators, the planner and the ends of trainers mean for a job, from its submission to its end."""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from coordinator.events import FleetEventKind, JobCancelled, JobSubmitted, PlanFinished, PlannerFailed
from coordinator.machine.draft import Draft
from coordinator.machine.growth import grow
from coordinator.machine.links import stop_waiting
from coordinator.machine.moves import moved_job
from coordinator.machine.reservations import (
    all_are_free,
    avoiding_task,
    device_counts,
    overfull_order,
    placed_tasks,
    reserved,
)
from coordinator.state import (
    INFEASIBLE_PREFIX,
    Job,
    JobState,
    PlacedProcesses,
    find_job,
    resume_advice,
    taken_back,
    trainer_task_id,
    waits_until_s,
)
from periplus.errors import Conflict, StateError
from periplus.process.backoff import Backoff
from periplus.values.machine import DeviceCount
from periplus.values.policy import Policy
from periplus.values.replica_url import is_replica
from periplus.values.task import ENDED, FailureCause, TaskReport, TaskState
from planner.answer.outcome import Infeasible

RESTART_PAUSE = Backoff(first_s=1.0, longest_s=60.0)
"""Pauses before a trainer is started again. Chosen by hand: a start takes some ten seconds."""

_FORWARD_STATES = (JobState.PLANNED, JobState.STARTING, JobState.RUNNING)


def advance(draft: Draft, job_id: str, to: JobState) -> None:
    """Move a placed job forward to the state `to`, through every state between; never move it back."""
    state = draft.state.jobs[job_id].state
    if state in _FORWARD_STATES:
        for between in _FORWARD_STATES[_FORWARD_STATES.index(state) + 1 : _FORWARD_STATES.index(to) + 1]:
            job = draft.state.jobs[job_id]
            # Why it waited or started again says nothing any more once it runs.
            draft.move_job(job_id, between, job.reason if job.cancelling or between is not JobState.RUNNING else "")


def end(draft: Draft, job_id: str, to: JobState, reason: str, now_s: float) -> None:
    """End a job."""
    job = replace(draft.state.jobs[job_id], ended_at_s=now_s)
    draft.state = replace(draft.state, jobs={**draft.state.jobs, job_id: job})
    draft.move_job(job_id, to, reason)
    stop_waiting(draft, job_id)
    heard = {other: at_s for other, at_s in draft.state.heard_at_s.items() if other != job_id}
    draft.state = replace(draft.state, heard_at_s=heard)
    # Drop the reports of the job's ended tasks from the regions; running tasks stay listed until they have ended.
    for name, region in draft.state.regions.items():
        running = {
            task_id: report
            for task_id, report in region.tasks.items()
            if report.job_id != job_id or report.state not in ENDED
        }
        draft.put_region(name, replace(region, tasks=running))


def end_by_trainer(draft: Draft, job: Job, report: TaskReport, now_s: float) -> None:
    """Take note that the trainer's process has ended: the job ends, or its trainer starts again in a new fork."""
    assert job.trainer is not None
    where, ended, message = f"the trainer in {job.trainer.region}", report.state, report.message
    # A trainer that saved its state and ended, or was stopped by its agent, has done what the cancellation wanted.
    if job.cancelling and ended is not TaskState.FAILED:
        how = f", but {where} did not end cleanly: {message}" if message and job.files else ""
        end(draft, job.job_id, JobState.CANCELLED, f"cancelled by the operator{how}; {resume_advice(job)}", now_s)
        return
    # A short job may end before it was ever reported as running, and only a running job may succeed.
    if ended is TaskState.SUCCEEDED:
        advance(draft, job.job_id, JobState.RUNNING)
        end(draft, job.job_id, JobState.SUCCEEDED, "", now_s)
        return
    if ended is TaskState.FAILED:
        why = f"{where} failed: {message}"
    else:
        why = f"{where} stopped{f': {message}' if message else ', as when its agent is shut down'}"
    # One whose devices are gone may have others.
    may_run = not report.cause.is_final or (
        report.cause is FailureCause.DEVICE and moved_job(draft.state, job, report.task_id) is not None
    )
    if not job.cancelling and may_run and _starts_again(draft, job, ended, why, now_s):
        return
    if report.cause is FailureCause.OWNER and job.replica is not None and not job.cancelling:
        _plan_anew_from_replica(draft, avoiding_task(job, job.trainer, report), job.replica, why)
        return
    log_file = f"; its log is {job.files.log}" if job.files and ended is TaskState.FAILED else ""
    end(draft, job.job_id, JobState.FAILED, f"{why}{log_file}; {resume_advice(job)}", now_s)


def _starts_again(draft: Draft, job: Job, ended: TaskState, why: str, now_s: float) -> bool:
    """Let a trainer that has ended start again from its newest checkpoint, in a new fork; return False if it may not.

    Restarts are counted since the last checkpoint: a trainer that comes further each time may go on.
    """
    files, request = job.files, job.request
    if files is None or not request.max_trainer_restarts:
        return False
    started_at = request.resume_policy.version if request.resume_policy else 0
    # One that was lost with its agent has said nothing of its checkpoints.
    reached = files.checkpoint or (job.policy if ended is TaskState.STOPPED else None)
    has_advanced = reached is not None and reached.version > started_at
    restarts = 1 + (0 if has_advanced else job.trainer_restarts)
    if restarts > request.max_trainer_restarts:
        return False
    point = files.checkpoint or request.resume_policy
    # A trainer that ended before it had fetched its replica has left nothing to go on from.
    fetches = is_replica(request.resume_from) and files.checkpoint is None
    resume_policy = Policy(job.fork, point.version) if point else None
    trainer_id = trainer_task_id(job.job_id)
    place = f"checkpoint {files.checkpoint}" if files.checkpoint else "its newest checkpoint"
    times = f"start {restarts} of {request.max_trainer_restarts} without a new checkpoint"
    again = replace(
        job,
        request=replace(
            request, resume_from=request.resume_from if fetches else files.run_dir, resume_policy=resume_policy
        ),
        fork=job.fork + 1,
        trainer_key="",
        phase="",
        last_files=files,
        trainer_restarts=restarts,
        restart_at_s=now_s + RESTART_PAUSE.pause_s(restarts - 1),
        tasks={**job.tasks, trainer_id: replace(job.tasks[trainer_id], report=None)},
    )
    draft.put_job(again)
    draft.move_job(job.job_id, JobState.PLANNED, f"{why}; it starts again from {place}, {times}")
    return True


def start_due(draft: Draft, job: Job, now_s: float) -> None:
    """Let the trainer of a job start if its pause is over."""
    if job.restart_at_s is not None and now_s >= job.restart_at_s:
        draft.put_job(replace(job, restart_at_s=None))


def give_up_absent(draft: Draft, job: Job, now_s: float) -> None:
    """End a job whose trainer's region has been away for longer than the job allows."""
    until_s = waits_until_s(draft.state, job)
    if job.ended or job.placement is None or until_s is None or now_s < until_s:
        return
    why = (
        f"{job.placement.trainer_region}, the region of its trainer, has been away for "
        f"{job.request.max_region_absence_s:.0f} s (failure.max_region_absence_s)"
    )
    if job.replica is not None and not job.cancelling:
        _plan_anew_from_replica(draft, job, job.replica, why)
        return
    why = f"{why}; {resume_advice(job)}"
    end(draft, job.job_id, JobState.CANCELLED if job.cancelling else JobState.FAILED, why, now_s)


def _plan_anew_from_replica(draft: Draft, job: Job, replica: Policy, why: str) -> None:
    """Let a job go on from its newest replica on the regions that are there, as the planner places it.

    Its trainer may still run in the region that is away. What it does there since the replica is given up: the region
    ends it when its agent is back, since nothing of the job is placed there any more.
    """
    request = replace(job.request, resume_from=job.replica_url, resume_policy=Policy(job.fork, replica.version))
    again = replace(
        taken_back(job),
        request=request,
        policy=None,
        last_record=None,
        measured={},
        num_measured=0,
        phase="",
        last_files=None,
        trainer_restarts=0,
        restart_at_s=None,
        infeasible_on={},
        conflict="",
    )
    draft.put_job(again)
    draft.move_job(job.job_id, JobState.PENDING, f"{why}; it goes on elsewhere from {job.replica_url}")


def submit(draft: Draft, event: JobSubmitted, now_s: float) -> None:
    """Add a job, or the next fork of one that has ended."""
    if event.request_id in draft.state.requests:  # a repeated request: the job exists already
        return
    request = event.request
    job_id = request.resume_job_id or event.job_id
    before = draft.state.jobs.get(job_id)
    if before and not before.ended:
        raise Conflict(f"job {job_id} is still {before.state}; cancel it before resuming it")
    # A resumed job needs a fork above all that wrote to its directory, and above all that this coordinator started.
    fork = 0
    if request.resume_policy:
        fork = max(request.resume_policy.fork, before.fork if before else 0) + 1
    # A resumed job is new in all but its id and its byte counts, and moves to the end of the queue.
    jobs = {other: job for other, job in draft.state.jobs.items() if other != job_id}
    draft.state = replace(draft.state, jobs=jobs, requests={**draft.state.requests, event.request_id: job_id})
    sent = before.sent if before else {}
    draft.put_job(Job(job_id=job_id, request=request, fork=fork, submitted_at_s=now_s, sent=sent))
    what = (
        f"resumed from {request.resume_from} in fork {fork}" if request.resume_from else f"submitted as {request.name}"
    )
    draft.tell(FleetEventKind.JOB_SUBMITTED, what, job_id=job_id, actor=event.actor)


def cancel(draft: Draft, event: JobCancelled, now_s: float) -> None:
    """End a job that has not run; let the trainer of another one save its state first."""
    job = find_job(draft.state, event.job_id)
    job_id = job.job_id
    # A repeated cancellation is no error, so that a client may send it again when an answer was lost.
    if job.state is JobState.CANCELLED:
        return
    if job.ended:
        raise StateError(f"job {job_id} has already {job.state}; there is nothing to cancel")
    draft.tell(FleetEventKind.CANCELLATION_ASKED, "an operator cancels it", job_id=job_id, actor=event.actor)
    trainer = job.trainer
    # No trainer runs, so that no state needs to be saved.
    if trainer is None or trainer.report is None:
        when = "while its trainer did not run" if job.files else "before it ran"
        end(draft, job_id, JobState.CANCELLED, f"cancelled by the operator {when}; {resume_advice(job)}", now_s)
    # The order to stop goes out with the desired tasks; the job ends when the trainer reports its end.
    elif draft.state.regions[trainer.region].connected:
        waits = f"cancelling: the trainer in {trainer.region} saves its state"
        draft.put_job(replace(job, cancelling=True, reason=waits))
    # The order waits for the region to return. A second cancellation gives up the trainer's last state.
    elif not job.cancelling:
        waits = f"cancelling: waits for {trainer.region}, which is disconnected; cancel again to give it up"
        draft.put_job(replace(job, cancelling=True, reason=waits))
    else:
        given_up = f"cancelled by the operator while {trainer.region} was disconnected; {resume_advice(job)}"
        end(draft, job_id, JobState.CANCELLED, given_up, now_s)


def plan_finished(draft: Draft, event: PlanFinished, now_s: float) -> None:
    """Commit a plan whose devices are still free, or end the job if nothing can help it."""
    draft.state = replace(draft.state, planning=None)
    if event.new_regions:
        grow(draft, event)
        return
    job = draft.state.jobs.get(event.job_id)
    if job is None or job.state is not JobState.PENDING:
        return
    free = device_counts(draft.state)
    match event.outcome:
        case PlacedProcesses() as placement:
            devices = reserved(draft.state, job.job_id, placement, job.avoided)
            # If devices were taken meanwhile, the job stays pending and `_settle_jobs` plans it again.
            if devices is None and event.free == free:
                # Nothing has changed, so the next plan would be the same.
                _does_not_fit(draft, job, free, "its plan does not fit the devices that it was made for", now_s)
            elif devices is not None and (why := overfull_order(draft.state, job, placement)):
                end(draft, job.job_id, JobState.FAILED, why, now_s)
            elif devices is not None:
                tasks = placed_tasks(job.job_id, placement, devices)
                draft.put_job(replace(job, placement=placement, tasks=tasks, planned_on=event.free))
                draft.move_job(job.job_id, JobState.PLANNED)
        case Infeasible(conflict=conflict):
            # The proof is about the devices that were free then. It ends the job only if no device is in use.
            if event.free == free:
                _does_not_fit(draft, job, free, conflict, now_s)
        case PlannerFailed(reason):
            end(draft, job.job_id, JobState.FAILED, f"the planner failed: {reason}", now_s)
        case _:
            assert_never(event.outcome)


def _does_not_fit(draft: Draft, job: Job, free: Mapping[str, DeviceCount], conflict: str, now_s: float) -> None:
    """End a job that does not fit even if all devices are free; let another one wait for those in use."""
    if all_are_free(draft.state):
        advice = f"; {resume_advice(job)}" if job.replica else ""
        end(draft, job.job_id, JobState.FAILED, f"{INFEASIBLE_PREFIX}{conflict}{job.refusals}{advice}", now_s)
    else:
        draft.put_job(replace(job, infeasible_on=free, conflict=conflict))
