"""The coordinator's one writer, driven without a server."""

import asyncio
import contextlib
from typing import Any

from coordinator.events import RegionJoined
from coordinator.state import State
from coordinator.store import open_store
from coordinator.writer import AgentSession, Writer
from tests.support.coordinator.machine_run import AUTHORITY_KEY, SETTINGS, hello
from tests.support.gateway.loopback import until


def test_a_region_leaves_also_if_the_call_that_tells_of_it_is_cancelled() -> None:
    """A call whose peer died is cancelled, and its region would count as there until it is silent."""

    def no_plan(*_: Any) -> Any:
        raise AssertionError

    async def scene() -> None:
        with contextlib.closing(open_store(None)) as store:
            writer = Writer(State(settings=SETTINGS, authority_key=AUTHORITY_KEY), store, lambda: 1000.0, no_plan)
            session = AgentSession()
            running = asyncio.create_task(writer.run())
            await writer.apply(RegionJoined(hello("eu"), 1), session)
            leaving = asyncio.create_task(writer.leave("eu", session))
            await asyncio.sleep(0)  # it is queued
            leaving.cancel()
            await until(lambda: not writer.state.regions["eu"].connected)
            running.cancel()
            await asyncio.wait({running, leaving})

    asyncio.run(scene())
