"""A coordinator with a token file answers no call, of whatever kind, without the token."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from coordinator.client.connection import connect
from coordinator.client.library.calls import answering
from coordinator.members.access import Access
from periplus.__main__ import run as periplus
from periplus.errors import EXIT_OK, MEANING, Denied
from periplus.net import rpc
from periplus.net.tokens import make_token, metadata_of, read_token
from periplus.pb.v1 import control_pb2, control_pb2_grpc
from tests.support.coordinator.loopback import DEADLINE_S, coordinator

METHODS = control_pb2.DESCRIPTOR.services_by_name["Coordinator"].methods


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    make_token(tmp_path / "token")
    return tmp_path / "token"


async def call(stub: Any, method: Any, token: str) -> None:
    """Call a method with an empty request, whatever its kind, and wait for its first answer."""
    request = GetMessageClass(method.input_type)()

    async def requests() -> AsyncIterator[Any]:
        yield request

    sent = requests() if method.client_streaming else request
    answers = getattr(stub, method.name)(sent, metadata=metadata_of(token), timeout=DEADLINE_S)
    if method.server_streaming:
        async for _ in answers:
            return
    else:
        await answers


@pytest.mark.parametrize("token", ["", "guessed"])
def test_every_method_refuses_a_caller_without_the_token(token_file: Path, token: str) -> None:
    async def scene() -> None:
        async with coordinator(token_file=token_file) as address, rpc.channel(address) as channel:
            stub = control_pb2_grpc.CoordinatorStub(channel)
            for method in METHODS:
                with pytest.raises(Denied, match=str(token_file)), rpc.remote_errors(address):
                    await call(stub, method, token)

    assert {"Session", "SubmitJob", "WatchJob", "GetFleet"} <= {method.name for method in METHODS}
    asyncio.run(scene())


def test_clients_with_the_token_are_answered(token_file: Path) -> None:
    async def scene() -> None:
        token = read_token(token_file)
        async with coordinator(token_file=token_file) as address:
            async with connect(address, Access(token)) as remote:
                assert not (await remote.fleet()).regions
            blocking = await asyncio.to_thread(answering, address, Access(token))
            assert blocking is not None
            assert await asyncio.to_thread(blocking.jobs) == []
            await asyncio.to_thread(blocking.close)

    asyncio.run(scene())


def test_a_command_takes_the_token_from_the_environment_and_is_denied_without(
    token_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scene() -> tuple[int, int]:
        async with coordinator(token_file=token_file) as address:
            command = ["job", "list", "--coordinator", address]
            denied = await asyncio.to_thread(periplus, command)
            monkeypatch.setenv("PERIPLUS_TOKEN", read_token(token_file))
            return denied, await asyncio.to_thread(periplus, command)

    monkeypatch.delenv("PERIPLUS_TOKEN", raising=False)
    assert asyncio.run(scene()) == (MEANING[Denied].exit_code, EXIT_OK)
    assert str(token_file) in capsys.readouterr().err
