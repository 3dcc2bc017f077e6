"""Sessions of agents: who serves a region, and which tasks it has."""

from dataclasses import replace

from coordinator.events import (
    FenceSession,
    FleetEventKind,
    RegionJoined,
    RegionOrder,
    RegionOrdered,
    SendProfile,
    Stamp,
)
from coordinator.machine.draft import Draft
from coordinator.machine.jobs import end_by_trainer
from coordinator.machine.links import forget_probes_of, try_links_again
from coordinator.machine.reports import take_report
from coordinator.machine.reservations import forgiven, renamed
from coordinator.state import Hello, RegionMode, RegionState, State, TaskStatus, live_jobs, trainer_task_id
from periplus.errors import Conflict, NotFound
from periplus.values.task import Role, TaskReport, TaskState


def is_open(state: State, name: str, epoch: int) -> bool:
    """Return whether this is the epoch of the region's newest session."""
    return name in state.regions and state.regions[name].epoch == epoch


def accept(draft: Draft, stamp: Stamp, now_s: float) -> bool:
    """Record that a message arrived and return True; return False if it is a repeat or of a fenced session."""
    if not is_open(draft.state, stamp.region, stamp.epoch):
        return False
    region = draft.state.regions[stamp.region]
    if stamp.sequence <= region.last_sequence:
        return False
    # Any message shows that the agent is there, also after it was counted as silent.
    draft.put_region(stamp.region, replace(region, last_sequence=stamp.sequence, last_seen_s=now_s, connected=True))
    return True


def join(draft: Draft, event: RegionJoined, now_s: float) -> None:
    """Open a session. Raises: Conflict if another agent serves the region."""
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
        forget_probes_of(draft, hello.region)
    # The new session was sent no tasks yet (`sent` is None), so that `_settle` sends them; revisions go on rising.
    region = RegionState(
        hello=hello,
        epoch=before.epoch + 1 if before else 1,
        connected=True,
        last_seen_s=now_s,
        last_sequence=event.sequence,
        revision=before.revision if before else 0,
        mode=before.mode if before else RegionMode.OPEN,
        relay=before.relay if before else "",
    )
    draft.put_region(hello.region, region)
    if before:
        for job in live_jobs(draft.state):
            draft.put_job(renamed(job, hello.region, before.hello.inventory, hello.inventory))
    try_links_again(draft, hello.region)
    rebooted = before is not None and before.hello.boot_id != hello.boot_id
    again = " again, as a new process" if rebooted else " again" if before else ""
    text = f"its agent on {hello.inventory.own.name} joined{again}, with {len(hello.tasks)} tasks"
    draft.tell(FleetEventKind.REGION_JOINED, text, region=hello.region)
    _take_inventory(draft, hello, rebooted, now_s)


def _take_inventory(draft: Draft, hello: Hello, rebooted: bool, now_s: float) -> None:
    """Compare the tasks that the agent has with those that it was given.

    The report of a lost rollout worker is forgotten, so that the worker is started again. So is a lost trainer.
    """
    present = {report.task_id for report in hello.tasks}
    # What did not start with the process before may start now.
    if rebooted:
        for job in live_jobs(draft.state):
            draft.put_job(forgiven(job, hello.region))
    # Forget the reports of workers that the agent lost, and of what had not started: they count as not started.
    for job in live_jobs(draft.state):
        tasks = {
            task_id: replace(status, report=None) if _may_start_again(status, rebooted) else status
            for task_id, status in job.tasks.items()
            if status.region == hello.region and task_id not in present
        }
        draft.put_job(replace(job, tasks={**job.tasks, **tasks}))
    # The present tasks come before the lost trainers: such a report may end a job, which then is not live below.
    for report in hello.tasks:
        _catch_up(draft, report)
        take_report(draft, hello.region, report, now_s)
    for job in live_jobs(draft.state):
        trainer = job.trainer
        if trainer and trainer.region == hello.region and trainer.report and trainer_task_id(job.job_id) not in present:
            lost = f"the agent of {hello.region} came back without the trainer"
            end_by_trainer(draft, job, replace(trainer.report, state=TaskState.STOPPED, message=lost), now_s)


def _catch_up(draft: Draft, report: TaskReport) -> None:
    """Raise the fork of a job to the one that an agent runs: the state was restored from a backup made before it."""
    job = draft.state.jobs.get(report.job_id)
    if job is not None and not job.ended and report.fork > job.fork:
        draft.put_job(replace(job, fork=report.fork, trainer_key=""))


def _may_start_again(status: TaskStatus, rebooted: bool) -> bool:
    # Of a task that had not started, trainer or not, nothing is lost.
    is_unstarted = status.report is not None and status.report.is_unstarted
    return is_unstarted or (status.role is Role.ROLLOUT and (rebooted or not status.ended))


def disconnect(draft: Draft, name: str, why: str) -> None:
    """Mark a region as disconnected. It keeps its tasks."""
    draft.tell(FleetEventKind.REGION_LEFT, why, region=name)
    draft.put_region(name, replace(draft.state.regions[name], connected=False))
    forget_probes_of(draft, name)


_MODES = {
    RegionOrder.CORDON: RegionMode.CORDONED,
    RegionOrder.DRAIN: RegionMode.DRAINED,
    RegionOrder.UNCORDON: RegionMode.OPEN,
}


def obey(draft: Draft, event: RegionOrdered) -> None:
    """Do with a region what an operator wants.

    Raises: NotFound for an unknown region; Conflict for one that is to be removed while its agent is connected or a job
    has tasks there, or profiled while its agent is not connected or a job has tasks there.
    """
    name, state = event.region, draft.state
    if name not in state.regions:
        raise NotFound(f"no region {name!r}; `periplus region list` names them")
    region = state.regions[name]
    jobs = [job.job_id for job in live_jobs(state) if job.placement and name in job.placement.regions]
    if event.order is RegionOrder.REMOVE:
        if region.connected or jobs:
            why = "its agent is connected: stop it first" if region.connected else f"it has tasks of {', '.join(jobs)}"
            raise Conflict(f"region {name} cannot be removed: {why}")
        draft.state = replace(
            state,
            regions={other: each for other, each in state.regions.items() if other != name},
            links={pair: link for pair, link in state.links.items() if name not in pair},
            failed_links={pair: failed for pair, failed in state.failed_links.items() if name not in pair},
        )
    elif event.order is RegionOrder.PROFILE:
        if not region.connected or jobs:
            why = f"it has tasks of {', '.join(jobs)}: what is measured beside them is not what it can do"
            raise Conflict(f"{name} cannot be profiled: {why if jobs else 'its agent is not connected'}")
        draft.effects.append(
            SendProfile(region=name, epoch=region.epoch, job_json=event.job_json, model_config=event.model_config)
        )
    else:
        draft.put_region(name, replace(region, mode=_MODES[event.order]))
    if event.order is RegionOrder.UNCORDON:
        # Workers that were drained have ended, and start again.
        for job_id in jobs:
            job = draft.state.jobs[job_id]
            tasks = {
                task_id: replace(status, report=None)
                for task_id, status in job.tasks.items()
                if status.region == name and status.report and status.report.state is TaskState.STOPPED
            }
            draft.put_job(replace(job, tasks={**job.tasks, **tasks}))
    trainers = [job_id for job_id in jobs if (job := state.jobs[job_id]).trainer and job.trainer.region == name]
    stay = f"; the trainers of {', '.join(trainers)} stay" if trainers and event.order is RegionOrder.DRAIN else ""
    draft.tell(FleetEventKind.REGION_ORDERED, f"{event.order}{stay}", region=name, actor=event.actor)
