"""Errors over a real loopback connection, through every kind of call that the gateway's protocol has."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from periplus import errors
from periplus.errors import MEANING, Conflict, NotFound, Overloaded, PeriplusError, TimedOut, Unreachable, WireError
from periplus.net import rpc
from periplus.net.rpc import first_of
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc

Stub = Any  # the typed stub is known to type checkers only
MESSAGE = "job 'größe' is at 7, not 3; ask again"
ALL = sorted(MEANING, key=lambda cls: cls.__name__)


async def missing(_: object, __: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")


class Without(gateway_pb2_grpc.GatewayServicer):
    """A peer of another build, which has none of these methods."""

    Rollout: Any = missing
    Subscribe: Any = missing
    Train: Any = missing
    Publish: Any = missing
    Probe: Any = missing
    Traffic: Any = missing
    Listen: Any = missing
    Relay: Any = missing


class Refusing(Without):
    """Each call raises `error`, once it has had a message and, where it streams, answered one."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def Publish(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            raise self._error

    async def Subscribe(self, request: Any, context: Any) -> None:  # type: ignore[override]
        await context.write(gateway_pb2.PublicationRecord())
        raise self._error

    async def Probe(self, request_iterator: Any, context: Any) -> AsyncIterator[gateway_pb2.ProbeAck]:
        async for chunk in request_iterator:
            yield gateway_pb2.ProbeAck(sequence=chunk.sequence)
            raise self._error

    async def Rollout(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.Event().wait())
            async for message in request_iterator:
                await context.write(gateway_pb2.RolloutDown(worker_id=message.worker_id))
                raise self._error


async def publish(stub: Stub) -> None:
    await stub.Publish(iter([gateway_pb2.PublicationRecord()]))


async def subscribe(stub: Stub) -> None:
    async for _ in stub.Subscribe(gateway_pb2.SubscribeRequest()):
        pass


async def probe(stub: Stub) -> None:
    async for _ in stub.Probe(iter([gateway_pb2.ProbeChunk(sequence=1)])):
        pass


async def rollout(stub: Stub) -> None:
    call = stub.Rollout()
    await call.write(gateway_pb2.RolloutUp(worker_id="w"))
    async for _ in call:
        pass


async def rollout_in_a_group(stub: Stub) -> None:
    """Hold a stream as workers and gateways do, with a writing task beside the reader."""
    call = stub.Rollout()
    await call.write(gateway_pb2.RolloutUp(worker_id="w"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.Event().wait())
        async for _ in call:
            pass


CALLS = (publish, subscribe, probe, rollout, rollout_in_a_group)


@asynccontextmanager
async def serving(servicer: gateway_pb2_grpc.GatewayServicer) -> AsyncIterator[str]:
    server = rpc.server()
    address = rpc.bind(server, "127.0.0.1:0")
    gateway_pb2_grpc.add_GatewayServicer_to_server(servicer, server)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


async def error_of(call: Callable[[Stub], Awaitable[None]], address: str) -> PeriplusError:
    async with rpc.channel(address) as channel:
        with pytest.raises(PeriplusError) as caught, rpc.remote_errors(address):
            await call(gateway_pb2_grpc.GatewayStub(channel))
    return caught.value


def over_loopback(call: Callable[[Stub], Awaitable[None]], error: BaseException) -> PeriplusError:
    async def run() -> PeriplusError:
        async with serving(Refusing(error)) as address:
            return await error_of(call, address)

    return asyncio.run(run())


@pytest.mark.parametrize("call", CALLS)
def test_every_error_crosses_a_call_with_its_class_and_message(call: Callable[[Stub], Awaitable[None]]) -> None:
    async def run() -> None:
        for cls in ALL:
            async with serving(Refusing(cls(MESSAGE))) as address:
                error = await error_of(call, address)
                assert (type(error), str(error)) == (cls, MESSAGE)

    asyncio.run(run())


@pytest.mark.parametrize("call", CALLS)
def test_a_long_message_crosses_cut_but_with_its_class(call: Callable[[Stub], Awaitable[None]]) -> None:
    """gRPC refuses large metadata, and would answer with an error of its own."""
    message = "ü" * 20_000
    error = over_loopback(call, errors.ConfigError(message))
    assert type(error) is errors.ConfigError
    assert str(error).endswith("...")
    assert message.startswith(str(error).removesuffix("..."))
    assert len(str(error).encode()) <= rpc.MAX_ERROR_BYTES


def test_a_crash_of_the_handler_is_an_error_of_the_root_class() -> None:
    error = over_loopback(publish, ZeroDivisionError("secret"))
    assert type(error) is PeriplusError


def test_a_crash_beside_an_error_of_ours_is_not_passed_off_as_ours() -> None:
    group = BaseExceptionGroup("", [NotFound("x"), ZeroDivisionError()])
    assert first_of(group) is None
    assert type(over_loopback(publish, group)) is PeriplusError


@pytest.mark.parametrize("call", CALLS)
def test_a_crash_behind_a_task_group_is_told_without_the_group(call: Callable[[Stub], Awaitable[None]]) -> None:
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ZeroDivisionError("by zero")])
    assert str(over_loopback(call, group)) == "ZeroDivisionError: by zero"


