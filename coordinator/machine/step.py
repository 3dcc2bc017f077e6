"""The step of the coordinator's state machine: `step(state, event, now_s) -> (state, effects)`.

It has no clock, socket, file or randomness. The rules are:

- Sessions: a join raises the region's epoch and fences the session before. Another agent may take over a region only
  while the previous agent is disconnected. A message of another epoch, or with a sequence number that was already seen,
  changes nothing.
- Links: every directed pair of ready regions is probed, and again now and then (`links.py`). A pair whose probe fails
  is given up for a while. A region that cannot be dialled is reached by way of another that relays (`relays.py`).
- Jobs: a pending job is planned when enough regions have a free device (`reservations.py`), and the links that it may
  use are measured or given up, or it has waited `links.LINK_WAIT_S` for them. Earlier jobs come first, but a job that
  must wait does not block later ones. A plan is a proposal: it is committed only if the devices that it needs are still
  free; otherwise the job is planned again. A job that is infeasible on all devices fails; one that is infeasible on the
  free ones waits for those in use. If a process cannot start where it was placed before the trainer has, the job is
  planned again without that place.
- A running job gets rollout workers in regions that come later, if the planner finds that they help (`growth.py`).
- Rollout workers may come and go; the job fails for lack of them only when all have failed permanently. A trainer that
  died, or was stopped with its agent, starts again from its newest checkpoint, in its region and in a new fork: two
  trainers never write the same fork. The job fails if that cannot help, was tried too often, or its region stays away.
- A trainer signs its weights with its own key, which is certified once for each fork (`certificates.py`).
- A region that falls silent is only marked as disconnected: it keeps its tasks. A coordinator that has lost its state
  sends no orders to a region that runs a job unknown to it, so that this job runs to its end.

After an accepted event `_settle` does what follows from the new state: it orders plans, probes and desired tasks. What
agents send often, and what changes nothing but counters, waits for the next tick.
An error (Conflict, NotFound, StateError) leaves the caller's state unchanged.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from coordinator.events import (
    AgentEvent,
    CertificateRequested,
    Effect,
    Event,
    FleetEventKind,
    HeartbeatSeen,
    InventoryChanged,
    JobCancelled,
    JobSubmitted,
    LinkMeasured,
    MembersChanged,
    PlanFinished,
    ProbeFailed,
    RegionJoined,
    RegionLeft,
    RegionOrdered,
    RunPlanner,
    SendDesired,
    StepRecorded,
    TaskReported,
    Ticked,
)
from coordinator.machine.desired import desired_by_region
from coordinator.machine.draft import Draft
from coordinator.machine.growth import order_growth
from coordinator.machine.jobs import cancel, give_up_absent, plan_finished, start_due, submit
from coordinator.machine.links import (
    fail_probe,
    give_up_probes,
    measure,
    regions_in_turn,
    settle_probes,
    stop_waiting,
    wait_for_links,
)
from coordinator.machine.moves import move_lost
from coordinator.machine.relays import settle_relays
from coordinator.machine.reports import certify, count_sent, take_record, take_report
from coordinator.machine.reservations import (
    change_of,
    device_counts,
    ending_words,
    forgiven,
    has_more_now,
    renamed,
    wait_for_regions,
    wait_for_room,
)
from coordinator.machine.sessions import accept, disconnect, is_open, join, obey
from coordinator.state import (
    JobState,
    State,
    live_jobs,
    runs_unknown_job,
    taken_back,
    without_oldest_ended,
)


def step(state: State, event: Event, now_s: float) -> tuple[State, tuple[Effect, ...]]:
    """Return the next state and the effects that the caller must perform, in order.

    Raises: Conflict if another agent serves the region, the job to resume still runs or an id is ambiguous; NotFound
    for an unknown job; StateError for a cancellation of a job that has ended. The caller's state is then unchanged.
    """
    draft = Draft(state)
    around: Iterable[str] | None = ()  # the regions whose links may be probed now; None: all
    match event:
        case (
            HeartbeatSeen()
            | LinkMeasured()
            | ProbeFailed()
            | InventoryChanged()
            | TaskReported()
            | StepRecorded()
            | CertificateRequested()
        ):
            # A message that is not accepted changes nothing, not even the time at which the region was last seen.
            if not accept(draft, event.stamp, now_s):
                return state, ()
            _agent_event(draft, event, now_s)
            if isinstance(event, HeartbeatSeen | StepRecorded) and state.regions[event.stamp.region].connected:
                return draft.state, tuple(draft.effects)
            around = (
                event.stamp.region,
                *((event.dst_region,) if isinstance(event, LinkMeasured | ProbeFailed) else ()),
            )
        case RegionJoined():
            join(draft, event, now_s)
            around = (event.hello.region,)
        case RegionLeft(region, epoch):
            if not is_open(state, region, epoch):
                return state, ()
            disconnect(draft, region, "the session of its agent ended")
            around = None
        case JobSubmitted():
            submit(draft, event, now_s)
        case JobCancelled():
            cancel(draft, event, now_s)
        case RegionOrdered():
            obey(draft, event)
        case MembersChanged():
            draft.tell(FleetEventKind.MEMBERS_CHANGED, event.text, region=event.region, actor=event.actor)
        case PlanFinished():
            plan_finished(draft, event, now_s)
        case Ticked():
            _tick(draft, now_s)
            around = regions_in_turn(draft.state, now_s)
        case _:
            assert_never(event)
    # An error above leaves the draft behind, so that the caller's state is unchanged.
    _settle(draft, around, now_s)
    if isinstance(event, Ticked):  # not more often, since it looks at all devices
        order_growth(draft)
    return draft.state, tuple(draft.effects)


def _agent_event(draft: Draft, event: AgentEvent, now_s: float) -> None:
    name = event.stamp.region
    match event:
        case HeartbeatSeen():
            count_sent(draft, name, event)
        case LinkMeasured():
            measure(draft, event, now_s)
        case ProbeFailed():
            fail_probe(draft, event, now_s)
        case InventoryChanged(_, inventory):
            region = draft.state.regions[name]
            if text := change_of(region.hello.inventory, inventory):
                draft.tell(FleetEventKind.DEVICES_CHANGED, text, region=name)
            draft.put_region(name, replace(region, hello=replace(region.hello, inventory=inventory)))
            for job in live_jobs(draft.state):
                draft.put_job(forgiven(renamed(job, name, region.hello.inventory, inventory), name))
                move_lost(draft, draft.state.jobs[job.job_id], has_news=True)
        case TaskReported(_, report):
            take_report(draft, name, report, now_s)
        case StepRecorded(_, job_id, record):
            take_record(draft, name, job_id, record, now_s)
        case CertificateRequested():
            certify(draft, event)
        case _:
            assert_never(event)


def _tick(draft: Draft, now_s: float) -> None:
    settings = draft.state.settings
    for name, region in draft.state.regions.items():
        if region.connected and now_s - region.last_seen_s > settings.silent_after_s:
            disconnect(draft, name, f"its agent was silent for {settings.silent_after_s:.0f} s")
    give_up_probes(draft, now_s)
    for job in live_jobs(draft.state):
        start_due(draft, job, now_s)
        give_up_absent(draft, draft.state.jobs[job.job_id], now_s)


def _settle(draft: Draft, around: Iterable[str] | None, now_s: float) -> None:
    since_s = draft.state.ending_since_s
    ending = ending_words(draft.state)
    draft.state = replace(draft.state, ending_since_s=(now_s if since_s is None else since_s) if ending else None)
    draft.state = without_oldest_ended(draft.state, now_s)
    settle_relays(draft, now_s)
    _settle_jobs(draft, now_s)
    settle_probes(draft, around, now_s)
    # Every region is compared, so that no rule above can forget to send an order.
    desired = desired_by_region(draft.state)
    for name, region in draft.state.regions.items():
        tasks = desired.get(name, ())
        # An order would end the tasks that it does not list, so none goes to a region with an unknown job.
        if region.connected and tasks != region.sent and not runs_unknown_job(draft.state, region):
            draft.put_region(name, replace(region, sent=tasks, revision=region.revision + 1))
            draft.effects.append(SendDesired(name, region.epoch, region.revision + 1, tasks))


def _settle_jobs(draft: Draft, now_s: float) -> None:
    for job in live_jobs(draft.state):
        move_lost(draft, job)
        job = draft.state.jobs[job.job_id]
        # More has come free before anything of the job has started: a plan may use it.
        if job.state is JobState.PLANNED and has_more_now(draft.state, job):
            draft.put_job(taken_back(job))
            draft.move_job(job.job_id, JobState.PENDING)
    # What was taken back is free for earlier jobs too.
    for job in live_jobs(draft.state):
        if job.state is not JobState.PENDING:
            stop_waiting(draft, job.job_id)
            continue
        free = device_counts(draft.state)
        if waits := wait_for_regions(draft.state, job, free, now_s):
            stop_waiting(draft, job.job_id)
        # A plan made before they are measured would leave out the regions behind them.
        waits = waits or wait_for_links(draft, job, frozenset(free), now_s) or wait_for_room(draft.state, job, free)
        draft.put_job(replace(job, reason=waits))
        # The planner works on one job at a time, on all free devices.
        if not waits and draft.state.planning is None:
            draft.state = replace(draft.state, planning=job.job_id)
            draft.effects.append(RunPlanner(job.job_id, free))
