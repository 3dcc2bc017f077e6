"""The jobs that this gateway serves, and nothing else."""

from periplus.errors import NotFound
from region_agent.gateway.frames import FrameSpool
from region_agent.gateway.hub import JobHub
from region_agent.weights.weight_cache import WeightCache


class Hubs:
    """Job id -> hub. The agent opens a hub when a task of the job is desired here, and drops it afterwards."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._hubs: dict[str, JobHub] = {}

    def get(self, job_id: str) -> JobHub:
        """Raises: NotFound when the job has no task here (yet): a caller from elsewhere tries again."""
        hub = self._hubs.get(job_id)
        if hub is None:
            raise NotFound(f"job {job_id!r} is not known to the gateway of {self._region}; is it planned there?")
        return hub

    def open(self, job_id: str, frames: FrameSpool, weight_cache: WeightCache) -> JobHub:
        """A hub for a job that has none. Whoever opens it runs its keeper."""
        assert job_id not in self._hubs
        hub = self._hubs[job_id] = JobHub(job_id, self._region, frames, weight_cache)
        return hub

    def drop(self, job_id: str) -> JobHub:
        """End what the job's readers and workers have open, and forget it. The caller closes its frames and weights."""
        hub = self._hubs.pop(job_id)
        hub.drop()
        return hub

    def job_ids(self) -> frozenset[str]:
        return frozenset(self._hubs)
