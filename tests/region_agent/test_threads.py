"""Work in a thread is waited for to its end, however often whoever waits for it is cancelled."""

import asyncio
import threading

import pytest

from region_agent.threads import ended
from tests.support.gateway.loopback import play


def test_no_number_of_cancellations_ends_the_wait_and_the_last_is_told_after_it() -> None:
    async def scene() -> None:
        gate, results = threading.Event(), []

        async def wait() -> None:
            running = asyncio.ensure_future(asyncio.to_thread(gate.wait, 20.0))
            cancelled = await ended(running)
            results.append(running.result())
            if cancelled is not None:
                raise cancelled

        waiting = asyncio.create_task(wait())
        for _ in range(3):
            await asyncio.sleep(0.001)
            waiting.cancel()
        await asyncio.sleep(0.001)
        assert not waiting.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert results == [True]

    play(scene)


def test_without_a_cancellation_there_is_none_to_tell() -> None:
    async def scene() -> None:
        assert await ended(asyncio.ensure_future(asyncio.sleep(0))) is None

    play(scene)
