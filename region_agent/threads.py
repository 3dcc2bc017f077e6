"""Waits for work in a thread that must be finished even if the task that waits for it is cancelled."""

import asyncio
from typing import Any


async def ended(running: "asyncio.Future[Any]") -> asyncio.CancelledError | None:
    """Wait until a future is done, and return the cancellation of the waiting task, if there was one.

    A thread cannot be cancelled, and what it does on disk must be known before anything else is done there. A task may
    be cancelled more than once while it waits, by its owner and by a TaskGroup that ends; none of them ends the wait.
    The caller looks at the result of the future, and then raises the cancellation.
    """
    cancelled = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
