"""All decisions of the coordinator, as one pure state machine: `step(state, event, now_s) -> (state, effects)`.

It has no clock, socket, file or randomness. The rules are:

- Sessions: a join raises the region's epoch and fences the session before. Another agent may take over a region only
  while the previous agent is disconnected. A message of another epoch, or with a sequence number that was already seen,
  changes nothing.
- Links: every directed pair of ready regions is probed once, with one probe at a time in the whole fleet. A pair whose
  probe gets no answer is given up for `probe_retry_s`, so that one bad link delays a job but never blocks it.
- Jobs: a pending job is planned when enough regions have a free device (`reservations.py`), and their links are
  measured or given up. Earlier jobs come first, but a job that must wait does not block later ones. A plan is a
  proposal: it is committed only if the devices that it needs are still free; otherwise the job is planned again. A job
  that is infeasible on all devices fails; one that is infeasible on the free ones waits for those in use. If a
  process cannot start where it was placed before the trainer has, the job is planned again without that place.
- The end of the trainer is the end of the job. Rollout workers may come and go; the job fails for lack of them only
  when all have failed permanently. A trainer is never started twice, because two trainers would write the same fork: if
  its agent lost it, the job fails with a reason that says how to resume it.
- A trainer signs its weights with its own key, which is certified once for each fork (`certificates.py`).
- A region that falls silent is only marked as disconnected: it keeps its tasks. A restarted coordinator, which has lost
  its state, sends no orders to a region that runs a job unknown to it, so that this job runs to its end.

After every accepted event `_settle` does what follows from the new state: it orders plans, probes and desired tasks.
An error (Conflict, NotFound, StateError) leaves the caller's state unchanged.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from coordinator.certificates import answer_to
from coordinator.events import (
    AgentEvent,
    CertificateRequested,
    Effect,
    Event,
    FenceSession,
    HeartbeatSeen,
    InventoryChanged,
    JobCancelled,
    JobSubmitted,
    LinkMeasured,
    PlanFinished,
    PlannerFailed,
    Publish,
    RegionJoined,
    RegionLeft,
    RunPlanner,
    SendCertificate,
    SendDesired,
    SendProbe,
    Stamp,
    StepRecorded,
    TaskReported,
    Ticked,
)
from coordinator.reservations import (
    Misplaced,
    all_are_free,
    avoiding,
    avoiding_task,
    device_counts,
    ending_words,
    forgiven,
    has_more_now,
    overfull_order,
    reserved,
    waits_for,
)
from coordinator.state import (
    INFEASIBLE_PREFIX,
    Hello,
    Job,
    JobState,
    MeasuredLink,
    PlacedProcesses,
    Probe,
    RegionState,
    SentBytes,
    State,
    TaskStatus,
    check_transition,
    desired_tasks,
    find_job,
    live_jobs,
    ready_regions,
    resume_advice,
    runs_unknown_job,
    taken_back,
    trainer_task_id,
    unsettled_pairs,
    without_oldest_ended,
)
from periplus.errors import Conflict, StateError
from periplus.values.machine import DeviceCount
from periplus.values.record import Record, RecordKind
from periplus.values.task import ENDED, Role, TaskReport, TaskState
from planner.answer.outcome import Infeasible

# ---- the machine -----------------------------------------------------------------------------------------------------


def step(state: State, event: Event, now_s: float) -> tuple[State, tuple[Effect, ...]]:
    """Return the next state and the effects that the caller must perform, in order.

    Raises: Conflict if another agent serves the region, the job to resume still runs or an id is ambiguous; NotFound
    for an unknown job; StateError for a cancellation of a job that has ended. The caller's state is then unchanged.
    """
    draft = _Draft(state)
    match event:
        case (
            HeartbeatSeen()
            | LinkMeasured()
            | InventoryChanged()
            | TaskReported()
            | StepRecorded()
            | CertificateRequested()
        ):
            # A message that is not accepted changes nothing, not even the time at which the region was last seen.
            if not _accept(draft, event.stamp, now_s):
                return state, ()
            _agent_event(draft, event, now_s)
        case RegionJoined():
            _join(draft, event, now_s)
        case RegionLeft(region, epoch):
            if not _is_open(state, region, epoch):
                return state, ()
            _disconnect(draft, region)
        case JobSubmitted():
            _submit(draft, event, now_s)
        case JobCancelled(prefix):
            _cancel(draft, prefix)
        case PlanFinished():
            _plan_finished(draft, event)
        case Ticked():
            _tick(draft, now_s)
        case _:
            assert_never(event)
    # An error above leaves the draft behind, so that the caller's state is unchanged.
    _settle(draft, now_s)
    return draft.state, tuple(draft.effects)


class _Draft:
    """The state that one step builds, and its effects. State values are replaced, never changed."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.effects: list[Effect] = []

    def put_region(self, name: str, region: RegionState) -> None:
        self.state = replace(self.state, regions={**self.state.regions, name: region})

    def put_job(self, job: Job) -> None:
        before = self.state.jobs.get(job.job_id)
        self.state = replace(self.state, jobs={**self.state.jobs, job.job_id: job})
        # Watchers are told of changes of state and reason only; a job is also replaced for counters and reports.
        if before is None or (before.state, before.reason) != (job.state, job.reason):
            self.effects.append(Publish(job.job_id, job))

    def move_job(self, job_id: str, to: JobState, reason: str = "") -> None:
        job = self.state.jobs[job_id]
        check_transition(job_id, job.state, to)
        self.put_job(replace(job, state=to, reason=reason))


