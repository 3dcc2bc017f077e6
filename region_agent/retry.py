"""One attempt of a loop that dials again and again, and how long such a loop waits for what costs much.

It runs in a task of its own. A TaskGroup that is cancelled while a child fails raises the child's error and forgets the
cancellation: a loop that went on from there would never end.
"""

import asyncio
from collections.abc import Coroutine

from periplus.errors import PeriplusError, Unreachable
from periplus.net import rpc

FREE_ATTEMPTS = 3
"""Attempts without a pause: a gateway that died in the middle, a copy that is fetched, one that the trainer makes."""

LONGEST_PAUSE_S = 60.0
"""Each attempt may cost a full state over the WAN."""

RESET_AFTER_S = 300.0
"""After so long without another attempt the next one is the first again."""


class Backoff:
    """Pauses between repeated requests for what was refused: a few times at once, then less and less often."""

    def __init__(self) -> None:
        self._num_attempts = 0
        self._last_s = -RESET_AFTER_S

    def pause_s(self, now_s: float) -> float:
        """Before one more attempt."""
        self._num_attempts = 0 if now_s - self._last_s >= RESET_AFTER_S else self._num_attempts + 1
        self._last_s = now_s
        return (
            0.0
            if self._num_attempts < FREE_ATTEMPTS
            else min(LONGEST_PAUSE_S, 2.0 ** min(self._num_attempts - FREE_ATTEMPTS, 10))
        )


async def failure_of(attempt: Coroutine[None, None, None]) -> PeriplusError:
    """Why the attempt, which ends by errors alone, has ended. Raises: what is not one of ours."""
    task = asyncio.create_task(attempt)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.cancelled():
        return Unreachable("a call was cancelled from within; this is harmless, it is made again")
    match task.exception():
        case PeriplusError() as error:
            return error
        case BaseExceptionGroup() as group if (first := rpc.first_of(group)) is not None:
            return first
        case None:
            raise AssertionError("the attempt ended without an error")
        case other:
            raise other
