"""The table of job hubs in this gateway, by job id."""

from periplus.errors import NotFound
from region_agent.gateway.frames import FrameSpool
from region_agent.gateway.hub import JobHub
from region_agent.weights.weight_cache import WeightCache


class Hubs:
    """Table of hubs. The agent opens a job's hub when a task of the job is desired here, and drops it afterwards."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._hubs: dict[str, JobHub] = {}

    def get(self, job_id: str) -> JobHub:
        """Return a job's hub.

        Raises: NotFound when the job has no task here (yet); a caller from another region then tries again.
        """
        hub = self._hubs.get(job_id)
        if hub is None:
            raise NotFound(f"job {job_id!r} is not known to the gateway of {self.region}; is it planned there?")
        return hub

    def open(self, job_id: str, frames: FrameSpool, weight_cache: WeightCache, *, secret: str) -> JobHub:
        """Open a hub for a job that has none. The caller must run the weight cache's task (`WeightCache.run`)."""
        assert job_id not in self._hubs
        hub = self._hubs[job_id] = JobHub(job_id, self.region, frames, weight_cache, secret=secret)
        return hub

    def drop(self, job_id: str) -> JobHub:
        """End all of a job's streams and subscriptions, and remove its hub.

        The caller closes the spool and the weight cache.
        """
        hub = self._hubs.pop(job_id)
        hub.drop()
        return hub

    def job_ids(self) -> frozenset[str]:
        """Return the ids of all jobs that have a hub."""
        return frozenset(self._hubs)
