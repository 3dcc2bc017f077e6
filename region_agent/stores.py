"""A job's stores on the gateway's disk, its frame spool and its weight cache: how they are opened and closed.

Opening reads everything that an earlier process left, and hashes a full state of the weights, which may take minutes.
So each job's stores are opened in a task and a thread of their own: neither the agent's look at its processes nor
another job waits for it. Stores that cannot be opened now are reported once for each reason, and the next look tries
again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from periplus.errors import PeriplusError
from periplus.process.telemetry import event
from periplus.values.task import authority_key_of
from region_agent.config import AgentConfig
from region_agent.control.reconcile import LocalTask
from region_agent.gateway.frames import FrameSpool, open_frames
from region_agent.state_directory import StateDirectory
from region_agent.threads import ended
from region_agent.weights.weight_cache import WeightCache

log = logging.getLogger(__name__)


def open_stores(config: AgentConfig, task: LocalTask) -> tuple[FrameSpool, WeightCache]:
    """Open a job's frame spool and weight cache, and read what an earlier process left in them.

    It blocks while it reads: call it in a thread. Raises: Conflict, StorageError.
    """
    state = StateDirectory(config.state_dir)
    frames = open_frames(state.spool_of(task.job_id), durability=task.durability, max_bytes=task.spool_bytes)
    try:
        key = authority_key_of(task)
        weights = state.weights_of(task.job_id, key)
        chain_versions = task.chain_versions
        return frames, WeightCache.open(task.job_id, key, weights, chain_versions=chain_versions, fork=task.fork)
    except BaseException:
        # The spool is locked by this process, so an open one would keep the next attempt out.
        frames.close()
        raise


def close_stores(job_id: str, frames: FrameSpool, weight_cache: WeightCache, *, job_is_done: bool) -> None:
    """Close a job's stores, after the weight cache's task has ended; call it in a thread.

    If the job is done, both are removed from disk. Otherwise uncommitted frames and the weights stay there, so that the
    job can be resumed. Errors are logged, not raised.
    """
    num_frames = len(frames.pending)
    # Each store is closed, whatever becomes of the other.
    try:
        weight_cache.close(job_is_done=job_is_done)
    except PeriplusError as error:
        event(log, logging.ERROR, "weights_not_closed", job=job_id, why=error)
    try:
        if frames.close(job_is_done=job_is_done):
            event(log, logging.WARNING, "spool_kept", job=job_id, frames=num_frames)
    except PeriplusError as error:
        event(log, logging.ERROR, "spool_not_closed", job=job_id, frames=num_frames, why=error)


class StoreOpenings:
    """The jobs whose stores are being opened. `opened` receives the stores of each, on the event loop."""

    def __init__(self, config: AgentConfig, opened: Callable[[LocalTask, FrameSpool, WeightCache], None]) -> None:
        self._config = config
        self._opened = opened
        self._under_way: dict[str, tuple[LocalTask, asyncio.Task[None]]] = {}
        self._unusable: dict[str, str] = {}  # job id -> why its stores could not be opened

    @property
    def tasks(self) -> Sequence[LocalTask]:
        """The tasks whose jobs' stores are being opened; nobody else may touch the folders of these."""
        return [task for task, _ in self._under_way.values()]

    def begin(self, owner: asyncio.TaskGroup, task: LocalTask) -> None:
        """Begin to open the stores of a task's job, unless that is under way. `owner` owns the asyncio task."""
        if task.job_id not in self._under_way:
            self._under_way[task.job_id] = task, owner.create_task(self._open(task))

    def cancel(self) -> None:
        """Open nothing any more. What is being read is read to its end and closed."""
        for _, opening in self._under_way.values():
            opening.cancel()

    async def _open(self, task: LocalTask) -> None:
        reading = asyncio.ensure_future(asyncio.to_thread(open_stores, self._config, task))
        # What the thread opens must be closed again, so wait for it even if this task is cancelled.
        cancelled = await ended(reading)
        try:
            frames, weight_cache = reading.result()
            if cancelled is not None:
                close_stores(task.job_id, frames, weight_cache, job_is_done=False)
                raise cancelled
        except PeriplusError as error:
            # The next look tries again at once, so log each reason only once.
            if self._unusable.get(task.job_id) != str(error):
                event(log, logging.ERROR, "spool_unusable", job=task.job_id, why=error)
            self._unusable[task.job_id] = str(error)
        else:
            self._unusable.pop(task.job_id, None)
            self._opened(task, frames, weight_cache)
        finally:
            del self._under_way[task.job_id]