# ---- sessions --------------------------------------------------------------------------------------------------------


def _is_open(state: State, name: str, epoch: int) -> bool:
    return name in state.regions and state.regions[name].epoch == epoch


def _accept(draft: _Draft, stamp: Stamp, now_s: float) -> bool:
    """Record that a message arrived and return True; return False if it is a repeat or of a fenced session."""
    if not _is_open(draft.state, stamp.region, stamp.epoch):
        return False
    region = draft.state.regions[stamp.region]
    if stamp.sequence <= region.last_sequence:
        return False
    # Any message shows that the agent is there, also after it was counted as silent.
    draft.put_region(stamp.region, replace(region, last_sequence=stamp.sequence, last_seen_s=now_s, connected=True))
    return True


def _join(draft: _Draft, event: RegionJoined, now_s: float) -> None:
    hello = event.hello
    before = draft.state.regions.get(hello.region)
    if before and before.connected and before.hello.boot_id != hello.boot_id:
        raise Conflict(
            f"region {hello.region} is already served by the agent on {before.hello.inventory.own.name} (last heard "
            f"{now_s - before.last_seen_s:.0f} s ago); start this one with another --region, or stop that one first"
        )
    # The newer session replaces the older one, and the answer to a probe of the older one will not come.
    if before:
        draft.effects.append(FenceSession(hello.region, before.epoch))
        _forget_probe_of(draft, hello.region)
    # The new session was sent no tasks yet (`sent` is None), so that `_settle` sends them; revisions go on rising.
    region = RegionState(
        hello=hello,
        epoch=before.epoch + 1 if before else 1,
        connected=True,
        last_seen_s=now_s,
        last_sequence=event.sequence,
        revision=before.revision if before else 0,
    )
    draft.put_region(hello.region, region)
    # Links of this region that were given up are probed again.
    unmeasured = {pair: at_s for pair, at_s in draft.state.unmeasured.items() if hello.region not in pair}
    draft.state = replace(draft.state, unmeasured=unmeasured)
    _take_inventory(draft, hello, rebooted=before is not None and before.hello.boot_id != hello.boot_id)


