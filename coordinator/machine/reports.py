"""What agents report of tasks, records, keys and bytes."""

from dataclasses import replace
from typing import assert_never

from coordinator.events import (
    CertificateRequested,
    FleetEventKind,
    HeartbeatSeen,
    Publish,
    SendCertificate,
)
from coordinator.machine.certificates import answer_to
from coordinator.machine.draft import Draft
from coordinator.machine.jobs import advance, end, end_by_trainer
from coordinator.machine.moves import move_lost, worker_waits
from coordinator.machine.reservations import avoiding_task
from coordinator.state import Job, JobState, SentBytes, TaskStatus, resume_advice, taken_back
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.replica_url import NO_REPLICA
from periplus.values.task import ENDED, Role, TaskReport, TaskState
from periplus.view.terms import mean_after


def count_sent(draft: Draft, name: str, event: HeartbeatSeen) -> None:
    """Take note of the bytes that an agent has sent."""
    region = draft.state.regions[name]
    draft.put_region(name, replace(region, sent_bytes=dict(event.sent_bytes)))
    boot_id = region.hello.boot_id
    for job_id, counters in event.job_sent_bytes.items():
        job = draft.state.jobs.get(job_id)
        if job is None:
            continue  # the job was submitted to an earlier coordinator process
        # The agent reports sums since its start; `counted` carries them over its restarts.
        none = SentBytes(boot_id=boot_id, counter_bytes=0)
        before = job.sent.get(name, {})
        seen = {dst: before.get(dst, none).counted(boot_id, n) for dst, n in counters.items()}
        draft.put_job(replace(job, sent={**job.sent, name: {**before, **seen}}))


def take_report(draft: Draft, name: str, report: TaskReport, now_s: float) -> None:
    """Take note of a task's state."""
    # The region's list of tasks keeps this report, unless it is the end of a task of a job that is not live.
    region, job = draft.state.regions[name], draft.state.jobs.get(report.job_id)
    live = job is not None and not job.ended
    others = {task_id: other for task_id, other in region.tasks.items() if task_id != report.task_id}
    seen = {report.task_id: report} if live or report.state not in ENDED else {}
    draft.put_region(name, replace(region, tasks=others | seen))
    # The job takes note of the report only if it is news about a task of its current fork, placed in this region.
    status = job.tasks.get(report.task_id) if job and report.fork == job.fork else None
    if job is None or status is None or status.region != name or status.report == report:
        return
    if job.ended:
        draft.put_job(replace(job, tasks={**job.tasks, report.task_id: _after_the_job(status, report)}))
        return
    if status.ended:
        return
    if report.cause.is_misplaced and not job.has_trained and not job.cancelling and not job.request.plan_json:
        draft.put_job(avoiding_task(taken_back(job), status, report))
        draft.move_job(job.job_id, JobState.PENDING)
        return
    draft.put_job(replace(job, tasks={**job.tasks, report.task_id: replace(status, report=report)}))
    advance(draft, job.job_id, JobState.STARTING)
    if report.message and report.state in (TaskState.FAILED, TaskState.STARTING):
        _tell_failure(draft, job, status.role, name, report)
    match status.role:
        case Role.TRAINER:
            _trainer_reported(draft, job.job_id, report, now_s)
        case Role.ROLLOUT:
            _rollout_reported(draft, job.job_id, report, now_s)
        case _:
            assert_never(status.role)


def _tell_failure(draft: Draft, job: Job, role: Role, name: str, report: TaskReport) -> None:
    """Tell operators that a process failed, and those who watch the job if it was a worker.

    What the end of a trainer means for its job is told anyway.
    """
    # With its number, since watchers are not told the same text twice.
    again = f" and is started again (restart {report.restarts + 1})" if report.state is TaskState.STARTING else ""
    text = f"{report.task_id} failed{again}: {report.message}"
    draft.tell(FleetEventKind.TASK_FAILED, text, job_id=job.job_id, region=name)
    if role is Role.ROLLOUT:
        policy = job.policy or Policy(job.fork, 0)
        notice = Record(kind=RecordKind.NOTICE, policy=policy, time_s=0.0, text=text)
        draft.effects.append(Publish(job.job_id, notice))


