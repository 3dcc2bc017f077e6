"""One attempt of a loop that dials again and again.

It runs in a task of its own. A TaskGroup that is cancelled while a child fails raises the child's error and forgets the
cancellation: a loop that went on from there would never end.
"""

import asyncio
from collections.abc import Coroutine

from periplus import rpc
from periplus.errors import PeriplusError, Unreachable


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
