"""The health service answers probes without certificates, and nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import grpc
import grpc.aio
import pytest

from periplus.errors import Conflict, PeriplusError
from periplus.net import rpc
from periplus.net.health import answering_probes
from periplus.pb.v1 import control_pb2, control_pb2_grpc
from tests.support.processes.probe import probed, watched

DEADLINE_S = 60.0


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scene()

    asyncio.run(within_time())


def test_a_check_answers_what_is_so_now() -> None:
    async def scene() -> None:
        serves = {"": True, "a": True}
        async with answering_probes("127.0.0.1:0", lambda: serves) as address:
            assert await probed(address) == await probed(address, "a") == "SERVING"
            serves["a"] = False
            assert (await probed(address), await probed(address, "a")) == ("SERVING", "NOT_SERVING")

    play(scene)


def test_an_unknown_service_is_not_found() -> None:
    async def scene() -> None:
        async with answering_probes("127.0.0.1:0", lambda: {"": True}) as address:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await probed(address, "b")
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            async with aclosing(watched(address, "b")) as statuses:
                assert await anext(statuses) == "SERVICE_UNKNOWN"

    play(scene)


def test_a_watcher_sees_each_change_and_the_end() -> None:
    async def scene() -> None:
        serves, seen = {"": False}, []
        stopped = asyncio.Event()

        async def serve() -> None:
            async with answering_probes("127.0.0.1:0", lambda: serves) as address:
                addresses.set_result(address)
                await stopped.wait()

        addresses: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve())
        async for status in watched(await addresses):
            seen.append(status)
            if status == "NOT_SERVING" and not serves[""]:
                serves[""] = True
            else:
                stopped.set()
        await serving
        assert seen == ["NOT_SERVING", "SERVING", "NOT_SERVING"]

    play(scene)


def test_the_port_answers_nothing_but_health() -> None:
    async def scene() -> None:
        async with (
            answering_probes("127.0.0.1:0", lambda: {"": True}) as address,
            rpc.channel(address) as channel,
        ):
            with pytest.raises(PeriplusError, match="does not know this call"), rpc.remote_errors(address):
                await control_pb2_grpc.CoordinatorStub(channel).GetFleet(control_pb2.GetFleetRequest())

    play(scene)


def test_without_an_address_nothing_listens_and_a_taken_port_is_a_conflict() -> None:
    async def scene() -> None:
        async with answering_probes("", dict) as nowhere:
            assert nowhere == ""
        async with answering_probes("127.0.0.1:0", dict) as taken:
            with pytest.raises(Conflict, match="the port is in use"):
                async with answering_probes(taken, dict):
                    pass

    play(scene)