def _take_inventory(draft: _Draft, hello: Hello, rebooted: bool) -> None:
    """Compare the tasks that the agent has with those that it was given.

    The report of a lost rollout worker is forgotten, so that the worker is started again. A lost trainer ends its job.
    """
    present = {report.task_id for report in hello.tasks}
    # Forget the reports of rollout workers that the agent lost, so that they count as not started.
    for job in live_jobs(draft.state):
        tasks = {
            task_id: replace(status, report=None) if _may_start_again(status, rebooted) else status
            for task_id, status in job.tasks.items()
            if status.region == hello.region and task_id not in present
        }
        draft.put_job(replace(job, tasks={**job.tasks, **tasks}))
    # The present tasks come before the lost trainers: such a report may end a job, which then is not live below.
    for report in hello.tasks:
        _report(draft, hello.region, report)
    for job in live_jobs(draft.state):
        trainer = job.trainer
        if trainer and trainer.region == hello.region and trainer.report and trainer_task_id(job.job_id) not in present:
            lost = f"the agent of {hello.region} came back without the trainer"
            _end_by_trainer(draft, job, TaskState.STOPPED, lost)


def _may_start_again(status: TaskStatus, rebooted: bool) -> bool:
    return status.role is Role.ROLLOUT and (rebooted or not status.ended)


def _disconnect(draft: _Draft, name: str) -> None:
    draft.put_region(name, replace(draft.state.regions[name], connected=False))
    _forget_probe_of(draft, name)


def _forget_probe_of(draft: _Draft, name: str) -> None:
    probe = draft.state.probe
    if probe and name in (probe.src_region, probe.dst_region):
        draft.state = replace(draft.state, probe=None)


def _tick(draft: _Draft, now_s: float) -> None:
    settings = draft.state.settings
    for name, region in draft.state.regions.items():
        if region.connected and now_s - region.last_seen_s > settings.silent_after_s:
            _disconnect(draft, name)
    probe = draft.state.probe
    # A lost probe would block all others, since only one runs at a time.
    if probe and now_s - probe.ordered_at_s >= settings.probe_timeout_s:
        pair = (probe.src_region, probe.dst_region)
        draft.state = replace(draft.state, probe=None, unmeasured={**draft.state.unmeasured, pair: now_s})


# ---- what agents report ----------------------------------------------------------------------------------------------


def _agent_event(draft: _Draft, event: AgentEvent, now_s: float) -> None:
    name = event.stamp.region
    match event:
        case HeartbeatSeen():
            _count_sent(draft, name, event)
        case LinkMeasured():
            _measure(draft, event, now_s)
        case InventoryChanged(_, inventory):
            region = draft.state.regions[name]
            draft.put_region(name, replace(region, hello=replace(region.hello, inventory=inventory)))
            for job in live_jobs(draft.state):
                draft.put_job(forgiven(job, name))
        case TaskReported(_, report):
            _report(draft, name, report)
        case StepRecorded(_, job_id, record):
            _record(draft, name, job_id, record)
        case CertificateRequested():
            _certify(draft, event)
        case _:
            assert_never(event)


def _count_sent(draft: _Draft, name: str, event: HeartbeatSeen) -> None:
    region = draft.state.regions[name]
    draft.put_region(name, replace(region, sent_bytes=dict(event.sent_bytes)))
    boot_id = region.hello.boot_id
    for job_id, counters in event.job_sent_bytes.items():
        job = draft.state.jobs.get(job_id)
        if job is None:
            continue  # the job was submitted to an earlier coordinator process
        # The agent reports sums since its start; `counted` carries them over its restarts.
        none = SentBytes(boot_id=boot_id, counter_bytes=0)
        seen = {(name, dst): job.sent.get((name, dst), none).counted(boot_id, n) for dst, n in counters.items()}
        draft.put_job(replace(job, sent={**job.sent, **seen}))


