"""Regions that cannot be dialled, reached by way of a third one: by certificates from end to end, and when it dies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from periplus import clock
from periplus.errors import Unreachable
from periplus.net import parties
from periplus.net.resolver import DirectResolver
from periplus.values.relayed_address import RelayedAddress
from region_agent.control.links import probe
from region_agent.relay import switchboard
from region_agent.relay.paths import RelayedPaths
from tests.support.gateway.loopback import played
from tests.support.gateway.relayed import secured, secured_gateway

PAYLOAD_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "LISTEN_S", 0.2)


@asynccontextmanager
async def paths(region: str, gateway: str = "127.0.0.1:1") -> AsyncIterator[RelayedPaths]:
    """The paths of a region, whose own gateway is at an address."""
    async with asyncio.TaskGroup() as tasks:
        found = RelayedPaths(region, gateway, DirectResolver(), secured(region), tasks, lambda: 0.1)
        try:
            yield found
        finally:
            found.close()


def by_way_of(hub: Any, region: str = "eu") -> str:
    return str(RelayedAddress(relay_address=hub.address, relay_region="hub", region=region))


async def resolved(us: RelayedPaths, address: str) -> str:
    """The address to dial, once the other region listens."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await us.resolve(address)
            except Unreachable:
                await asyncio.sleep(0.01)


def test_a_relayed_address_is_told_from_others() -> None:
    address = RelayedAddress(relay_address="[::1]:7", relay_region="aws:us-1", region="eu_2")
    assert RelayedAddress.of(str(address)) == address
    assert str(address) == "relay://[::1]:7/aws:us-1/eu_2"
    for other in ("", "10.0.0.1:7072", "relay://a:1/b", "relay://a:1/b/c/d"):
        assert RelayedAddress.of(other) is None


@played
async def test_a_link_is_measured_through_a_relay_and_the_far_gateway_shows_its_own_certificate() -> None:
    async with (
        secured_gateway("hub", relays=True) as hub,
        secured_gateway("eu") as eu,
        paths("us") as us,
        paths("eu", eu.address) as far,
    ):
        far.listen_at("hub", hub.address)
        address = await resolved(us, by_way_of(hub))
        call = secured("us")
        found = await probe(address, "us", "eu", PAYLOAD_BYTES, clock.monotonic_s, call(parties.region("eu")))
        assert found.sent_bytes == PAYLOAD_BYTES
        assert hub.traffic.sent_bytes["eu"] > PAYLOAD_BYTES
        assert 0 < hub.traffic.sent_bytes["us"] < PAYLOAD_BYTES
        for other in ("hub", "ap"):
            with pytest.raises(Unreachable):
                await probe(address, "us", "eu", 1, clock.monotonic_s, call(parties.region(other)))


@played
async def test_the_region_of_the_relay_dials_its_own_gateway_and_counts_its_bytes_once() -> None:
    async with (
        secured_gateway("hub", relays=True) as hub,
        secured_gateway("eu") as eu,
        paths("hub", hub.address) as own,
        paths("eu", eu.address) as far,
    ):
        far.listen_at("hub", hub.address)
        advertised = RelayedAddress(relay_address="192.0.2.1:1", relay_region="hub", region="eu")
        address = await resolved(own, str(advertised))
        await probe(address, "hub", "eu", 1, clock.monotonic_s, secured("hub")(parties.region("eu")))
        assert not hub.traffic.sent_bytes


@played
async def test_a_path_that_leads_nowhere_says_why() -> None:
    async with secured_gateway("hub", relays=True) as hub, paths("us") as us:
        with pytest.raises(Unreachable, match="eu does not listen at the relay of hub"):
            await us.resolve(by_way_of(hub))
        with pytest.raises(Unreachable, match="no region relays to it: give an agent --relay"):
            await us.resolve("")
        with pytest.raises(Unreachable, match=r"cannot reach 127\.0\.0\.1:1;"):
            await us.resolve("relay://127.0.0.1:1/hub/eu")
        assert await us.resolve("10.0.0.1:7072") == "10.0.0.1:7072"


@played
async def test_connections_of_a_relay_that_died_break_and_others_go_by_way_of_the_next_one() -> None:
    async with (
        secured_gateway("eu") as eu,
        secured_gateway("hub2", relays=True) as second,
        paths("us") as us,
        paths("eu", eu.address) as far,
    ):
        async with secured_gateway("hub", relays=True) as first:
            far.listen_at("hub", first.address)
            host, _, port = (await resolved(us, by_way_of(first))).rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            await first.server.stop(None)
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await reader.readexactly(1 << 20)
            writer.close()
        far.listen_at("hub2", second.address)
        onward = str(RelayedAddress(relay_address=second.address, relay_region="hub2", region="eu"))
        address = await resolved(us, onward)
        await probe(address, "us", "eu", 1, clock.monotonic_s, secured("us")(parties.region("eu")))


@played
async def test_a_region_listens_again_at_a_relay_that_was_away() -> None:
    async with secured_gateway("eu") as eu, paths("us") as us, paths("eu", eu.address) as far:
        async with secured_gateway("hub", relays=True) as hub:
            far.listen_at("hub", hub.address)
            await resolved(us, by_way_of(hub))
        async with secured_gateway("hub", relays=True, address=hub.address) as hub:
            await resolved(us, by_way_of(hub))
            far.listen_at("", "")

            async def reached() -> bool:
                try:
                    return bool(await us.resolve(by_way_of(hub)))
                except Unreachable:
                    return False

            async with asyncio.timeout(20):
                while await reached():  # noqa: ASYNC110  # the relay learns that the call has ended
                    await asyncio.sleep(0.01)