def test_the_first_of_several_errors_of_ours_is_the_one_that_counts() -> None:
    first = NotFound("first")
    nested = ExceptionGroup("", [ExceptionGroup("", [first]), Conflict("second")])
    assert first_of(nested) is first


def test_a_group_of_errors_of_ours_leaves_as_the_first_one_and_any_other_group_as_it_is() -> None:
    first = NotFound("first")
    for group, leaving in (
        (ExceptionGroup("", [first, Conflict("second")]), first),
        (mixed := ExceptionGroup("", [first, ZeroDivisionError()]), mixed),
    ):
        with pytest.raises(Exception) as raised, rpc.ungrouped():
            raise group
        assert raised.value is leaving


@pytest.fixture
def free_address() -> Iterator[str]:
    """Return an address that is bound, so that no other process takes its port, and does not answer."""
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("call", CALLS)
def test_an_address_where_nobody_listens_is_unreachable_and_named(
    call: Callable[[Stub], Awaitable[None]], free_address: str
) -> None:
    error = asyncio.run(error_of(call, free_address))
    assert type(error) is Unreachable
    assert free_address in str(error)


def test_a_deadline_that_passes_is_timed_out() -> None:
    class Silent(Without):
        async def Subscribe(self, request: Any, context: Any) -> None:  # type: ignore[override]
            await asyncio.Event().wait()

    async def late(stub: Stub) -> None:
        await stub.Subscribe(gateway_pb2.SubscribeRequest(), timeout=0.01).read()

    async def run() -> PeriplusError:
        async with serving(Silent()) as address:
            return await error_of(late, address)

    assert type(asyncio.run(run())) is TimedOut


def test_a_call_that_ends_while_its_requests_are_written_is_no_cancellation() -> None:
    # gRPC raises CancelledError at some of these moments, although nobody has cancelled: about one in fifty of them.
    class Silent(Without):
        async def Publish(self, request_iterator: Any, context: Any) -> Any:
            await asyncio.Event().wait()

    async def raced(stub: Stub, limit_s: float) -> None:
        await stub.Publish(iter([gateway_pb2.PublicationRecord()] * 20), timeout=limit_s)

    async def run() -> set[type[PeriplusError]]:
        async with serving(Silent()) as address:
            return {type(await error_of(partial(raced, limit_s=0.0005 * (n % 20)), address)) for n in range(200)}

    assert asyncio.run(run()) <= {TimedOut, Unreachable}