def _measure(draft: _Draft, event: LinkMeasured, now_s: float) -> None:
    state, pair = draft.state, (event.stamp.region, event.dst_region)
    link = MeasuredLink(rtt_s=event.rtt_s, throughput_bits_per_s=event.throughput_bits_per_s, measured_at_s=now_s)
    # The measurement may be late, of a probe that was given up: the probe that runs now is then left alone.
    under_way = state.probe if state.probe and (state.probe.src_region, state.probe.dst_region) != pair else None
    unmeasured = {other: at_s for other, at_s in state.unmeasured.items() if other != pair}
    draft.state = replace(state, links={**state.links, pair: link}, unmeasured=unmeasured, probe=under_way)


def _report(draft: _Draft, name: str, report: TaskReport) -> None:
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
    if job.ended and status.role is Role.TRAINER and status.report and report.files:
        # A trainer that outlived its job still saves its state; record where. The job's own state stays as it ended.
        status = replace(status, report=replace(status.report, files=report.files))
        draft.put_job(replace(job, tasks={**job.tasks, report.task_id: status}))
    if job.ended or status.ended:
        return
    if report.is_misplaced and not job.has_trained and not job.cancelling and not job.request.plan_json:
        draft.put_job(avoiding_task(taken_back(job), status, report))
        draft.move_job(job.job_id, JobState.PENDING)
        return
    draft.put_job(replace(job, tasks={**job.tasks, report.task_id: replace(status, report=report)}))
    _advance(draft, job.job_id, JobState.STARTING)
    match status.role:
        case Role.TRAINER:
            _trainer_reported(draft, job.job_id, report)
        case Role.ROLLOUT:
            _rollout_reported(draft, job.job_id, report)
        case _:
            assert_never(status.role)


def _trainer_reported(draft: _Draft, job_id: str, report: TaskReport) -> None:
    if report.state is TaskState.RUNNING:
        _advance(draft, job_id, JobState.RUNNING)
    elif report.state in ENDED:
        _end_by_trainer(draft, draft.state.jobs[job_id], report.state, report.message)


def _end_by_trainer(draft: _Draft, job: Job, ended: TaskState, message: str) -> None:
    assert job.trainer is not None
    where = f"the trainer in {job.trainer.region}"
    # A trainer that saved its state and ended, or was stopped by its agent, has done what the cancellation wanted.
    if job.cancelling and ended is not TaskState.FAILED:
        how = f", but {where} did not end cleanly: {message}" if message and job.files else ""
        _end(draft, job.job_id, JobState.CANCELLED, f"cancelled by the operator{how}; {resume_advice(job)}")
    # A short job may end before it was ever reported as running, and only a running job may succeed.
    elif ended is TaskState.SUCCEEDED:
        _advance(draft, job.job_id, JobState.RUNNING)
        _end(draft, job.job_id, JobState.SUCCEEDED, "")
    elif ended is TaskState.FAILED:
        log_file = f"; its log is {job.files.log}" if job.files else ""
        _end(draft, job.job_id, JobState.FAILED, f"{where} failed: {message}{log_file}; {resume_advice(job)}")
    else:
        why = f": {message}" if message else ", as when its agent is shut down"
        _end(draft, job.job_id, JobState.FAILED, f"{where} stopped{why}; {resume_advice(job)}")


def _rollout_reported(draft: _Draft, job_id: str, report: TaskReport) -> None:
    job = draft.state.jobs[job_id]
    rollouts = [status for status in job.tasks.values() if status.role is Role.ROLLOUT]
    # A failed worker was restarted by its agent as often as that may help. As long as one is left, the job goes on.
    if all(status.report is not None and status.report.state is TaskState.FAILED for status in rollouts):
        log_file = f"; its log is {report.files.log}" if report.files else ""
        advice = f"; {resume_advice(job)}" if job.files else ""
        _end(
            draft,
            job_id,
            JobState.FAILED,
            f"no rollout worker is left; the last one failed: {report.message}{log_file}{advice}",
        )


