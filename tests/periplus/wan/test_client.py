"""A process's view: the control service over real gRPC, and gRPC streams through a relay."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from periplus import errors
from periplus.net import rpc
from periplus.pb.v1 import wan_pb2, wan_pb2_grpc
from periplus.wan import grid
from periplus.wan.client import LinkProperty, WanControl, address_resolver
from periplus.wan.relay import Relay
from periplus.wan.service import _PROPERTY_TO_WIRE, WanService, link_count_from_wire, link_count_to_wire
from periplus.wan.shaping import LinkCount


@asynccontextmanager
async def emulator(*regions: str) -> AsyncIterator[str]:
    relay = Relay(grid.unlimited(regions), asyncio.get_running_loop())
    server = rpc.server()
    wan_pb2_grpc.add_WanEmulatorServicer_to_server(WanService(relay), server)
    control = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield control
    finally:
        await server.stop(None)
        relay.close()


@asynccontextmanager
async def chunk_server() -> AsyncIterator[str]:
    async def upper(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request.upper()

    server = rpc.server()
    handlers: dict[str, Any] = {"Upper": grpc.stream_stream_rpc_method_handler(upper)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    address = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


def test_grpc_streams_pass_through_the_relay_and_are_counted() -> None:
    async def test() -> None:
        async with (
            emulator("a", "b") as control,
            chunk_server() as served,
            address_resolver("a", control) as in_a,
            address_resolver("b", control) as in_b,
            WanControl(control) as wan,
        ):
            await in_b.announce(served)
            for src, dst in (("a", "b"), ("b", "a")):
                await wan.set_link(src, dst, LinkProperty.RATE, 200e6)
                await wan.set_link(src, dst, LinkProperty.RTT, 0.03)
            route = await in_a.resolve(served)
            assert route != served
            assert await in_b.resolve(served) == served
            chunks = [bytes([97 + i]) * (256 << 10) for i in range(12)]

            async def requests() -> AsyncIterator[bytes]:
                for chunk in chunks:
                    yield chunk

            async with rpc.channel(route) as channel:
                upper: Any = channel.stream_stream("/test.Echo/Upper")
                call = upper(requests(), timeout=10)
                assert [answer async for answer in call] == [chunk.upper() for chunk in chunks]
            payload_bytes = 12 * (256 << 10)
            for link in await wan.counters():
                assert payload_bytes < link.delivered_bytes < 1.01 * payload_bytes
                assert (link.rate_bits_per_s, link.rtt_s, link.dropped) == (200e6, 0.03, False)

    asyncio.run(test())


def test_without_an_emulator_every_route_is_the_address() -> None:
    async def test() -> None:
        async with address_resolver("a", None) as resolver:
            await resolver.announce("10.0.0.1:5")
            assert await resolver.resolve("10.0.0.2:5") == "10.0.0.2:5"

    asyncio.run(test())


def test_what_the_emulator_refuses_reaches_the_caller_as_the_same_class() -> None:
    async def test() -> None:
        async with emulator("north", "south") as control, WanControl(control) as wan:
            with pytest.raises(errors.NotFound, match="did you mean north"):
                await wan.attach("nort", "127.0.0.1:9")
            with pytest.raises(errors.NotFound, match="attach it first"):
                await wan.route("north", "127.0.0.1:9")
            with pytest.raises(errors.ConfigError, match="rtt_s"):
                await wan.set_link("north", "south", LinkProperty.RTT, -1)
            async with rpc.channel(control) as channel:
                with pytest.raises(errors.ConfigError, match="set rate, rtt or drop"), rpc.remote_errors(control):
                    await wan_pb2_grpc.WanEmulatorStub(channel).SetLink(wan_pb2.SetLinkRequest())
            await wan.set_link("north", "south", LinkProperty.DROP, 1)
            assert {(link.src_region, link.dropped) for link in await wan.counters()} == {
                ("north", True),
                ("south", False),
            }

    asyncio.run(test())


def test_an_emulator_that_is_not_there_is_unreachable() -> None:
    async def test() -> None:
        async with emulator("a", "b") as control:
            pass
        async with address_resolver("a", control) as resolver:
            with pytest.raises(errors.Unreachable, match=control):
                await resolver.resolve("127.0.0.1:9")

    asyncio.run(test())


@pytest.mark.parametrize("rate_bits_per_s", [math.inf, 12.5])
def test_counts_survive_the_wire(rate_bits_per_s: float) -> None:
    count = LinkCount(
        src_region="a",
        dst_region="b",
        delivered_bytes=1 << 40,
        queued_bytes=7,
        rate_bits_per_s=rate_bits_per_s,
        rtt_s=0.25,
        dropped=True,
    )
    assert link_count_from_wire(link_count_to_wire(count)) == count


def test_the_properties_are_those_of_the_wire() -> None:
    on_wire = set(wan_pb2.LinkProperty.values()) - {wan_pb2.LINK_PROPERTY_UNSPECIFIED}
    assert set(_PROPERTY_TO_WIRE) == set(LinkProperty)
    assert set(_PROPERTY_TO_WIRE.values()) == on_wire
