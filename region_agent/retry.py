"""Tools for loops that connect again and again: the failure of one attempt, and pauses between expensive attempts.

`failure_of` runs each attempt in an asyncio task of its own, for this reason: if a TaskGroup is cancelled while one of
its children fails, it raises the child's error and loses the cancellation. A loop that went on after that error would
never end.
"""

import asyncio
from collections.abc import Coroutine

from periplus.errors import PeriplusError, Unreachable
from periplus.net import rpc

FREE_ATTEMPTS = 3
"""Number of attempts without a pause. Chosen by hand for three ordinary causes: a gateway that died during a transfer,
one that needs a copy of the weights first, and a trainer that has to publish a full state first.
"""

LONGEST_PAUSE_S = 60.0
"""Longest pause between two attempts, in seconds, because each attempt may transfer a full state over the WAN. Chosen
by hand.
"""

RESET_AFTER_S = 300.0
"""Seconds without an attempt after which the next one counts as the first again. Chosen by hand."""


class Backoff:
    """Pauses between repeated requests for something that was refused: none at first, then doubling up to a limit."""

    def __init__(self) -> None:
        self._num_attempts = 0
        self._last_s = -RESET_AFTER_S

    def pause_s(self, now_s: float) -> float:
        """Return how many seconds to wait before one more attempt, which is made at `now_s`."""
        self._num_attempts = 0 if now_s - self._last_s >= RESET_AFTER_S else self._num_attempts + 1
        self._last_s = now_s
        return (
            0.0
            if self._num_attempts < FREE_ATTEMPTS
            else min(LONGEST_PAUSE_S, 2.0 ** min(self._num_attempts - FREE_ATTEMPTS, 10))
        )


async def failure_of(attempt: Coroutine[None, None, None]) -> PeriplusError:
    """Return the error with which an attempt ended. The attempt must not return normally.

    A cancellation from outside cancels the attempt and is passed on. A call that was cancelled from within counts as
    Unreachable. Raises: any error that is not a PeriplusError.
    """
    task = asyncio.create_task(attempt)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.cancelled():
        return Unreachable("a call was cancelled by its own side; this is harmless, it is retried")
    match task.exception():
        case PeriplusError() as error:
            return error
        case BaseExceptionGroup() as group if (first := rpc.first_of(group)) is not None:
            return first
        case None:
            raise AssertionError("the attempt ended without an error")
        case other:
            raise other