def _record(draft: _Draft, name: str, job_id: str, record: Record) -> None:
    job = draft.state.jobs.get(job_id)
    if job is None or job.ended or job.trainer is None or job.trainer.region != name or job.last_record == record:
        return
    # Records may arrive again or late after a broken session; the version that an operator sees never goes back.
    policy = max(job.policy, record.policy) if job.policy else record.policy
    notice = record.text if record.kind is RecordKind.NOTICE else job.notice
    draft.put_job(replace(job, policy=policy, last_record=record, phase=_phase(job, record), notice=notice))
    _advance(draft, job_id, JobState.RUNNING)
    draft.effects.append(Publish(job_id, record))


def _phase(job: Job, record: Record) -> str:
    """Return the trainer's phase after this record. A step record ends an earlier phase, such as an evaluation."""
    match record.kind:
        case RecordKind.PHASE:
            return record.text
        case RecordKind.STEP:
            return "training"
        case _:
            return job.phase


def _certify(draft: _Draft, request: CertificateRequested) -> None:
    answer = answer_to(draft.state, request)
    if isinstance(answer, SendCertificate):
        draft.put_job(replace(draft.state.jobs[request.job_id], trainer_key=request.public_key))
    draft.effects.append(answer)


# ---- jobs ------------------------------------------------------------------------------------------------------------

_FORWARD_STATES = (JobState.PLANNED, JobState.STARTING, JobState.RUNNING)


def _advance(draft: _Draft, job_id: str, to: JobState) -> None:
    """Move a placed job forward to the state `to`, through every state between; never move it back."""
    state = draft.state.jobs[job_id].state
    if state in _FORWARD_STATES:
        for between in _FORWARD_STATES[_FORWARD_STATES.index(state) + 1 : _FORWARD_STATES.index(to) + 1]:
            draft.move_job(job_id, between, draft.state.jobs[job_id].reason)


def _end(draft: _Draft, job_id: str, to: JobState, reason: str) -> None:
    draft.move_job(job_id, to, reason)
    # Drop the reports of the job's ended tasks from the regions; running tasks stay listed until they have ended.
    for name, region in draft.state.regions.items():
        running = {
            task_id: report
            for task_id, report in region.tasks.items()
            if report.job_id != job_id or report.state not in ENDED
        }
        draft.put_region(name, replace(region, tasks=running))


def _submit(draft: _Draft, event: JobSubmitted, now_s: float) -> None:
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


def _cancel(draft: _Draft, prefix: str) -> None:
    job = find_job(draft.state, prefix)
    job_id = job.job_id
    # A repeated cancellation is no error, so that a client may send it again when an answer was lost.
    if job.state is JobState.CANCELLED:
        return
    if job.ended:
        raise StateError(f"job {job_id} has already {job.state}; there is nothing to cancel")
    trainer = job.trainer
    # No trainer has started, so that no state needs to be saved.
    if trainer is None or trainer.report is None:
        _end(draft, job_id, JobState.CANCELLED, f"cancelled by the operator before it ran; {resume_advice(job)}")
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
        _end(draft, job_id, JobState.CANCELLED, given_up)


def _plan_finished(draft: _Draft, event: PlanFinished) -> None:
    draft.state = replace(draft.state, planning=None)
    job = draft.state.jobs.get(event.job_id)
    if job is None or job.state is not JobState.PENDING:
        return
    free = device_counts(draft.state)
    match event.outcome:
        case PlacedProcesses() as placement:
            devices = reserved(draft.state, job.job_id, placement)
            # If devices were taken meanwhile, the job stays pending and `_settle_jobs` plans it again.
            if isinstance(devices, Misplaced):
                draft.put_job(avoiding(job, devices.region, devices.machine, (), devices.why))
            elif devices is None and event.free == free:
                # Nothing has changed, so the next plan would be the same.
                _does_not_fit(draft, job, free, "its plan does not fit the devices that it was made for")
            elif devices is not None and (why := overfull_order(draft.state, job, placement)):
                _end(draft, job.job_id, JobState.FAILED, why)
            elif devices is not None:
                tasks = _tasks(draft.state, job, placement, devices)
                draft.put_job(replace(job, placement=placement, tasks=tasks, planned_on=event.free))
                draft.move_job(job.job_id, JobState.PLANNED)
        case Infeasible(conflict=conflict):
            # The proof is about the devices that were free then. It ends the job only if no device is in use.
            if event.free == free:
                _does_not_fit(draft, job, free, conflict)
        case PlannerFailed(reason):
            _end(draft, job.job_id, JobState.FAILED, f"the planner failed: {reason}")
        case _:
            assert_never(event.outcome)


