"""A relay over real gRPC: bytes in both directions, ends that wait or leave, and who is served."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from periplus.errors import ConfigError, Denied, NotFound, StateError, TimedOut, Unreachable
from periplus.net import parties, rpc
from region_agent.relay import switchboard
from tests.support.gateway.loopback import gateway, played
from tests.support.gateway.relayed import END, Caller, data, identity, relaying, secured_gateway

CHUNK = bytes(1 << 16)
MOST_IN_FLIGHT = 32 << 20
"""Bytes that gRPC may hold on the way between two ends, of which one does not read."""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "LISTEN_S", 0.2)


async def read(call: Any) -> Any:
    with rpc.remote_errors("the relay"):
        found = await call.read()
    if found is grpc.aio.EOF:
        with rpc.remote_errors("the relay"):
            raise grpc.aio.AioRpcError(
                await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )
    return found


async def begin(caller: Caller, name: str, **opening: Any) -> Any:
    """Read the first message of a new end, as a program does that calls again.

    If a call is refused while its first message is sent, gRPC tells an internal error and not why.
    """
    for _ in range(3):
        try:
            return await read(await caller.end(name, **opening))
        except Unreachable as error:
            if "is it running" not in str(error):
                raise
    raise AssertionError("gRPC did not tell a refusal three times")


@played
async def test_bytes_go_both_ways_and_each_direction_ends_by_itself() -> None:
    async with relaying() as (hub, caller):
        near, far = await caller.joined()
        await near.write(data(b"there"))
        assert (await read(far)).data == b"there"
        await near.write(END)
        assert (await read(far)).is_end
        await far.write(data(b"back"))
        assert (await read(near)).data == b"back"
        await far.write(END)
        assert (await read(near)).is_end
        assert await near.code() is await far.code() is grpc.StatusCode.OK
        assert hub.traffic.sent_bytes.keys() == {"eu", "us"}


@played
async def test_an_end_that_does_not_read_holds_the_other_one_up_and_loses_nothing() -> None:
    async with relaying() as (_, caller):
        near, far = await caller.joined()
        num_sent = 0

        async def send() -> None:
            nonlocal num_sent
            while num_sent < 2 * MOST_IN_FLIGHT // len(CHUNK):
                await near.write(data(CHUNK))
                num_sent += 1
            await near.write(END)

        sending, before = asyncio.create_task(send()), -1
        while before != num_sent:
            before = num_sent
            await asyncio.wait({sending}, timeout=0.3)
        assert not sending.done()
        assert num_sent * len(CHUNK) < MOST_IN_FLIGHT
        num_read = 0
        while not (chunk := await read(far)).is_end:
            num_read += len(chunk.data)
        assert num_read == 2 * MOST_IN_FLIGHT
        await sending


@played
@pytest.mark.parametrize("leaves", [0, 1])
async def test_an_end_learns_that_the_other_one_is_gone(leaves: int) -> None:
    async with relaying() as (_, caller):
        ends = await caller.joined()
        await ends[0].write(data(b"x"))
        assert (await read(ends[1])).data == b"x"
        ends[leaves].cancel()
        with pytest.raises(Unreachable, match=f"the end of {('us', 'eu')[leaves]} of a connection"):
            await read(ends[1 - leaves])


@played
async def test_an_end_that_closes_its_call_without_a_word_counts_as_gone() -> None:
    async with relaying() as (_, caller):
        near, far = await caller.joined()
        await near.done_writing()
        for each in (near, far):
            with pytest.raises(Unreachable):
                await read(each)


@played
async def test_a_caller_waits_a_moment_for_a_region_that_is_about_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "LISTEN_S", 60.0)
    async with relaying() as (_, caller):
        near = await caller.end("us", region="eu")
        opened = asyncio.create_task(read(near))
        other = await caller.listens("ap")
        listening = await caller.listens("eu")
        assert not opened.done()
        far = await caller.end("eu", connection_id=(await listening.read()).connection_id)
        await read(far)
        await opened
        other.cancel()


@played
async def test_a_region_that_does_not_listen_is_not_reached() -> None:
    async with relaying() as (_, caller):
        with pytest.raises(Unreachable, match="eu does not listen at the relay of hub"):
            await begin(caller, "us", region="eu")
        listening = await caller.listens("eu")
        listening.cancel()
        near: list[Any] = []

        async def is_gone() -> bool:
            try:
                near[:] = [await caller.end("us", region="eu")]
                await asyncio.wait_for(read(near[0]), 1.0)
            except TimeoutError:
                return False
            except Unreachable:
                return True
            return False

        async with asyncio.timeout(20):
            while not await is_gone():
                pass


@played
async def test_a_connection_that_is_not_accepted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "ACCEPT_S", 0.05)
    async with relaying() as (_, caller):
        listening = await caller.listens("eu")
        with pytest.raises(TimedOut, match="eu took no connection at hub"):
            await begin(caller, "us", region="eu")
        number = (await listening.read()).connection_id
        with pytest.raises(NotFound, match="its caller may have left"):
            await begin(caller, "eu", connection_id=number)


@played
async def test_only_the_region_that_was_called_may_accept() -> None:
    async with relaying() as (_, caller):
        listening = await caller.listens("eu")
        near = await caller.end("us", region="eu")
        number = (await listening.read()).connection_id
        with pytest.raises(NotFound, match=f"no connection {number} waits for ap at hub"):
            await begin(caller, "ap", connection_id=number)
        await begin(caller, "eu", connection_id=number)
        await read(near)


@played
async def test_a_caller_that_is_no_agent_is_refused_and_so_is_a_chunk_that_names_nothing() -> None:
    async with relaying() as (_, caller):
        with pytest.raises(Denied, match="for agents of regions alone"):
            await begin(caller, "", region="eu")
        with pytest.raises(StateError, match="must name its other end"):
            await begin(caller, "us", data=b"x")


@played
async def test_a_certificate_decides_who_listens_and_processes_of_jobs_may_not() -> None:
    async with secured_gateway("hub", relays=True) as hub:
        peer = parties.region("hub")
        of_us = rpc.Secured(identity=identity(parties.region("us")), peer=peer)
        of_task = rpc.Secured(identity=identity(parties.task("hub", "job", "trainer")), peer=peer)
        async with rpc.channel(hub.address, of_us) as channel:
            caller = Caller(channel)
            listening = await caller.listens("eu")  # which it is not
            with pytest.raises(Unreachable, match="eu does not listen"):
                await begin(caller, "us", region="eu")
            near = await caller.end("", region="us")
            assert (await listening.read()).connection_id
            near.cancel()
        async with rpc.channel(hub.address, of_task) as channel:
            with pytest.raises(Denied, match="may not call Relay"):
                await begin(Caller(channel), "us", region="eu")


@played
async def test_a_gateway_relays_only_if_its_owner_wants_it_and_has_egress_left() -> None:
    async with gateway("hub") as hub, rpc.channel(hub.address) as channel:
        with pytest.raises(ConfigError, match="its agent has no --relay"):
            await begin(Caller(channel), "us", region="eu")
    spent = [""]
    async with relaying(lambda: spent[0]) as (_, caller):
        near, far = await caller.joined()
        spent[0] = "3 GB a day"
        await near.write(data(b"x"))
        with pytest.raises(Denied, match="3 GB a day"):
            await read(near)
        with pytest.raises(Unreachable):
            await read(far)
        with pytest.raises(Denied, match="3 GB a day"):
            await begin(caller, "us", region="eu")


@played
async def test_what_a_relay_sends_for_others_is_its_traffic_and_what_its_own_region_sends_is_counted_there() -> None:
    async with relaying() as (hub, caller):
        near, far = await caller.joined()
        await near.write(data(CHUNK))
        await read(far)
        assert hub.traffic.sent_bytes["eu"] > len(CHUNK)
        before = hub.traffic.sent_bytes.copy()
        near, far = await caller.joined("hub", "ap")
        await near.write(data(CHUNK))
        await read(far)
        assert hub.traffic.sent_bytes == before
