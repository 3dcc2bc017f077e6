"""Probes of a coordinator: it serves once its calls are answered, also where its own port wants certificates."""

import asyncio
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from coordinator.app import served, serving
from coordinator.config import CoordinatorConfig
from coordinator.members.membership import Membership
from coordinator.store import open_store
from periplus import clock
from periplus.__main__ import run as periplus
from periplus.net import rpc
from tests.support.coordinator.loopback import DEADLINE_S
from tests.support.processes.probe import probed, watched


def test_a_coordinator_serves_until_it_stops() -> None:
    async def scene() -> None:
        server = rpc.server()
        config = CoordinatorConfig(listen=rpc.bind(server, "127.0.0.1:0"), health_listen="127.0.0.1:0")
        async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as running:
            others = await running.enter_async_context(serving(config, server))
            assert set(others) == {"health"}
            assert await probed(others["health"]) == "SERVING"
            seen = []
            async for status in watched(others["health"], "periplus.v1.Coordinator"):
                seen.append(status)
                if len(seen) == 1:
                    stopping = asyncio.create_task(running.aclose())
            await stopping
            assert seen == ["SERVING", "NOT_SERVING"]

    asyncio.run(scene())


def test_a_probe_needs_no_certificate(tmp_path: Path) -> None:
    async def scene() -> None:
        with closing(open_store(tmp_path)) as store:
            membership = Membership(store, clock.unix_s)
            server = rpc.server(membership.admit)
            address = rpc.bind(server, "127.0.0.1:0", rpc.ServerIdentity(current=membership.own_identity))
            config = CoordinatorConfig(listen=address, state_dir=tmp_path, health_listen="127.0.0.1:0")
            async with asyncio.timeout(DEADLINE_S), served(config, server, store, membership) as others:
                assert await probed(others["health"], "periplus.v1.Coordinator") == "SERVING"

    asyncio.run(scene())


def test_an_address_of_the_health_service_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["coordinator", "--health", "nowhere", "--log-level", "error"]) == 2
    assert "is not HOST:PORT" in capsys.readouterr().err