def _does_not_fit(draft: _Draft, job: Job, free: Mapping[str, DeviceCount], conflict: str) -> None:
    """End a job that does not fit even if all devices are free; let another one wait for those in use."""
    if all_are_free(draft.state):
        _end(draft, job.job_id, JobState.FAILED, f"{INFEASIBLE_PREFIX}{conflict}{job.refusals}")
    else:
        draft.put_job(replace(job, infeasible_on=free, conflict=conflict))


def _tasks(
    state: State, job: Job, placement: PlacedProcesses, devices: Mapping[str, tuple[int, ...]]
) -> dict[str, TaskStatus]:
    return {
        task_id: TaskStatus(
            process=process,
            machine=state.regions[process.region].hello.inventory.own.name,
            devices=devices[task_id],
        )
        for task_id, process in placement.tasks(job.job_id).items()
    }


# ---- what follows from a new state -----------------------------------------------------------------------------------


def _settle(draft: _Draft, now_s: float) -> None:
    since_s = draft.state.ending_since_s
    ending = ending_words(draft.state)
    draft.state = replace(draft.state, ending_since_s=(now_s if since_s is None else since_s) if ending else None)
    draft.state = without_oldest_ended(draft.state)
    _settle_jobs(draft, now_s)
    _settle_probe(draft, now_s)
    # Every region is compared after every event, so that no rule above can forget to send an order.
    for name, region in draft.state.regions.items():
        tasks = desired_tasks(draft.state, name)
        # An order would end the tasks that it does not list, so none goes to a region with an unknown job.
        if region.connected and tasks != region.sent and not runs_unknown_job(draft.state, region):
            draft.put_region(name, replace(region, sent=tasks, revision=region.revision + 1))
            draft.effects.append(SendDesired(name, region.epoch, region.revision + 1, tasks))


def _settle_jobs(draft: _Draft, now_s: float) -> None:
    for job in live_jobs(draft.state):
        # More has come free before anything of the job has started: a plan may use it.
        if job.state is JobState.PLANNED and has_more_now(draft.state, job):
            draft.put_job(taken_back(job))
            draft.move_job(job.job_id, JobState.PENDING)
            job = draft.state.jobs[job.job_id]
        if job.state is not JobState.PENDING:
            continue
        waits = waits_for(draft.state, job, now_s)
        draft.put_job(replace(job, reason=waits))
        # The planner works on one job at a time, on all free devices.
        if not waits and draft.state.planning is None:
            draft.state = replace(draft.state, planning=job.job_id)
            draft.effects.append(RunPlanner(job.job_id, device_counts(draft.state)))


def _settle_probe(draft: _Draft, now_s: float) -> None:
    state, settings = draft.state, draft.state.settings
    if state.probe:
        return
    # Pairs that were never probed come first, then those that were given up long ago, the oldest first.
    ready = ready_regions(state)
    again = [
        pair
        for pair, at_s in sorted(state.unmeasured.items(), key=lambda item: item[1])
        if now_s - at_s >= settings.probe_retry_s and ready.issuperset(pair)
    ]
    pairs = unsettled_pairs(state, ready) + again
    if pairs:
        src, dst = pairs[0]
        draft.state = replace(state, probe=Probe(src_region=src, dst_region=dst, ordered_at_s=now_s))
        order = SendProbe(
            region=src,
            epoch=state.regions[src].epoch,
            dst_region=dst,
            gateway_address=state.regions[dst].hello.gateway_address,
            payload_bytes=settings.probe_payload_bytes,
        )
        draft.effects.append(order)
