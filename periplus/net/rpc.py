"""gRPC channels and servers, their limits and deadlines, and the one translation between our errors and gRPC's.

A server runs every handler behind `ErrorInterceptor`, which ends a call that raised a PeriplusError with its status and
an `ErrorDetail` in the trailing metadata. A client wraps its calls in `remote_errors(address)`: an `AioRpcError` with a
detail becomes the same PeriplusError class again, and one without becomes Unreachable or TimedOut. Keepalive is set on
both sides, because by default gRPC notices a frozen peer after minutes or never.

All channels and server ports are opened here: with mutual TLS if both ends have an identity
(`periplus.net.certificates`), else in plain TCP. A caller names the party that it calls, and the server's certificate
must name the same one, whatever the address. Servers read their identity anew for each connection, so that it may be
renewed. No channel uses a proxy, whatever the environment names.
"""

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from periplus import errors
from periplus.net import parties
from periplus.net.certificates import Identity, certified_party, issued_at_s
from periplus.net.parties import Party
from periplus.net.peers import peer_host
from periplus.net.tokens import Metadata
from periplus.pb.v1 import common_pb2

log = logging.getLogger(__name__)

CALL_DEADLINE_S = 10.0
"""Deadline of a unary call, in seconds. Chosen by hand: three intercontinental round trips, and slack for a busy
machine."""

MAX_MESSAGE_BYTES = 12 << 20
"""Largest gRPC message, in bytes: a chunk of a publication has up to 10 MiB, and control messages are far smaller."""

MAX_ERROR_BYTES = 4 << 10
"""Largest error message that is sent to the caller, in bytes, because gRPC refuses more than 8 KiB of metadata."""

LAST_WRITE_S = 60.0
"""Seconds for the message that is being written when a call fails, before the call is given up without a word to its
peer. A distant peer that reads needs a few. Chosen by hand."""

MAX_PROBE_BYTES = 1 << 28
"""Most bytes that one measurement of a link may send: a second of a link of 2 Gbit/s. Chosen by hand."""

MAX_OPEN_CALLS = 256
"""Calls that one server serves at the same time for all processes at one network address. Eight jobs with 16 workers on
one machine hold 256 streams of its gateway. Chosen by hand."""

_CANNOT_BIND = {
    errno.EADDRINUSE: (
        "the port is in use",
        "stop the process that uses it, or choose another address, or port 0 for a free port",
    ),
    errno.EADDRNOTAVAIL: ("the address is not this machine's", "choose one of its own, or 0.0.0.0 for all of them"),
    errno.EACCES: ("no permission for this port", "choose a port above 1023"),
    socket.EAI_NONAME: ("the host's name is not known", "choose an address of this machine"),
}
"""What is wrong and what to do, by the error of a `bind` that failed."""

_DETAIL_KEY = "periplus-error-bin"
_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_SIZES = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES)]
_CHANNEL_OPTIONS = [
    *_KEEPALIVE,
    *_SIZES,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
]
_SERVER_OPTIONS = [
    *_KEEPALIVE,
    *_SIZES,
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),
]


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call before its handler runs: the last part of its method, its metadata, and its caller.

    `party` and `issued_at_s`, the Unix time of the caller's certificate, are None and 0 without TLS.
    """

    method: str
    metadata: Metadata
    party: Party | None = None
    issued_at_s: float = 0.0


Admission = Callable[[Call], None]
"""Raises a PeriplusError for a call that is not served."""


def _admit_all(call: Call) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A caller's own identity, and the party that it wants to find at the address."""

    identity: Identity
    peer: Party


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """A server's identity, read anew for each connection, and authorities (PEM) of callers beside the fleet's own.

    `current` is called in threads of gRPC.
    """

    current: Callable[[], Identity]
    authorities: tuple[bytes, ...] = ()

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a port that demands a certificate of its callers."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._configuration, require_client_authentication=True
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        identity = self.current()
        return grpc.ssl_server_certificate_configuration(
            [(identity.key, identity.certificate)],
            root_certificates=b"".join((identity.authority, *self.authorities)),
        )


def channel(address: str, secured: Secured | None = None) -> grpc.aio.Channel:
    """Return a channel to `host:port`, in plain TCP without `secured`. It connects at the first call."""
    if secured is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, _credentials(secured), options=_secured_options(secured))


def blocking_channel(address: str, secured: Secured | None = None) -> grpc.Channel:
    """Return a channel to `host:port` for calls that block their thread, in programs without an event loop of ours."""
    if secured is None:
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    return grpc.secure_channel(address, _credentials(secured), options=_secured_options(secured))