def _after_the_job(status: TaskStatus, report: TaskReport) -> TaskStatus:
    """Return the status of a task that outlived its job: how it ended, and where a trainer saved its state."""
    if report.state in ENDED and not status.ended:
        return replace(status, report=report)
    if status.report is not None and report.files is not None:
        return replace(status, report=replace(status.report, files=report.files))
    return status


def _trainer_reported(draft: Draft, job_id: str, report: TaskReport, now_s: float) -> None:
    if report.state is TaskState.RUNNING:
        advance(draft, job_id, JobState.RUNNING)
    elif report.state in ENDED:
        end_by_trainer(draft, draft.state.jobs[job_id], report, now_s)


def _rollout_reported(draft: Draft, job_id: str, report: TaskReport, now_s: float) -> None:
    job = draft.state.jobs[job_id]
    move_lost(draft, job)
    rollouts = [status for status in draft.state.jobs[job_id].tasks.values() if status.role is Role.ROLLOUT]
    # A failed worker was restarted by its agent as often as that may help. As long as one is left, the job goes on.
    # So it does while one waits for other devices.
    if any(worker_waits(job, status) for status in rollouts):
        return
    if all(status.report is not None and status.report.state is TaskState.FAILED for status in rollouts):
        log_file = f"; its log is {report.files.log}" if report.files else ""
        advice = f"; {resume_advice(job)}" if job.files else ""
        end(
            draft,
            job_id,
            JobState.FAILED,
            f"no rollout worker is left; the last one failed: {report.message}{log_file}{advice}",
            now_s,
        )


def take_record(draft: Draft, name: str, job_id: str, record: Record, now_s: float) -> None:
    """Take note of a trainer's record, and publish it."""
    job = draft.state.jobs.get(job_id)
    if job is None or job.ended or job.trainer is None or job.trainer.region != name or job.last_record == record:
        return
    draft.state = replace(draft.state, heard_at_s={**draft.state.heard_at_s, job_id: now_s})
    # Records may arrive again or late after a broken session; the version that an operator sees never goes back.
    policy = max(job.policy, record.policy) if job.policy else record.policy
    notice = record.text if record.kind is RecordKind.NOTICE else job.notice
    draft.put_job(replace(_after(job, record), policy=policy, last_record=record, notice=notice))
    if record.kind is RecordKind.REPLICA and job.request.replicate != NO_REPLICA:
        draft.put_job(replace(draft.state.jobs[job_id], replica=record.policy))
    advance(draft, job_id, JobState.RUNNING)
    draft.effects.append(Publish(job_id, record))


def _after(job: Job, record: Record) -> Job:
    """Return the job with the trainer's phase after this record, and with its means if it is one of a step.

    A step record ends an earlier phase, such as an evaluation.
    """
    match record.kind:
        case RecordKind.PHASE:
            return replace(job, phase=record.text)
        case RecordKind.STEP:
            means = mean_after(job.measured, job.num_measured, record.values)
            return replace(job, phase="training", measured=means, num_measured=job.num_measured + 1)
        case _:
            return job


def certify(draft: Draft, request: CertificateRequested) -> None:
    """Answer a trainer's request for a certificate."""
    answer, region = answer_to(draft.state, request), request.stamp.region
    if isinstance(answer, SendCertificate):
        text = f"fork {request.fork}, key {request.public_key.hex()[:16]}"
        draft.tell(FleetEventKind.TRAINER_CERTIFIED, text, job_id=request.job_id, region=region)
        draft.put_job(replace(draft.state.jobs[request.job_id], trainer_key=request.public_key.hex()))
    draft.effects.append(answer)
