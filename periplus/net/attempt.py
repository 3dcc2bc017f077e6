"""Runs one attempt of a loop that connects again and again, and returns the error with which the attempt ended.

Each attempt runs in an asyncio task of its own, for this reason: if a TaskGroup is cancelled while one of its children
fails, it raises the child's error and loses the cancellation. A loop that went on after that error would never end. The
pauses between attempts are in periplus/process/backoff.py.
"""

import asyncio
from collections.abc import Coroutine

from periplus.errors import PeriplusError, Unreachable
from periplus.net import rpc


async def failure_of(attempt: Coroutine[None, None, None]) -> PeriplusError:
    """Return the error with which an attempt ended. The attempt must not return normally.

    A cancellation from outside cancels the attempt and is passed on. A call that was cancelled from within counts as
    Unreachable. Raises: any error that is not a PeriplusError.
    """
    task = asyncio.create_task(attempt)
    try:
        # Unlike awaiting the task, this raises only if this coroutine is cancelled itself.
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    # The attempt was cancelled, but not by this coroutine: a call inside of it was.
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
