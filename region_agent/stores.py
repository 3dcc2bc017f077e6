"""A job's stores on the gateway's disk, its frame spool and its weight cache: how they are opened and closed.

Opening reads everything that an earlier process left, and hashes a full state of the weights, which may take minutes.
So each job's stores are opened in a task and a thread of their own: neither the agent's look at its processes nor
another job waits for it. Stores that cannot be opened now are tried again at the next look, and the job's tasks are
reported as starting, with the reason. They are reported as misplaced, so that the coordinator plans the job elsewhere,
once `GIVE_UP_S` have passed, or at once where waiting cannot help. A full disk is waited for without end.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from periplus import clock
from periplus.errors import DiskFull, PeriplusError
from periplus.process.telemetry import event
from periplus.values.task import AssignedTask, FailureCause, TaskReport, TaskState, authority_key_of
from region_agent.config import AgentConfig
from region_agent.control.reconcile import LocalTask
from region_agent.gateway.frames import FrameSpool, open_frames
from region_agent.state_directory import StateDirectory
from region_agent.threads import ended
from region_agent.weights.weight_cache import WeightCache

log = logging.getLogger(__name__)

GIVE_UP_S = 30.0
"""Seconds for which opening a job's stores is tried before its tasks are reported as misplaced. The process of an agent
that was here before has ended by then, and its locks with it. Chosen by hand."""

_LASTING = frozenset({errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS})
"""Error numbers that stay until a person changes something."""


@dataclass(frozen=True, slots=True)
class UnusableStores:
    """Why the stores of a job cannot be opened, since when, and whether another try may help."""

    why: str
    since_s: float
    is_given_up: bool


def unusable(error: PeriplusError, before: UnusableStores | None, now_s: float) -> UnusableStores:
    """Return what the failure of one more try means. `before` is what the tries before meant, or None."""
    since_s = before.since_s if before else now_s
    cause = error.__cause__
    lasts = isinstance(cause, OSError) and cause.errno in _LASTING
    return UnusableStores(
        str(error), since_s, not isinstance(error, DiskFull) and (lasts or now_s - since_s >= GIVE_UP_S)
    )


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
        self._unusable: dict[str, UnusableStores] = {}  # by job

    @property
    def tasks(self) -> Sequence[LocalTask]:
        """The tasks whose jobs' stores are being opened; nobody else may touch the folders of these."""
        return [task for task, _ in self._under_way.values()]

    def begin(self, owner: asyncio.TaskGroup, task: LocalTask) -> None:
        """Begin to open the stores of a task's job, unless that is under way. `owner` owns the asyncio task."""
        if task.job_id not in self._under_way:
            self._under_way[task.job_id] = task, owner.create_task(self._open(task))

    def forget_all_but(self, job_ids: Collection[str]) -> None:
        """Forget what is known of jobs that have left."""
        self._unusable = {job_id: each for job_id, each in self._unusable.items() if job_id in job_ids}

    def report(self, task: AssignedTask) -> TaskReport | None:
        """Return the report of a task that cannot start, since its job's stores cannot be opened; None if they can."""
        if (found := self._unusable.get(task.job_id)) is None:
            return None
        return TaskReport(
            task_id=task.task_id,
            job_id=task.job_id,
            state=TaskState.FAILED if found.is_given_up else TaskState.STARTING,
            message=found.why,
            restarts=0,
            fork=task.fork,
            cause=FailureCause.STORAGE if found.is_given_up else FailureCause.PASSING,
        )

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
            before = self._unusable.get(task.job_id)
            if before is None or before.why != str(error):
                event(log, logging.ERROR, "spool_unusable", job=task.job_id, why=error)
            self._unusable[task.job_id] = unusable(error, before, clock.monotonic_s())
        else:
            self._unusable.pop(task.job_id, None)
            self._opened(task, frames, weight_cache)
        finally:
            del self._under_way[task.job_id]
