"""Running jobs that get rollout workers on devices that were not there, or not free, when they were planned.

These are of new regions, or of machines that came to a region of the job. A job grows while no other job waits for
regions. The planner decides whether it helps, by the rules of the job; what already runs stays as it is. A region that
did not help is not asked about again until more of it is free.
"""

from dataclasses import replace

from coordinator.events import FleetEventKind, PlanFinished, PlannerFailed, RunPlanner
from coordinator.machine.draft import Draft
from coordinator.machine.reservations import device_counts, overfull_order, placed_tasks, reserved
from coordinator.state import JobState, PlacedProcesses, RegionMode, State, live_jobs, ready_regions
from periplus.values.machine import DeviceCount
from planner.answer.outcome import Infeasible


def without_job(state: State, job_id: str) -> State:
    """Return the state as if the job held no devices and no memory."""
    regions = {
        name: replace(region, tasks={key: task for key, task in region.tasks.items() if task.job_id != job_id})
        for name, region in state.regions.items()
    }
    return replace(state, regions=regions, jobs={key: job for key, job in state.jobs.items() if key != job_id})


def order_growth(draft: Draft) -> None:
    """Let the planner see whether more devices help one of the jobs that run."""
    state = draft.state
    jobs = live_jobs(state)
    if state.planning is not None or any(job.state is JobState.PENDING for job in jobs):
        return
    open_regions = {name for name in ready_regions(state) if state.regions[name].mode is RegionMode.OPEN}
    for job in jobs:
        placed = job.placement
        # A placement by hand stays as it is, and a region without its trainer or without links cannot be planned.
        if job.state is not JobState.RUNNING or job.cancelling or placed is None or job.request.plan_json:
            continue
        home, others = placed.trainer_region, open_regions - placed.regions
        linked = {name for name in others if (home, name) in state.links and (name, home) in state.links}
        linked = {name for name in linked if job.request.may_use_link(home, name)}
        if home not in open_regions:
            continue
        free = device_counts(without_job(state, job.job_id))
        none = DeviceCount(0, 0)
        able = (linked | placed.regions) & free.keys()
        new = frozenset(name for name in able if free[name].free > job.planned_on.get(name, none).free)
        if new:
            known = {name: count for name, count in free.items() if name in placed.regions | new}
            draft.state = replace(state, planning=job.job_id)
            draft.effects.append(RunPlanner(job.job_id, known, new))
            return


def grow(draft: Draft, event: PlanFinished) -> None:
    """Give a job the further processes that the planner placed, if their devices are still free."""
    state = draft.state
    job = state.jobs.get(event.job_id)
    if job is None or job.state is not JobState.RUNNING or job.cancelling or job.placement is None:
        return
    asked, found = {name: event.free[name] for name in event.new_regions}, event.outcome
    text, why = "", "the planner finds that it would not help"
    if isinstance(found, Infeasible):
        why = found.conflict
    elif isinstance(found, PlannerFailed):
        why = f"the planner failed: {found.reason}"
    elif found.processes:
        devices = reserved(state, job.job_id, found, job.avoided)
        free = device_counts(without_job(state, job.job_id))
        # Something was taken meanwhile: the job asks again. If nothing was, the answer would be the same.
        if devices is None and {name: free.get(name) for name in event.free} != event.free:
            return
        grown = PlacedProcesses(processes=job.placement.processes + found.processes, plan_json=found.plan_json)
        if devices is None:
            why = "the plan does not fit the devices and the memory that it was made for"
        elif overfull := overfull_order(state, job, grown):
            why = overfull
        else:
            # Their ids go on after those of the workers that run.
            ids = [task_id for task_id in grown.tasks(job.job_id) if task_id not in job.tasks]
            tasks = dict(zip(ids, placed_tasks(job.job_id, found, devices).values(), strict=True))
            job = replace(job, placement=grown, tasks={**job.tasks, **tasks})
            text = f"{len(tasks)} more workers, in {', '.join(sorted(found.regions))}"
    text = text or f"no worker in {', '.join(sorted(asked))}: {why}"
    draft.tell(FleetEventKind.JOB_GROWTH, text, job_id=job.job_id)
    draft.put_job(replace(job, planned_on={**job.planned_on, **asked}))
