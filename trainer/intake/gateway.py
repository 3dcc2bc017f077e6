"""The trainer's two gRPC streams to the gateway of its own region: one for messages both ways, one for publications.

- **Messages** (leases, acknowledgements, records for watchers) never block the caller. They wait in a bounded queue.
- **Publications** of weights wait in another bounded queue, and `publish` waits while it is full. So a slow gateway
  slows the encoding, and memory does not grow. After `STALL_S` the gateway counts as stalled.
- Both are values (messages.py, periplus/publication) and become protobuf here, by `convert`.
- Each queue has one task that writes, because a gRPC stream takes one write at a time.
- The first message carries the trainer's public key. The coordinator's certificate for it comes back on the same
  stream, by way of the region's agent. `certificate` waits for it. From there on the gateway follows the trainer.

**Lost connection.** When a stream breaks, because the trainer or the agent was paused for example, both are opened
again with the same fork and key. `run` raises only after `REDIAL_S` without a connection, or when the gateway refuses
the trainer for good. Nothing that was on its way counts as delivered:

- `GatewayFound` is the first message that `run` passes on from a new connection.
- Messages to workers are discarded from the loss until `GatewayFound` was handled. Their leases are void, a frame that
  is not acknowledged comes again, and what is said of a worker's faults is repeated at its hello. Only `JobFinished` is
  kept, because its receiver may be any gateway or worker that is there later. Records for watchers are kept too.
- Records of publications are discarded from the loss until a bundle begins over the new connection. So a publication is
  never continued over another connection, and no delta follows a state that the gateway may lack. The caller publishes
  the bundle and the newest full state when it hears `GatewayFound`.

This module does not know what messages mean: the caller of `run` handles them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from periplus import clock
from periplus.errors import Conflict, Denied, Fenced, NotFound, PeriplusError, TimedOut, Unreachable
from periplus.net import rpc
from periplus.net.attempt import failure_of
from periplus.net.convert import certificate_from_pb, publication_record_to_pb, record_to_pb
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.process.backoff import Backoff
from periplus.process.telemetry import event
from periplus.publication import Certificate, Opening, PublicationKind, PublicationRecord
from periplus.values.record import Record
from trainer.intake.convert import message_from_pb, message_to_pb
from trainer.intake.messages import DownMessage, GatewayFound, JobFinished, UpMessage

log = logging.getLogger(__name__)

OUT_MESSAGES = 4096
"""Messages that may wait for the gateway. Chosen by hand: a gateway on the same machine takes thousands a second."""

OUT_RECORDS = 8
"""Records of publications that may wait, each of at most 10 MiB. Chosen by hand: with so many, encoding and sending do
not wait for each other at every part."""

STALL_S = 60.0
"""Seconds without room for a record after which the gateway counts as stalled. Chosen by hand: the gateway is on the
same machine and does not wait for readers of weights, so it takes milliseconds for each record. The connection then
counts as lost."""

REDIAL_S = 90.0
"""Seconds without a connection, from the start or from a loss, after which the gateway is given up. A pause of 45 s of
the trainer or of the agent must be survived. To these come 30 s in which the other end may still follow the old stream
(keepalive of periplus/net/rpc.py), and some for dialling. Chosen by hand."""

REDIAL = Backoff(first_s=0.1, longest_s=2.0)
"""Pauses between attempts to connect. The gateway is on the same machine, so that an attempt costs little. Chosen by
hand."""

CERTIFICATE_DEADLINE_S = 330.0
"""Seconds to wait for the coordinator's certificate. The gateway answers within 300 s in any case, which leaves time to
restart a coordinator while a trainer starts; 30 s more are for a gateway that does not answer."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One attempt to connect, and the connection that comes of it.

    `followed`: the gateway has certified the key, and follows the trainer on this connection. `takes_messages`:
    messages to workers are for this connection. `takes_records`: a publication may go on, because it began here.
    """

    takes_messages: bool = False
    takes_records: bool = False
    followed: asyncio.Event = field(default_factory=asyncio.Event)
    records: "asyncio.Queue[PublicationRecord | None]" = field(default_factory=lambda: asyncio.Queue(OUT_RECORDS))
    # Whether all records were given to gRPC: then the gateway's answer means that it has read them.
    was_last: bool = False
    all_read: asyncio.Event = field(default_factory=asyncio.Event)
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """Let those go on who wait for room or for the last record to be read, and end the stream of records."""
        self.ended.set()
        while not self.records.empty():
            self.records.get_nowait()
        self.records.put_nowait(None)  # gRPC reads on from a stream whose call has ended


class GatewayLink:
    """The streams of one trainer in one fork. While `run` runs, they are open or being opened again.

    `secured` returns how to call a gateway that knows its callers by certificates.
    """

    def __init__(
        self,
        address: str,
        job_id: str,
        fork: int,
        public_key: bytes,
        secret: str,
        secured: Callable[[], rpc.Secured | None] = lambda: None,
    ) -> None:
        self._address = address
        self._secured = secured
        self._metadata = metadata_of_job(secret)
        self._job_id = job_id
        self._fork = fork
        self._public_key = public_key
        # The coordinator's answer; None until it has come.
        self._answer: Certificate | PeriplusError | None = None
        self._answered = asyncio.Event()
        self._messages: asyncio.Queue[gateway_pb2.TrainerUp | None] = asyncio.Queue(OUT_MESSAGES)
        # What is sent before the first connection waits for it.
        self._connection = _Connection(takes_messages=True, takes_records=True)
        self._num_dials = 0
        self._was_followed = False  # on any connection
        # Set by `close`, so that the end of the stream is then no error.
        self._closing = False
        self._ended = asyncio.Event()
        self._wan_bytes: int | None = None

    async def run(self, on_message: Callable[[UpMessage], Awaitable[object]]) -> None:
        """Serve both streams until cancelled, and pass each message of the gateway to `on_message`, in their order.

        Raises: Unreachable if the gateway is lost and not found again; Conflict if the job has another trainer, Fenced
        if it is of a newer fork; Denied if the key is not certified again.
        """
        try:
            await self._keep_connected(on_message)
        except Unreachable as error:
            if not self._closing:
                raise Unreachable(
                    f"the trainer lost the gateway of its own region: the agent ended, was paused or stalled: {error}"
                ) from error
        finally:
            self._ended.set()
            self._answered.set()
            self._connection.end()

    async def _keep_connected(self, on_message: Callable[[UpMessage], Awaitable[object]]) -> None:
        until_s, failures = clock.monotonic_s() + REDIAL_S, 0
        while True:
            self._num_dials += 1
            error = await failure_of(self._serve(on_message))
            if was_followed := self._connection.followed.is_set():
                until_s, failures = clock.monotonic_s() + REDIAL_S, 0
            is_closed = self._closing and (was_followed or self._num_dials == 1)
            if is_closed or not self._may_pass(error):
                raise error
            if clock.monotonic_s() >= until_s:
                raise Unreachable(f"dialled for {REDIAL_S:.0f} s in vain: {error}") from error
            if was_followed:
                event(log, logging.WARNING, "gateway_lost", job=self._job_id, dials_for_s=REDIAL_S, why=error)
            self._lose()
            await asyncio.sleep(REDIAL.pause_s(failures))
            failures += 1

    def _may_pass(self, error: PeriplusError) -> bool:
        match error:
            case Unreachable() | TimedOut():
                return True
            case Fenced():
                return False
            case Conflict() | NotFound():
                # The gateway has not noticed the end of the old stream, or has started and does not know the job yet.
                return self._was_followed
            case _:
                return False

    def _lose(self) -> None:
        """Discard what belongs to the connection that was lost."""
        self._connection.end()
        self._connection = _Connection()
        waiting = [self._messages.get_nowait() for _ in range(self._messages.qsize())]
        for message in waiting:
            if message is None or message.HasField("record") or message.down.HasField("finish"):
                self._messages.put_nowait(message)

    async def close(self) -> None:
        """End both streams, and wait until the gateway has read everything that was queued, or is gone."""
        if self._ended.is_set():
            return
        # Publications first: the gateway confirms them. Then the messages, whose end makes the gateway end the stream.
        connection = self._connection
        if connection.takes_records:
            await connection.records.put(None)
            await _either(connection.all_read, connection.ended)
        self._closing = True
        await self._messages.put(None)
        await self._ended.wait()

    def send(self, message: DownMessage) -> None:
        """Queue a message to one worker or its gateway.

        It is discarded while there is no connection, unless it is `JobFinished`. If OUT_MESSAGES messages wait, the
        gateway must have stalled: it is discarded too, and the connection counts as lost.
        """
        connection = self._connection
        if self._ended.is_set() or not (connection.takes_messages or isinstance(message, JobFinished)):
            return
        if self._messages.full():
            connection.stalled.set()
            return
        self._messages.put_nowait(gateway_pb2.TrainerUp(down=message_to_pb(message)))

    def record(self, record: Record) -> None:
        """Queue a record for the coordinator and its watchers.

        It is discarded when OUT_MESSAGES messages wait: the run directory has all records.
        """
        if not self._messages.full():
            self._messages.put_nowait(gateway_pb2.TrainerUp(record=record_to_pb(self._job_id, record)))

    async def publish(self, record: PublicationRecord) -> None:
        """Queue a record of a publication, and wait for room if need be.

        It is discarded while there is no connection, and also later if its publication began before that. If there is
        no room for STALL_S, the connection counts as lost.
        """
        connection = self._connection
        if connection.followed.is_set() and isinstance(record, Opening) and record.kind is PublicationKind.BUNDLE:
            connection.takes_records = True
        if self._ended.is_set() or not connection.takes_records:
            return
        try:
            # The queue is short, so the encoder never runs far ahead of the gateway.
            async with asyncio.timeout(STALL_S):
                await connection.records.put(record)
        except TimeoutError:
            connection.stalled.set()

    async def wan_bytes(self) -> int | None:
        """Return the payload bytes that the job has sent between regions, as the gateway has counted since its start.

        If the gateway does not answer, it is the last count that it gave, or None if it never gave one.
        """
        try:
            async with rpc.channel(self._address, self._secured()) as channel:
                with rpc.remote_errors(self._address):
                    request, deadline_s = gateway_pb2.TrafficRequest(job_id=self._job_id), rpc.CALL_DEADLINE_S
                    stub = gateway_pb2_grpc.GatewayStub(channel)
                    answer = await stub.Traffic(request, timeout=deadline_s, metadata=self._metadata)
            self._wan_bytes = sum(pair.sent_bytes for pair in answer.pairs)
        except PeriplusError as error:
            event(log, logging.WARNING, "wan_bytes_unknown", job=self._job_id, why=error)
        return self._wan_bytes

    async def certificate(self, stop: asyncio.Event) -> Certificate | None:
        """Wait for the coordinator's certificate of this trainer's public key.

        Return None if `stop` is set first, or if the gateway is given up (`run` raises then).
        Raises: TimedOut if no answer came, Denied if the coordinator refuses.
        """
        try:
            async with asyncio.timeout(CERTIFICATE_DEADLINE_S):
                # `run` also sets `_answered` when it gives the gateway up, so nobody waits for a stream that is gone.
                await _either(self._answered, stop)
        except TimeoutError as error:
            raise TimedOut(
                f"the coordinator did not certify the key of job {self._job_id}, fork {self._fork}, within "
                f"{CERTIFICATE_DEADLINE_S:.0f} s, so no weights can be published; check that it is up and that the "
                f"agent behind {self._address} reaches it, then resume the job"
            ) from error
        if isinstance(self._answer, PeriplusError):
            raise self._answer
        return self._answer

    async def _serve(self, on_message: Callable[[UpMessage], Awaitable[object]]) -> None:
        # A channel of its own for each attempt: the gateway knows the trainer's publications by their connection.
        connection = self._connection
        async with rpc.channel(self._address, self._secured()) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            with rpc.remote_errors(self._address):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._publish(stub, connection))
                    tasks.create_task(self._watch(connection))
                    await self._converse(stub, tasks, on_message)

    async def _converse(
        self,
        stub: "gateway_pb2_grpc.GatewayAsyncStub",
        tasks: asyncio.TaskGroup,
        on_message: Callable[[UpMessage], Awaitable[object]],
    ) -> None:
        connection = self._connection
        with rpc.remote_errors(self._address):
            call = stub.Train(metadata=self._metadata)
            hello = gateway_pb2.TrainerHello(job_id=self._job_id, fork=self._fork, public_key=self._public_key)
            # The hello claims the job for this fork, so it is written before anything that waits in the queue.
            await call.write(gateway_pb2.TrainerUp(hello=hello))

            async def write() -> None:
                if self._num_dials > 1:  # a gateway that refuses an attempt must not have read what is kept
                    await connection.followed.wait()
                while (message := await self._messages.get()) is not None:
                    await call.write(message)
                await call.done_writing()

            tasks.create_task(write())
            async for message in call:
                if message.HasField("certificate"):
                    self._certified(message.certificate)
                    await self._followed(on_message)
                elif (value := message_from_pb(message)) is not None:
                    await on_message(value)
        raise Unreachable(f"the gateway at {self._address} ended the trainer's stream")

    async def _followed(self, on_message: Callable[[UpMessage], Awaitable[object]]) -> None:
        """Begin a connection whose first message, the answer about the key, has come. Raises: Denied if it is lost."""
        if isinstance(self._answer, PeriplusError):
            if self._was_followed:
                raise self._answer
            return  # `certificate` raises it
        connection, self._was_followed = self._connection, True
        connection.followed.set()
        if self._num_dials > 1:
            event(log, logging.INFO, "gateway_found", job=self._job_id)
            await on_message(GatewayFound())
        # Not before: messages to workers from before `GatewayFound` are of leases that it has ended.
        connection.takes_messages = True

    def _certified(self, answer: control_pb2.CertificateAnswer) -> None:
        certificate = certificate_from_pb(answer.certificate)
        requested = (self._job_id, self._fork, self._public_key)
        why = answer.refused
        # With a certificate for another key the trainer would sign what no reader accepts.
        if not why and (certificate.job_id, certificate.fork, certificate.public_key) != requested:
            why = f"the answer is for job {certificate.job_id!r}, fork {certificate.fork}, or for another key"
        self._answer = certificate
        if why:
            self._answer = Denied(
                f"the trainer's key of job {self._job_id}, fork {self._fork}, is not certified: {why}; no weights can "
                "be published; resume the job to start a new fork"
            )
        self._answered.set()

    async def _publish(self, stub: "gateway_pb2_grpc.GatewayAsyncStub", connection: _Connection) -> None:
        with rpc.remote_errors(self._address):
            await stub.Publish(_published(connection), metadata=self._metadata)
        # The gateway answers the call once it has read all records. An answer before the last one means that it gave
        # up.
        if connection.was_last:
            connection.all_read.set()
            return
        raise Unreachable(f"the gateway at {self._address} ended the publishing stream")

    async def _watch(self, connection: _Connection) -> None:
        await connection.stalled.wait()
        raise Unreachable(
            f"the gateway at {self._address} has stalled: it has read no publication for {STALL_S:.0f} s, or "
            f"{OUT_MESSAGES} messages wait for it"
        )


async def _published(connection: _Connection) -> AsyncIterator[gateway_pb2.PublicationRecord]:
    while (record := await connection.records.get()) is not None:
        yield publication_record_to_pb(record)
    connection.was_last = True


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