def test_only_a_cancelled_caller_leaves_remote_errors_as_cancelled() -> None:
    async def caller(is_cancelled: bool) -> None:
        with rpc.remote_errors("here:1"):
            if is_cancelled:
                await asyncio.Event().wait()
            raise asyncio.CancelledError

    async def run() -> None:
        with pytest.raises(Unreachable, match="here:1 has ended the call"):
            await caller(is_cancelled=False)
        task = asyncio.create_task(caller(is_cancelled=True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_server_that_goes_away_in_the_middle_of_a_stream_is_unreachable() -> None:
    class Open(Without):
        async def Rollout(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
            await context.write(gateway_pb2.RolloutDown())
            await asyncio.Event().wait()

    async def run() -> PeriplusError:
        server = rpc.server()
        address = rpc.bind(server, "127.0.0.1:0")
        gateway_pb2_grpc.add_GatewayServicer_to_server(Open(), server)
        await server.start()

        async def cut(stub: Stub) -> None:
            async with asyncio.TaskGroup() as tasks:
                async for _ in stub.Rollout():
                    tasks.create_task(server.stop(None))

        return await error_of(cut, address)

    assert type(asyncio.run(run())) is Unreachable


def test_a_task_that_is_cancelled_while_its_call_fails_ends_as_cancelled() -> None:
    """Else a loop that calls again after every error would never hear that it is to stop."""

    async def failing_when_cancelled() -> None:
        with rpc.remote_errors("a:1"):
            async with asyncio.TaskGroup():
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise Unreachable("the server went at the same moment") from None

    async def run() -> None:
        task = asyncio.create_task(failing_when_cancelled())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_no_proxy_of_the_environment_stands_between_services(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    assert isinstance(over_loopback(publish, NotFound("reached")), NotFound)


def test_a_write_on_a_call_that_has_ended_is_unreachable() -> None:
    async def write_late(stub: Stub) -> None:
        call = stub.Rollout()
        call.cancel()
        await asyncio.sleep(0)
        await call.write(gateway_pb2.RolloutUp())

    async def run() -> BaseException:
        async with serving(Refusing(NotFound("x"))) as address, rpc.channel(address) as channel:
            with pytest.raises((Unreachable, asyncio.CancelledError)) as caught, rpc.remote_errors(address):
                await write_late(gateway_pb2_grpc.GatewayStub(channel))
            return caught.value

    assert isinstance(asyncio.run(run()), Unreachable)


def test_a_method_that_the_peer_does_not_have_is_an_error_of_the_root_class() -> None:
    error = over_loopback(lambda stub: stub.Train().read(), NotFound("never raised"))
    assert type(error) is PeriplusError
    assert "check the address and the versions" in str(error)


async def refusal_of(address: str) -> str:
    with pytest.raises(Conflict) as caught:
        rpc.bind(rpc.server(), address)
    return str(caught.value)


def test_an_address_that_is_taken_is_a_conflict_that_names_it_and_all_that_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def run() -> None:
        async with serving(Without()) as address:
            assert await refusal_of(address) == (
                f"cannot listen on {address}: the port is in use; "
                "stop the process that uses it, or choose another address, or port 0 for a free port"
            )

    asyncio.run(run())
    # Connections of other tests may still end.
    said = [line for line in capfd.readouterr().err.splitlines() if "Got goaway" not in line]
    assert said == [], "gRPC has no line of its own"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("192.0.2.1:7070", "the address is not this machine's; choose one of its own"),
        ("no-such-host.invalid:7070", "no-such-host.invalid:7070: "),
    ],
)
def test_an_address_that_is_not_ours_is_a_conflict_of_one_line(
    address: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert why in asyncio.run(refusal_of(address))
    assert capfd.readouterr().err == ""


def test_all_addresses_of_the_machine_are_one_address_to_listen_on() -> None:
    async def run() -> None:
        server = rpc.server()
        assert rpc.bind(server, "0.0.0.0:0").startswith("0.0.0.0:")
        await server.stop(None)

    asyncio.run(run())


def test_a_call_that_is_dead_already_ends_as_a_cancelled_one() -> None:
    class Dead:
        async def abort(self, *_: object, **__: object) -> None:
            raise grpc.aio.InternalError("failed to execute a batch")

    async def act() -> None:
        context: Any = Dead()
        async with rpc._aborting(context):
            raise NotFound("nobody will hear of it")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(act())


def test_one_address_has_a_bounded_number_of_open_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_OPEN_CALLS", 3)

    async def run() -> None:
        async with serving(Waiting()) as address, rpc.channel(address) as channel:
            stub: Any = gateway_pb2_grpc.GatewayStub(channel)
            calls = [stub.Subscribe(gateway_pb2.SubscribeRequest()) for _ in range(3)]
            for call in calls:
                await call.read()
            with pytest.raises(Overloaded, match="3 open calls"), rpc.remote_errors(address):
                await stub.Subscribe(gateway_pb2.SubscribeRequest()).read()
            calls.pop().cancel()
            async with asyncio.timeout(5):
                while True:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        if await stub.Subscribe(gateway_pb2.SubscribeRequest()).read():
                            break
                    await asyncio.sleep(0.01)

    asyncio.run(run())


class Waiting(Without):
    """Answers a subscription at once, and keeps it open."""

    async def Subscribe(self, request: Any, context: Any) -> None:  # type: ignore[override]
        await context.write(gateway_pb2.PublicationRecord())
        await asyncio.Event().wait()

    async def Publish(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            pass

    async def Probe(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async for _ in request_iterator:
            pass

    async def Traffic(self, request: Any, context: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize("method", ["Publish", "Subscribe", "Probe", "Traffic"])
def test_bytes_that_are_no_message_are_refused_without_a_traceback(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with serving(Waiting()) as address, rpc.channel(address) as channel:
            of = gateway_pb2.DESCRIPTOR.services_by_name["Gateway"].methods_by_name[method]
            kind = f"{'stream' if of.client_streaming else 'unary'}_{'stream' if of.server_streaming else 'unary'}"
            begin: Any = getattr(channel, kind)(f"/periplus.v1.Gateway/{method}")
            call = begin() if of.client_streaming else begin(b"\xff")
            if of.client_streaming:
                await call.write(b"\xff")
            with pytest.raises(WireError, match="1 bytes are not the message"), rpc.remote_errors(address):
                await (call.read() if of.server_streaming else call)

    asyncio.run(run())
    assert caplog.records == []


def test_a_call_that_fails_while_a_message_is_written_still_ends() -> None:
    async def run() -> None:
        async with serving(Failing()) as address, rpc.channel(address) as channel:
            stub: Any = gateway_pb2_grpc.GatewayStub(channel)
            call = stub.Subscribe(gateway_pb2.SubscribeRequest())
            await asyncio.sleep(0.3)  # the peer reads nothing meanwhile, so that the write waits

            async def read() -> None:
                while await call.read() is not grpc.aio.EOF:
                    pass

            with pytest.raises(Conflict), rpc.remote_errors(address):
                await asyncio.wait_for(read(), 5)

    asyncio.run(run())


class Failing(Without):
    """Fails while it writes."""

    async def Subscribe(self, request: Any, context: Any) -> None:  # type: ignore[override]
        async def write() -> None:
            chunk = gateway_pb2.Chunk(data=bytes(8 << 20))
            while True:
                await context.write(gateway_pb2.PublicationRecord(chunk=chunk))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            await asyncio.sleep(0.1)
            raise Conflict("the job has moved")


def test_a_write_that_fails_within_grpc_is_a_lost_connection() -> None:
    nothing = grpc.aio.Metadata()
    failed = [
        grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, details=details)
        for details in ("Internal error from Core", "a bug of the other side")
    ]
    assert [type(rpc.translate(error, "here:1")) for error in failed] == [Unreachable, PeriplusError]
