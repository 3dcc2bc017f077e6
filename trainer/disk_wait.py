"""Writes that wait for room: a full disk pauses a trainer for as long as it is full, and loses nothing.

A write either succeeds, or raises `DiskFull` and has changed nothing (periplus/process/disk.py). It is then tried
again, after pauses that double (`RETRY`). The first refusal is logged as one WARNING with the path, the bytes needed
and the bytes free. The job's watchers see `waiting for disk: PATH` as its phase. Nothing that depends on the write
happens meanwhile, but time goes on: leases expire as always.

A trainer that is asked to stop gives up at the next refusal: `write` then raises the `DiskFull`. What has not been
written was never acted on, so a resumed job needs only the last checkpoint and the journal before it. `write_patiently`
does not give up; it is for tasks that the trainer cancels when it ends.

Every other error is raised at once, because waiting does not help: a read-only disk stays read-only.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from periplus.errors import DiskFull
from periplus.process.backoff import Backoff
from periplus.process.telemetry import event

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY = Backoff(first_s=0.25, longest_s=5.0)
"""Pauses before a write is tried again. Chosen by hand: the first is short because room may be free again at once. A
retry costs at most the writing of what fits, and the trainer goes on at most the longest pause after a person has made
room."""


class DiskWait:
    """Makes the writes of one trainer wait for room on the disk.

    `stop` is set when the trainer is asked to stop. `say` shows a phase to the job's watchers.
    """

    def __init__(self, stop: asyncio.Event, say: Callable[[str], None]) -> None:
        self._stop = stop
        self._say = say
        self._waiting: Counter[Path | None] = Counter()

    async def write(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until the disk has room for what it writes, and return what it returns.

        The first attempt is made at once, before any other task can run. Raises: DiskFull if there is no room and the
        trainer was asked to stop; any other error of `attempt`.
        """
        try:
            return attempt()
        except DiskFull as error:
            return await self._wait(_awaitable(attempt), error, patiently=False)

    async def write_patiently(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` as `write` does, but go on after a stop, until the caller is cancelled."""
        try:
            return attempt()
        except DiskFull as error:
            return await self._wait(_awaitable(attempt), error, patiently=True)

    async def write_in_thread(self, attempt: Callable[[], T], *, patiently: bool = False) -> T:
        """Call `attempt` as `write` does, in a thread, for writes that would block the event loop for too long.

        `patiently`: go on after a stop, until the caller is cancelled.
        """
        try:
            return await asyncio.to_thread(attempt)
        except DiskFull as error:
            return await self._wait(lambda: asyncio.to_thread(attempt), error, patiently=patiently)

    async def _wait(self, attempt: Callable[[], Awaitable[T]], error: DiskFull, *, patiently: bool) -> T:
        path = error.path
        self._begin(path, error)
        num_retries = 0
        try:
            while True:
                # Looked at before each pause, so that a stop is noticed even if it came before the first refusal.
                if self._stop.is_set() and not patiently:
                    raise error
                await self._pause(RETRY.pause_s(num_retries), patiently=patiently)
                num_retries += 1
                try:
                    done = await attempt()
                except DiskFull as again:
                    error = again
                else:
                    return done
        finally:
            self._end(path)

    def _begin(self, path: Path | None, error: DiskFull) -> None:
        # Several writes may wait for one path: it is logged once, and the phase is shown once for all paths.
        if not self._waiting[path]:
            event(log, logging.WARNING, "disk_full", path=path, why=error)
        if not self._waiting.total():
            self._say(f"waiting for disk: {path}")
        self._waiting[path] += 1

    def _end(self, path: Path | None) -> None:
        self._waiting[path] -= 1
        if not self._waiting[path]:
            event(log, logging.INFO, "disk_wait_over", path=path)
        if not self._waiting.total():
            self._say("stopping" if self._stop.is_set() else "the disk has room again")

    async def _pause(self, seconds: float, *, patiently: bool) -> None:
        if patiently:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass


def _awaitable(attempt: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    async def attempted() -> T:
        return attempt()

    return attempted
