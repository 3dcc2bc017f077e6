"""Turns: a trainer and the rollout workers on its devices compute one after the other.

The trainer asks for the devices when it has a batch. Workers then stop between two tokens and give the devices up, and
go on when the trainer has taken its snapshot of the new weights. Both sides hold locks on two files of the run
directory, which the kernel releases when a process ends, however it ends: nobody waits for a process that died.

- `turn.wanted`: held by the trainer from when it asks until it is done.
- `turn.held`: held by the trainer alone while it computes, or by any number of workers while they compute.

All processes are on one machine. Locks are tried every `POLL_S`, so that no thread waits in the kernel.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

POLL_S = 0.005
"""Seconds between two looks at a lock. Chosen by hand: a step takes many times as long."""
WANTED, HELD = "turn.wanted", "turn.held"


class DeviceTurns:
    """One process's side of the turns on the devices of a run, whose directory is `folder`. Raises: OSError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._wanted, self._held = (os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in (WANTED, HELD))

    @contextlib.asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Have the devices for the trainer alone. Waits until every worker has given them up."""
        try:
            await _locked(self._wanted, fcntl.LOCK_EX)
            await _locked(self._held, fcntl.LOCK_EX)
            yield
        finally:
            # In this order: a worker that finds that the devices are not wanted finds them free, too.
            fcntl.flock(self._held, fcntl.LOCK_UN)
            fcntl.flock(self._wanted, fcntl.LOCK_UN)

    async def take(self) -> None:
        """Have the devices for a worker, once the trainer does not want them."""
        while True:
            await self._unwanted()
            if _tried(self._held, fcntl.LOCK_SH):
                return
            await asyncio.sleep(POLL_S)

    async def wanted(self) -> None:
        """Wait until the trainer wants the devices."""
        while _tried(self._wanted, fcntl.LOCK_SH):
            fcntl.flock(self._wanted, fcntl.LOCK_UN)
            await asyncio.sleep(POLL_S)

    def give_up(self) -> None:
        """Let the trainer have the devices."""
        fcntl.flock(self._held, fcntl.LOCK_UN)

    async def _unwanted(self) -> None:
        await _locked(self._wanted, fcntl.LOCK_SH)
        fcntl.flock(self._wanted, fcntl.LOCK_UN)


async def _locked(descriptor: int, kind: int) -> None:
    while not _tried(descriptor, kind):  # noqa: ASYNC110  # another process releases it
        await asyncio.sleep(POLL_S)


def _tried(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
