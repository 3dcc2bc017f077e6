"""What a job does at this moment, in words for an operator."""

from coordinator.machine.moves import waits_for_devices, worker_waits
from coordinator.state import Job, RegionMode, State, ready_regions, utc_time, waits_until_s
from periplus.values.task import TaskState

QUIET_S = 20.0
"""Seconds without a record of its trainer after which that is said of a job. Chosen by hand."""


def doing(state: State, job: Job, now_s: float) -> str:
    """Describe what a live job does now: the trainer's phase, which of its regions are disconnected or cannot start it.

    A trainer of which nothing was heard for QUIET_S is said to be quiet: it takes long, or it stands still.

    The text is empty for a job that has ended or is not placed yet.
    """
    if job.ended or job.placement is None:
        return ""
    ready, trainer_region = ready_regions(state), job.placement.trainer_region
    # The trainer's own region is reported apart, because the phase is then only the last one known.
    away = sorted(set(job.placement.regions) - ready - {trainer_region})
    drained = [name for name in sorted(job.placement.regions) if state.regions[name].mode is RegionMode.DRAINED]
    words = ((away, "disconnected"), (drained, "drained: no worker runs there"))
    others = [f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {how}" for names, how in words if names]
    reports = [(status.region, status.report) for status in job.tasks.values() if status.report]
    # What keeps a process from starting or made it fail for good, or keeps its gateway from taking its samples.
    told = [(name, it) for name, it in reports if it.is_unstarted or it.state in (TaskState.RUNNING, TaskState.FAILED)]
    others += dict.fromkeys(f"{name}: {it.message}" for name, it in told if it.message)
    waiting = dict.fromkeys(status.region for status in job.tasks.values() if worker_waits(job, status))
    others += [
        f"a worker waits for other devices in {name}, until they come or the job is cancelled" for name in waiting
    ]
    if trainer_region not in ready:
        seen = f"; it last said: {job.phase}" if job.phase else ""
        until_s = waits_until_s(state, job)
        until = f", until {utc_time(until_s)}" if until_s is not None else ""
        until += f", then goes on elsewhere from checkpoint {job.replica}" if job.replica else ""
        what = f"waits for {trainer_region}, the region of its trainer, which is disconnected{until}{seen}"
        return "; ".join([what, *others])
    if job.trainer and waits_for_devices(state, job):
        number, where = job.trainer.process.num_devices, " and ".join(place.machine for place in job.trainer.places)
        what = f"waits for {number} devices in {trainer_region} for its trainer, which had those of {where}"
        return "; ".join([f"{what}, until they come or it is cancelled", job.reason, *others])
    if job.trainer and job.trainer.report is None and job.last_files:
        return "; ".join([job.reason, *others])
    quiet_s = now_s - state.heard_at_s.get(job.job_id, now_s)
    quiet = [f"its trainer has said nothing for {quiet_s:.0f} s"] if quiet_s >= QUIET_S else []
    return "; ".join([*([job.phase] if job.phase else []), *quiet, *others])
