"""gRPC servicer of the gateway: it reads streams, calls the job's hub, and writes streams.

    Rollout      from a worker, or a remote gateway for its workers: frames and messages up, leases and receipts down
    Subscribe    from a worker or a remote gateway: publications of weights and of the bundle
    Train        from the job's trainer: messages of workers to it, messages and receipts from it
    Publish      from the job's trainer: publications
    Traffic      from the job's trainer: counted bytes between regions
    Probe        from another region's agent, which measures the link
    Listen       from the agent of a region that cannot be dialled, to which this gateway relays
    Relay        from another region's agent: one end of a connection that this gateway relays

It keeps no state of its own. All calls but the last three carry the job's secret as metadata, but those of a process
whose certificate names the job. Another region's gateway is known by its certificate, or without identities by the
metadata key `periplus-region`.
Everything written to it is counted as traffic to that region, and what it sends on a job's rollout stream as traffic
from there.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc.aio

from periplus.errors import ConfigError, Denied, NotFound, StateError, TimedOut, Unreachable, WireError
from periplus.net import rpc
from periplus.net.convert import (
    policy_from_pb,
    publication_record_from_pb,
    publication_record_to_pb,
    record_from_pb,
)
from periplus.net.parties import PartyKind
from periplus.net.rpc import MAX_PROBE_BYTES
from periplus.net.tokens import check_job_secret
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.process.telemetry import event
from periplus.values.task import PUBLIC_KEY_BYTES, REGION_NAME
from region_agent.gateway import convert
from region_agent.gateway.feed_reader import FeedReader
from region_agent.gateway.hub import JobHub
from region_agent.gateway.hubs import Hubs
from region_agent.gateway.rollout_stream import RolloutStream
from region_agent.gateway.traffic import Traffic
from region_agent.relay.switchboard import Switchboard

log = logging.getLogger(__name__)

REGION_KEY = "periplus-region"
"""Metadata key of a gRPC call with the region of the calling gateway; workers and trainers do not set it."""

FLUSH_S = 2.0
"""Seconds that a stream to be ended here gets for its queued messages. A distant peer needs about a second, and a dead
one must not be waited for. Chosen by hand.
"""

HELLO_S = 10.0
"""Seconds from the opening of a stream to its first message; chosen by hand: three intercontinental round trips, and
slack. Before that message nobody knows whose call it is."""

PROBE_S = 30.0
"""Seconds that one measurement of a link may take; twice what the measuring agent waits. Chosen by hand."""

Certify = Callable[[str, int, bytes], Awaitable[control_pb2.CertificateAnswer]]
"""Function that requests a certificate for (job id, fork, the trainer's public key).

It answers within `certificates.ANSWER_DEADLINE_S`.
"""

Context = grpc.aio.ServicerContext[Any, Any]


class GatewayService(gateway_pb2_grpc.GatewayServicer):
    """Servicer of the RPCs that proto/periplus/pb/v1/gateway.proto describes.

    `records` receives the trainer's records for the coordinator; `certify` requests certificates from it. Without
    `relay`, the gateway does not relay.
    """

    def __init__(
        self,
        hubs: Hubs,
        traffic: Traffic,
        records: Callable[[control_pb2.StepRecord], None],
        certify: Certify,
        relay: Switchboard | None = None,
    ) -> None:
        self._hubs = hubs
        self._traffic = traffic
        self._records = records
        self._certify = certify
        self._relay = relay

    async def Rollout(self, request_iterator: AsyncIterator[gateway_pb2.RolloutUp], context: Context) -> None:  # type: ignore[override]  # grpc.aio takes a coroutine that writes, too
        """Serve one worker, or one remote gateway with all of its workers, until the stream ends.

        Raises: StateError if it does not open with a hello, NotFound for an unknown job, Unreachable at its end.
        """
        first = await _first(request_iterator)
        if not (first.HasField("hello") or first.HasField("gateway")):
            raise StateError("a rollout stream must open with a hello that names the job; this one did not")
        hub, peer = self._hub(first.hello.job_id or first.gateway.job_id, context), _region(context)
        stream = hub.open_stream(peer)
        try:
            async with _peer_tasks() as tasks:
                tasks.create_task(self._write_down(hub.job_id, stream, peer, context))
                tasks.create_task(_acknowledge(hub, stream))
                tasks.create_task(_until_ended(hub, stream))
                # The hello is a message like the others: the routes learn from it, and it goes up.
                await self._take_up(hub, stream, peer, first)
                async for message in request_iterator:
                    await self._take_up(hub, stream, peer, message)
                raise Unreachable(f"the stream of {first.worker_id or peer} was closed by its sender")
        finally:
            await hub.close_stream(stream, "its stream ended")

    async def _take_up(self, hub: JobHub, stream: RolloutStream, peer: str, message: gateway_pb2.RolloutUp) -> None:
        if peer:
            self._traffic.received(peer, message.ByteSize(), hub.job_id)
        await hub.take_up(stream, convert.from_below(message, is_local=not peer))

    async def _write_down(self, job_id: str, stream: RolloutStream, peer: str, context: Context) -> None:
        while True:
            for message in convert.to_below(await stream.next_down()):
                if peer:
                    self._traffic.sent(peer, message.ByteSize(), job_id)
                await context.write(message)
            stream.written()

    async def Subscribe(self, request: gateway_pb2.SubscribeRequest, context: Context) -> None:  # type: ignore[override]  # grpc.aio takes a coroutine that writes, too
        """Send publications to one reader until it leaves. Raises: NotFound if the job is or becomes unknown here."""
        hub, peer = self._hub(request.job_id, context), _region(context)
        have = policy_from_pb(request.have) if request.has_state else None
        cursor = hub.feed.open(have, request.has_bundle, distrust=request.distrust_copies, is_remote=bool(peer))
        reader = FeedReader(hub.feed, cursor, request.reader_id, is_remote=bool(peer))
        sent_bytes = 0
        try:
            async with contextlib.aclosing(reader.records()) as records:
                async for record in records:
                    message = publication_record_to_pb(record)
                    sent_bytes += message.ByteSize()
                    if peer:
                        self._traffic.sent(peer, message.ByteSize(), hub.job_id)
                    # Only the write: an error of another kind in the feed must not pass for a reader that left.
                    with _while_peer_is_there():
                        await context.write(message)
        finally:
            event(
                log,
                logging.INFO,
                "subscription_ended",
                job=hub.job_id,
                reader=request.reader_id,
                region=peer or "here",
                num_bytes=sent_bytes,
                have=reader.have or "none",
            )
        raise NotFound(f"job {hub.job_id} has no task in this region any more")

    async def Train(self, request_iterator: AsyncIterator[gateway_pb2.TrainerUp], context: Context) -> None:  # type: ignore[override]  # grpc.aio takes a coroutine that writes, too
        """Serve the job's trainer.

        The first message down is its certificate or a refusal. Only a trainer whose key the coordinator has certified
        for its fork is followed. Raises: StateError without a hello, WireError for a malformed key, NotFound for an
        unknown job, Denied without a certificate, Conflict if another connection of its fork is followed, Fenced if a
        trainer of a newer fork is or takes over, Unreachable at the stream's end.
        """
        first = await _first(request_iterator)
        if not first.HasField("hello"):
            raise StateError("a trainer's stream must open with a hello that names the job; this one did not")
        if len(first.hello.public_key) != PUBLIC_KEY_BYTES:
            raise WireError(f"a trainer's key has {PUBLIC_KEY_BYTES} bytes, not {len(first.hello.public_key)}")
        hub = self._hub(first.hello.job_id, context)
        answer = await self._certify(hub.job_id, first.hello.fork, first.hello.public_key)
        if answer.refused:
            # The trainer reads why from the message, saves what it has, and leaves. It is not followed meanwhile.
            with _while_peer_is_there():
                await context.write(gateway_pb2.TrainerDown(certificate=answer))
            async for _ in request_iterator:
                pass
            raise Denied(f"the key of a trainer of job {hub.job_id} is not certified: {answer.refused}")
        hub = self._hub(first.hello.job_id, context)  # the job may have left, or come anew, meanwhile
        trainer = hub.claim_trainer(first.hello.fork, context.peer())
        try:
            async with _peer_tasks() as tasks:
                tasks.create_task(self._feed_trainer(hub, answer, context))
                tasks.create_task(hub.trainer_slot.until_replaced(trainer))
                async for message in request_iterator:
                    if message.HasField("down"):
                        await hub.send_down(convert.from_above(message.down, region=hub.region))
                    elif message.HasField("record"):
                        self._records(_checked(message.record, hub.job_id))
                raise Unreachable("the trainer closed its stream")
        finally:
            hub.trainer_slot.release(trainer)

    def _hub(self, job_id: str, context: Context) -> JobHub:
        """Return the hub of a call's job. Raises: NotFound, Denied without the job's secret."""
        hub, party = self._hubs.get(job_id), rpc.caller(context)
        # The certificate of a process says of which job it is.
        if party is None or party.kind is not PartyKind.TASK:
            check_job_secret(context.invocation_metadata() or (), hub.secret, hub.job_id)
        elif party.parts[1] != hub.job_id:
            raise Denied(f"{party} is of job {party.parts[1]}, and called for job {hub.job_id}")
        return hub

    async def _feed_trainer(self, hub: JobHub, answer: control_pb2.CertificateAnswer, context: Context) -> None:
        await context.write(gateway_pb2.TrainerDown(certificate=answer))
        while True:
            await context.write(convert.to_trainer(await hub.next_up(), region=hub.region))

    async def Publish(
        self, request_iterator: AsyncIterator[gateway_pb2.PublicationRecord], context: Context
    ) -> gateway_pb2.PublishResponse:
        """Append the trainer's publications to the job's log record by record, as they come.

        Raises: StateError without an opening, NotFound for an unknown job, Fenced for a trainer that was replaced,
        Denied for who is not the trainer, and what `PublicationFeed.append` raises.
        """
        hub: JobHub | None = None
        fork, num_publications = 0, 0
        async for message in request_iterator:
            if message.HasField("opening"):
                hub, fork = self._hub(message.opening.job_id, context), message.opening.policy.fork
            if hub is None:
                raise StateError("a publication must begin with its opening; this one did not")
            # Checked for each record, since a trainer may be replaced in the middle of a publication.
            hub.trainer_slot.check_publisher(fork, context.peer())
            hub.feed.append(publication_record_from_pb(message))
            num_publications += message.HasField("closing")
        return gateway_pb2.PublishResponse(num_publications=num_publications)

    async def Traffic(self, request: gateway_pb2.TrafficRequest, context: Context) -> gateway_pb2.TrafficResponse:
        """Return the bytes that the job has sent to and from this region."""
        pairs = self._traffic.pairs(request.job_id, self._hub(request.job_id, context).region)
        return gateway_pb2.TrafficResponse(
            pairs=[
                control_pb2.PairTraffic(src_region=src, dst_region=dst, sent_bytes=num_bytes)
                for (src, dst), num_bytes in sorted(pairs.items())
            ]
        )

    async def Probe(  # type: ignore[override]  # grpc.aio takes a coroutine that writes, too
        self, request_iterator: AsyncIterator[gateway_pb2.ProbeChunk], context: Context
    ) -> None:
        """Acknowledge each chunk that has no data, and the last one.

        Raises: WireError for more than `MAX_PROBE_BYTES`, TimedOut after `PROBE_S`.
        """
        received_bytes, region = 0, self._hubs.region
        try:
            async with asyncio.timeout(PROBE_S):
                async for chunk in request_iterator:
                    received_bytes += len(chunk.data)
                    if received_bytes > MAX_PROBE_BYTES:
                        raise WireError(f"a measurement of a link sent more than {MAX_PROBE_BYTES:,} bytes")
                    if not chunk.data or chunk.last:
                        ack = gateway_pb2.ProbeAck(
                            sequence=chunk.sequence, received_bytes=received_bytes, region=region
                        )
                        with _while_peer_is_there():
                            await context.write(ack)
        except TimeoutError as error:
            raise TimedOut(f"a measurement of a link took more than {PROBE_S:.0f} s") from error

    async def Listen(self, request: gateway_pb2.ListenRequest, context: Context) -> None:  # type: ignore[override]  # grpc.aio takes a coroutine that writes, too
        """Tell the calling region of connections to it. Raises: ConfigError if this gateway does not relay, Denied."""
        relay, region = self._switchboard(), _caller_region(context)
        with _while_peer_is_there():
            await relay.listen(region, context)

    async def Relay(  # type: ignore[override]  # grpc.aio takes a coroutine that writes, too
        self, request_iterator: AsyncIterator[gateway_pb2.RelayChunk], context: Context
    ) -> None:
        """Serve one end of a connection between two other regions until it is over.

        Raises: as `Listen`, StateError if the first chunk does not name the other end, and what `Switchboard` raises.
        """
        relay, region = self._switchboard(), _caller_region(context)
        first = await _first(request_iterator)
        if first.region:
            await relay.connect(region, first.region, request_iterator, context)
        elif first.connection_id:
            await relay.accept(region, first.connection_id, request_iterator, context)
        else:
            raise StateError("the first chunk of a relayed connection must name its other end; this one did not")

    def _switchboard(self) -> Switchboard:
        if self._relay is None:
            raise ConfigError(f"the gateway of {self._hubs.region} does not relay; its agent has no --relay")
        return self._relay


@contextlib.contextmanager
def _while_peer_is_there() -> Iterator[None]:
    # gRPC may refuse a write on an ended call before it reports the end. Treat that call as cancelled.
    try:
        yield
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error
    except BaseExceptionGroup as group:
        if group.subgroup(grpc.aio.InternalError) is None:
            raise
        raise asyncio.CancelledError from group


@contextlib.asynccontextmanager
async def _peer_tasks() -> AsyncIterator[asyncio.TaskGroup]:
    with _while_peer_is_there():
        async with asyncio.TaskGroup() as tasks:
            yield tasks


async def _first(messages: AsyncIterator[Any]) -> Any:
    try:
        async with asyncio.timeout(HELLO_S):
            async for message in messages:
                return message
    except TimeoutError as error:
        raise TimedOut(f"no message within {HELLO_S:.0f} s of opening the stream") from error
    raise StateError("the stream ended before its first message")


def _checked(record: control_pb2.StepRecord, job_id: str) -> control_pb2.StepRecord:
    """Return a trainer's record. Raises: WireError, CorruptFrame for one that would end the region's own session."""
    if record.job_id != job_id:
        raise WireError(f"the trainer of job {job_id} sent a record of job {record.job_id[:80]!r}")
    record_from_pb(record)
    return record


def _region(context: Context) -> str:
    """Return the region whose gateway calls; empty for a process of a job here. Raises: WireError, Denied."""
    if (party := rpc.caller(context)) is not None:
        return party.name if party.kind is PartyKind.REGION else ""
    for key, value in context.invocation_metadata() or ():
        if key == REGION_KEY:
            region = value if isinstance(value, str) else value.decode(errors="replace")
            if not re.fullmatch(REGION_NAME, region):
                raise WireError(f"the caller says that it is the gateway of {region[:80]!r}, which names no region")
            return region
    return ""


def _caller_region(context: Context) -> str:
    """Return the region whose agent calls. Raises: WireError, Denied if the caller is no agent."""
    region = _region(context)
    if not region:
        raise Denied("a gateway relays for agents of regions alone, and this caller is none")
    return region


async def _acknowledge(hub: JobHub, stream: RolloutStream) -> None:
    while True:
        keys = await stream.next_taken()
        await hub.frames.durable()
        await stream.acknowledge(keys)


async def _until_ended(hub: JobHub, stream: RolloutStream) -> None:
    await stream.until_ended()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_S):
            await stream.flushed()
    raise Unreachable(
        f"the connection to the trainer of {hub.job_id} is lost, this stream was not read, or another stream said "
        "hello for a worker of this one; connect again"
    )
