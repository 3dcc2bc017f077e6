"""The one executor of a weight cache's disk jobs, and the one rule of who may touch what.

    machine.next_step -> job -> a thread -> outcome -> machine.finished          until no job is left, then wait

**The rule.** The machine belongs to the event loop: it is called only between two awaits, so each call sees and leaves
a whole state, and no lock is needed. What it orders on disk is done here, one job at a time and in its order, each in a
thread; nobody else writes to the job's folder. Nobody but `run` takes a step, and a job that has begun is finished and
handed back even if `run` is cancelled, so machine and disk always agree. Readers of stored publications and of derived
ones read files beside the jobs, in threads of their own: such files are never changed, only removed, and a reader whose
file has gone asks for another route.

Who needs the result of a job waits for `progress`, and looks at the machine again after it. `stop` ends all such
waiting, so no reader waits for an executor that is gone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

from periplus import clock
from periplus.errors import explained_error
from region_agent.threads import ended
from region_agent.weights.jobs import CacheNotice, DiskJob, JobFaulted, JobOutcome
from region_agent.weights.machine import WeightCacheMachine

log = logging.getLogger(__name__)


class DiskExecutor:
    """Runs the disk jobs that the weight cache's machine orders, and tells the machine their outcomes.

    `perform` does a job in a thread and returns its outcome; an exception from it is a fault of ours. `on_notices`
    receives the machine's notices on the event loop.
    """

    def __init__(
        self,
        job_id: str,
        machine: WeightCacheMachine,
        perform: Callable[[DiskJob], JobOutcome],
        on_notices: Callable[[Iterable[CacheNotice]], None],
    ) -> None:
        self._job_id = job_id
        self._machine = machine
        self._perform = perform
        self._on_notices = on_notices
        self._work = asyncio.Event()
        self._progress = asyncio.Event()

    def wake(self) -> None:
        """Have `run` look for work, because something has happened."""
        self._work.set()

    async def progress(self) -> None:
        """Wait until a step was taken, or until `stop`."""
        await self._progress.wait()

    async def run(self, on_settled: Callable[[], Awaitable[None]]) -> None:
        """Take steps until cancelled, and call `on_settled` each time that no work is left."""
        while True:
            # Wait for an event, or until a disk that refused is to be tried again.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._machine.retry_in_s(clock.monotonic_s())):
                    await self._work.wait()
            # Clear the event before the steps, so that what happens during them is looked at in another round.
            self._work.clear()
            while await self._step():
                pass
            await on_settled()

    def stop(self) -> None:
        """End all waiting for progress."""
        self._made_progress()

    async def _step(self) -> bool:
        """Take one step. Return whether there may be another."""
        step = self._machine.next_step(clock.monotonic_s())
        self._on_notices(step.notices)
        if step.job is not None:
            await self._finish(step.job)
        self._made_progress()
        return step.job is not None

    async def _finish(self, job: DiskJob) -> None:
        # A thread cannot be cancelled. Even if `run` is, the job ends and the machine learns what is on disk now.
        running = asyncio.ensure_future(asyncio.to_thread(self._outcome, job))
        cancelled = await ended(running)
        self._on_notices(self._machine.finished(job, running.result(), clock.monotonic_s()))
        if cancelled is not None:
            raise cancelled

    def _outcome(self, job: DiskJob) -> JobOutcome:
        try:
            return self._perform(job)
        except Exception as error:  # a fault of ours must not end the gateway's other jobs
            log.exception("weights_failed", extra={"fields": {"job": self._job_id}})
            return JobFaulted(explained_error(error))

    def _made_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()
