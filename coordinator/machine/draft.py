"""The state that one step of the machine builds, and the effects of that step."""

from dataclasses import replace

from coordinator.events import Effect, FleetEvent, FleetEventKind, Publish
from coordinator.state import Job, JobState, RegionState, State, check_transition


class Draft:
    """The state that one step builds, and its effects. State values are replaced, never changed."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.effects: list[Effect] = []

    def put_region(self, name: str, region: RegionState) -> None:
        self.state = replace(self.state, regions={**self.state.regions, name: region})

    def tell(self, kind: FleetEventKind, text: str, *, job_id: str = "", region: str = "", actor: str = "") -> None:
        """Add an event for the operators of the fleet."""
        self.effects.append(FleetEvent(kind, text, job_id=job_id, region=region, actor=actor))

    def put_job(self, job: Job) -> None:
        before = self.state.jobs.get(job.job_id)
        self.state = replace(self.state, jobs={**self.state.jobs, job.job_id: job})
        if before is not None and before.state != job.state:
            text = f"{before.state} to {job.state}{f': {job.reason}' if job.reason else ''}"
            self.tell(FleetEventKind.JOB_CHANGED, text, job_id=job.job_id)
        # Watchers are told of changes of state and reason only; a job is also replaced for counters and reports.
        if before is None or (before.state, before.reason) != (job.state, job.reason):
            self.effects.append(Publish(job.job_id, job))

    def move_job(self, job_id: str, to: JobState, reason: str = "") -> None:
        job = self.state.jobs[job_id]
        check_transition(job_id, job.state, to)
        self.put_job(replace(job, state=to, reason=reason))