def _credentials(secured: Secured) -> grpc.ChannelCredentials:
    identity = secured.identity
    return grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)


def _secured_options(secured: Secured) -> list[tuple[str, str | int]]:
    return [*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", secured.peer.server_name)]


def own_gateway(folder: str, region: str) -> Secured | None:
    """Return how a process of a job calls the gateway of its region, by the identity in a folder; None without one.

    Raises: NotFound, ConfigError.
    """
    return Secured(identity=Identity.load(Path(folder)), peer=parties.region(region)) if folder else None


class OpenCalls:
    """The calls that a server serves at present."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], Call] = {}
        self._refused: dict[asyncio.Task[Any], errors.PeriplusError] = {}

    @contextmanager
    def one(self, call: Call) -> Iterator[None]:
        """Count the present task's call while the context lasts. Raises: the error with which `end_refused` ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = call
        try:
            yield
        except asyncio.CancelledError:
            if (refusal := self._refused.get(task)) is None:
                raise
            task.uncancel()
            raise refusal from None
        finally:
            del self._tasks[task]
            self._refused.pop(task, None)

    @property
    def number(self) -> int:
        """Number of calls that are open."""
        return len(self._tasks)

    def end_refused(self, admit: Admission) -> None:
        """End the calls that are not admitted any more."""
        for task, call in list(self._tasks.items()):
            try:
                admit(call)
            except errors.PeriplusError as error:
                self._refused[task] = error
                task.cancel()


def caller(context: grpc.aio.ServicerContext[Any, Any]) -> Party | None:
    """Return the party that makes a call, None without TLS. Raises: Denied if its certificate names none."""
    return None if (certificate := _certificate(context)) is None else certified_party(certificate)


def shown_certificate(context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """Return the certificate (PEM) that a caller has shown, at a server that answers only callers with one."""
    certificate = _certificate(context)
    assert certificate is not None, "a server with members answers only callers with certificates"
    return certificate


def _certificate(context: grpc.aio.ServicerContext[Any, Any]) -> bytes | None:
    found = tuple(context.auth_context().get("x509_pem_cert", ()))
    return found[0] if found else None


def server(admit: Admission | None = None, calls: OpenCalls | None = None) -> grpc.aio.Server:
    """Return a server that translates errors. Add servicers to it, and give it an address with `bind`.

    `admit` is called with each call before anything else, and raises the error that refuses it. Calls
    beyond `MAX_OPEN_CALLS` of one address are refused with Overloaded. `calls` are then those that are open.
    """
    return grpc.aio.server(
        interceptors=[ErrorInterceptor(admit or _admit_all, calls or OpenCalls())], options=_SERVER_OPTIONS
    )


def bind(server_: grpc.aio.Server, address: str, identity: ServerIdentity | None = None) -> str:
    """Bind a server to `host:port`, in plain TCP without an identity, and return the bound address.

    With port 0 the system chooses a port.

    A socket of our own tries the address first, because gRPC writes a line of its own to standard error if it cannot
    bind, and does not say why. Raises: Conflict if the address cannot be bound.
    """
    host, _, port = address.rpartition(":")
    with binding(address):
        try_to_bind(host, int(port))
        try:
            if identity is None:
                bound_port = server_.add_insecure_port(address)
            else:
                bound_port = server_.add_secure_port(address, identity.credentials())
        except RuntimeError as error:  # somebody took the port in between
            raise OSError(errno.EADDRINUSE, str(error)) from error
    return f"{host}:{bound_port}"


@contextmanager
def binding(address: str) -> Iterator[None]:
    """Let an OSError of binding a socket to `address` leave this context as Conflict, with what to do."""
    try:
        yield
    except OSError as error:
        what, remedy = _CANNOT_BIND.get(error.errno or 0, (error.strerror or str(error), "choose another address"))
        raise errors.Conflict(f"cannot listen on {address}: {what}; {remedy}") from error


def try_to_bind(host: str, port: int) -> str:
    """Bind a socket to the first address of the host that allows it, as gRPC does, and close it again.

    Return the host without the brackets of an IPv6 address. Raises: OSError if no address allows it.
    """
    bare = host.removeprefix("[").removesuffix("]")
    refusal: OSError | None = None
    for family, kind, protocol, _, place in socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC binds
                probe.bind(place)
                return bare
        except OSError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return bare


def error_detail(error: errors.PeriplusError) -> bytes:
    """Return the serialized `ErrorDetail` that tells the caller about an error."""
    return common_pb2.ErrorDetail(
        reason=errors.reason(error),
        message=_cut(str(error), MAX_ERROR_BYTES),
        retryable=errors.meaning(error).retryable,
    ).SerializeToString()


_FAILED_BATCH = "Internal error from Core"
"""What gRPC says of an operation that failed in its core, without an answer of the other side."""


def translate(error: grpc.aio.AioRpcError | grpc.Call, address: str) -> errors.PeriplusError:
    """Return the PeriplusError for an error that gRPC raised in a call to `address`."""
    # A detail comes only from a server of ours, and says more than gRPC's status.
    for key, value in error.trailing_metadata() or ():
        if key == _DETAIL_KEY and isinstance(value, bytes):
            detail = common_pb2.ErrorDetail.FromString(value)
            return errors.from_reason(detail.reason, detail.message)
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.TimedOut(f"no answer from {address} in time; is it overloaded, or is a link down?")
    # CANCELLED comes from the other side: our own cancellation raises CancelledError instead. A write to a connection
    # that breaks at this moment fails within gRPC itself.
    is_broken = error.code() is grpc.StatusCode.INTERNAL and error.details() == _FAILED_BATCH
    if is_broken or error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return errors.Unreachable(f"cannot reach {address}; is it running, and is the address right?")
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return errors.PeriplusError(
            f"{address} does not know this call ({error.details()}): it is another service, or another version of "
            "Periplus; check the address and the versions"
        )
    return errors.PeriplusError(f"{address} failed: {error.code().name}: {error.details()}")


@contextmanager
def remote_errors(address: str) -> Iterator[None]:
    """Translate gRPC errors that a call to `address` raises in this context, also inside exception groups.

    A group that holds only PeriplusErrors afterwards leaves as its first one. If the current task is being cancelled,
    CancelledError is raised instead, because a TaskGroup that raises an error of its own loses the cancellation.
    """
    try:
        yield
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
        # A cancellation of the caller has priority over the error that it caused. Without one, gRPC has cancelled its
        # own call: it does so if a call with an iterator of requests ends while it writes one of them. A TaskGroup
        # would take the caller's task for one that was cancelled, and never tell.
        _stay_cancelled(error)
        raise _ours(error, address) from error
    except BaseExceptionGroup as group:
        _stay_cancelled(group)
        translated = _translate_leaves(group, address)
        raise first_of(translated) or translated from group


@contextmanager
def blocking_remote_errors(address: str) -> Iterator[None]:
    """Translate gRPC errors that a call of a blocking channel to `address` raises in this context."""
    try:
        yield
    except grpc.RpcError as error:
        # gRPC raises the call itself, which its class of errors does not say.
        if not isinstance(error, grpc.Call):
            raise
        raise translate(error, address) from error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Let an exception group that holds only PeriplusErrors leave this context as its first one."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = first_of(group)
        if error is None:
            raise
        raise error from group


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call that raised an error with the error's gRPC status and detail.

    An exception that is not a PeriplusError is logged and sent as a plain PeriplusError. `admit` may raise for a call,
    of whatever method, before its handler runs. At most `MAX_OPEN_CALLS` of one address run.
    """

    def __init__(self, admit: Admission, calls: OpenCalls) -> None:
        self._admit_call = admit
        self._calls = calls
        self._open_calls = Counter[str]()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # the stubs of a method handler know only the synchronous form
        # Wrap the handler so that every error leaves through `_aborting`. Unary and streaming answers need two
        # wrappers.
        handler = await continuation(handler_call_details)
        if handler is None:
            return None  # gRPC answers UNIMPLEMENTED
        method = handler_call_details.method.rpartition("/")[2]
        if handler.unary_unary or handler.stream_unary:
            inner = handler.unary_unary or handler.stream_unary
            make: Any = grpc.unary_unary_rpc_method_handler
            if handler.request_streaming:
                make = grpc.stream_unary_rpc_method_handler

            async def unary(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
                async with _aborting(context):
                    call = self._admitted(method, context)
                    with self._calls.one(call), self._counted(peer_host(context.peer())):
                        return await inner(_whole(request), context)

            return make(unary, _tolerant(handler.request_deserializer), handler.response_serializer)
        inner_stream = handler.unary_stream or handler.stream_stream
        make_stream: Any = grpc.unary_stream_rpc_method_handler
        if handler.request_streaming:
            make_stream = grpc.stream_stream_rpc_method_handler

        async def stream(request: Any, unguarded: grpc.aio.ServicerContext[Any, Any]) -> None:
            context = _WholeWrites(unguarded)
            async with _aborting(context):
                call = self._admitted(method, context)
                with self._calls.one(call), self._counted(peer_host(context.peer())):
                    # A handler may be a generator of answers, or a coroutine that writes them itself.
                    responses = inner_stream(_whole(request), context)
                    if isinstance(responses, AsyncIterator):
                        async for response in responses:
                            await context.write(response)
                    else:
                        await responses

        return make_stream(stream, _tolerant(handler.request_deserializer), handler.response_serializer)

    def _admitted(self, method: str, context: Any) -> Call:
        certificate = _certificate(context)
        party = None if certificate is None else certified_party(certificate)
        issued_s = 0.0 if certificate is None else issued_at_s(certificate)
        call = Call(method, context.invocation_metadata() or (), party, issued_s)
        self._admit_call(call)
        return call

    @contextmanager
    def _counted(self, host: str) -> Iterator[None]:
        if self._open_calls[host] >= MAX_OPEN_CALLS:
            raise errors.Overloaded(f"{host or 'this peer'} has {MAX_OPEN_CALLS} open calls here; end some of them")
        self._open_calls[host] += 1
        try:
            yield
        finally:
            self._open_calls[host] -= 1
            if not self._open_calls[host]:
                del self._open_calls[host]


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Return a function that returns an error for bytes that are no message; gRPC logs one that is raised there."""
    if deserialize is None:  # a method whose messages are bytes
        return None

    def read(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            return errors.WireError(f"{len(raw)} bytes are not the message of this call; has the peer another version?")

    return read


def _whole(request: Any) -> Any:
    """Return the request of a call, or its messages as they come. Raises: WireError for bytes that are no message."""
    if isinstance(request, errors.WireError):
        raise request
    return _WholeMessages(request) if isinstance(request, AsyncIterable) else request


class _WholeMessages:
    def __init__(self, messages: AsyncIterable[Any]) -> None:
        self._source = messages
        self._messages: AsyncIterator[Any] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._messages is None:  # gRPC complains about an iterator that is made and not used
            self._messages = aiter(self._source)
        return _whole(await anext(self._messages))


class _WholeWrites:
    """The context of a call whose writes are not cut off.

    gRPC cannot send the end of a call while a write is under way, also one whose task was cancelled: the peer would
    wait for the end for ever.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self._writing: asyncio.Future[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        self._writing = asyncio.ensure_future(self._context.write(message))
        # Nobody is left to learn that a write failed after its task was cancelled.
        self._writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._writing)

    async def abort(self, *arguments: Any, **rest: Any) -> None:
        if self._writing is not None:
            # A peer that reads nothing for so long is not told.
            await asyncio.wait({self._writing}, timeout=LAST_WRITE_S)
        await self._context.abort(*arguments, **rest)


@asynccontextmanager
async def _aborting(context: Any) -> AsyncIterator[None]:
    try:
        yield
    except errors.PeriplusError as error:
        await _abort(context, error)
    except grpc.aio.BaseError:  # an error of gRPC itself about this call
        raise
    except Exception as error:  # the root of a call: the caller must learn of any error
        answer = first_of(error) if isinstance(error, ExceptionGroup) else None
        if answer is None:
            log.exception("call_crashed")
            answer = errors.PeriplusError(errors.explained_error(error))
        await _abort(context, answer)


def first_of(group: BaseExceptionGroup[BaseException]) -> errors.PeriplusError | None:
    """Return the first PeriplusError inside an exception group, or None if the group holds any other exception."""
    found = errors.leaves(group)
    own_errors = [leaf for leaf in found if isinstance(leaf, errors.PeriplusError)]
    return own_errors[0] if len(own_errors) == len(found) else None


def _stay_cancelled(error: BaseException) -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from error


def _ours(error: BaseException, address: str) -> BaseException:
    if isinstance(error, grpc.aio.AioRpcError):
        return translate(error, address)
    if isinstance(error, asyncio.InvalidStateError | asyncio.CancelledError):  # a write on a call that has ended
        return errors.Unreachable(f"{address} has ended the call; is it stopping?")
    return error


def _translate_leaves(group: BaseExceptionGroup[BaseException], address: str) -> BaseExceptionGroup[BaseException]:
    return group.derive(
        [
            _translate_leaves(error, address) if isinstance(error, BaseExceptionGroup) else _ours(error, address)
            for error in group.exceptions
        ]
    )


async def _abort(context: Any, error: errors.PeriplusError) -> None:
    detail = ((_DETAIL_KEY, error_detail(error)),)
    try:
        await context.abort(errors.meaning(error).status, _cut(str(error), 200), trailing_metadata=detail)
    except grpc.aio.InternalError as gone:  # the call has ended already, so that no caller is left to tell
        raise asyncio.CancelledError from gone


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode(errors="replace")
    return text if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode(errors="ignore") + "..."
