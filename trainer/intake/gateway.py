"""The trainer's two gRPC streams to the gateway of its own region: one for messages both ways, one for publications.

- **Messages** (leases, acknowledgements, records for watchers) never block the caller. They wait in a bounded queue.
- **Publications** of weights wait in another bounded queue, and `publish` waits while it is full. So a slow gateway
  slows the encoding, and memory does not grow. After `STALL_S` the gateway counts as stalled.
- Both are values (messages.py, periplus/publication) and become protobuf here, by `convert`.
- Each queue has one task that writes, because a gRPC stream takes one write at a time.
- A trainer cannot go on without its gateway: when a stream ends, `run` raises.
- The first message carries the trainer's public key. The coordinator's certificate for it comes back on the same
  stream, by way of the region's agent. `certificate` waits for it.

This module does not know what messages mean: the caller of `run` handles them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from periplus.errors import Denied, PeriplusError, TimedOut, Unreachable
from periplus.net import rpc
from periplus.net.convert import certificate_from_pb, publication_record_to_pb, record_to_pb
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.process.telemetry import event
from periplus.publication import Certificate, PublicationRecord
from periplus.values.record import Record
from trainer.intake.convert import message_from_pb, message_to_pb
from trainer.intake.messages import DownMessage, UpMessage

log = logging.getLogger(__name__)

OUT_MESSAGES = 4096
"""Messages that may wait for the gateway. Chosen by hand: a gateway on the same machine takes thousands a second."""

OUT_RECORDS = 8
"""Records of publications that may wait, each of at most 10 MiB. Chosen by hand: with so many, encoding and sending do
not wait for each other at every part."""

STALL_S = 60.0
"""Seconds without room for a record after which the gateway counts as stalled. Chosen by hand: the gateway is on the
same machine and does not wait for readers of weights, so it takes milliseconds for each record. The trainer then saves
a checkpoint and ends, rather than wait for ever."""

CERTIFICATE_DEADLINE_S = 330.0
"""Seconds to wait for the coordinator's certificate. The gateway answers within 300 s in any case, which leaves time to
restart a coordinator while a trainer starts; 30 s more are for a gateway that does not answer."""


class GatewayLink:
    """The streams of one trainer in one fork. They are open while `run` runs."""

    def __init__(self, address: str, job_id: str, fork: int, public_key: bytes, secret: str) -> None:
        self._address = address
        self._metadata = metadata_of_job(secret)
        self._job_id = job_id
        self._fork = fork
        self._public_key = public_key
        # The coordinator's answer; None until it has come.
        self._answer: Certificate | PeriplusError | None = None
        self._answered = asyncio.Event()
        self._messages: asyncio.Queue[gateway_pb2.TrainerUp | None] = asyncio.Queue(OUT_MESSAGES)
        # Set by `close`, so that the end of the stream is then no error.
        self._closing = False
        self._ended = asyncio.Event()
        self._records: asyncio.Queue[PublicationRecord | None] = asyncio.Queue(OUT_RECORDS)
        # Whether all records were given to gRPC: then the gateway's answer means that it has read them.
        self._was_last = False
        self._wan_bytes: int | None = None
        self._all_read = asyncio.Event()
        self._stalled = asyncio.Event()

    async def run(self, on_message: Callable[[UpMessage], Awaitable[object]]) -> None:
        """Serve both streams until cancelled, and pass each message of the gateway to `on_message`, in their order.

        Raises: Unreachable if the gateway is lost or stalls; Conflict if the job has another trainer.
        """
        try:
            await self._serve(on_message)
        except Unreachable as error:
            if not self._closing:
                raise Unreachable(
                    f"the trainer lost the gateway of its own region: the agent ended, was paused or stalled: {error}"
                ) from error
        finally:
            self._ended.set()
            self._answered.set()
            while not self._records.empty():  # nobody reads them any more; callers that wait for room go on
                self._records.get_nowait()

    async def close(self) -> None:
        """End both streams, and wait until the gateway has read everything that was queued, or is gone."""
        if self._ended.is_set():
            return
        # Publications first: the gateway confirms them. Then the messages, whose end makes the gateway end the stream.
        await self._records.put(None)
        await _either(self._all_read, self._ended)
        self._closing = True
        await self._messages.put(None)
        await self._ended.wait()

    def send(self, message: DownMessage) -> None:
        """Queue a message to one worker or its gateway. It is discarded if the gateway is gone: `run` raises then.

        Raises: Unreachable if OUT_MESSAGES messages wait, so that the gateway must have stalled.
        """
        if self._ended.is_set():
            return
        if self._messages.full():
            raise Unreachable(f"{OUT_MESSAGES} messages wait for the gateway at {self._address}; it has stalled")
        self._messages.put_nowait(gateway_pb2.TrainerUp(down=message_to_pb(message)))

    def record(self, record: Record) -> None:
        """Queue a record for the coordinator and its watchers.

        It is discarded when OUT_MESSAGES messages wait: the run directory has all records.
        """
        if not self._messages.full():
            self._messages.put_nowait(gateway_pb2.TrainerUp(record=record_to_pb(self._job_id, record)))

    async def publish(self, record: PublicationRecord) -> None:
        """Queue a record of a publication, and wait for room if need be.

        It is discarded if the gateway is gone. If there is no room for STALL_S, `run` raises.
        """
        if self._ended.is_set():
            return
        try:
            # The queue is short, so the encoder never runs far ahead of the gateway.
            async with asyncio.timeout(STALL_S):
                await self._records.put(record)
        except TimeoutError:
            self._stalled.set()

    async def wan_bytes(self) -> int | None:
        """Return the payload bytes that the job has sent between regions, as the gateway has counted since its start.

        If the gateway does not answer, it is the last count that it gave, or None if it never gave one.
        """
        try:
            async with rpc.channel(self._address) as channel:
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

        Return None if `stop` is set first, or if the gateway is gone (`run` raises then).
        Raises: TimedOut if no answer came, Denied if the coordinator refuses.
        """
        try:
            async with asyncio.timeout(CERTIFICATE_DEADLINE_S):
                # `run` also sets `_answered` when the gateway is lost, so nobody waits for a stream that is gone.
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
        async with rpc.channel(self._address) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            with rpc.remote_errors(self._address):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._publish(stub))
                    tasks.create_task(self._watch())
                    await self._converse(stub, tasks, on_message)

    async def _converse(
        self,
        stub: "gateway_pb2_grpc.GatewayAsyncStub",
        tasks: asyncio.TaskGroup,
        on_message: Callable[[UpMessage], Awaitable[object]],
    ) -> None:
        with rpc.remote_errors(self._address):
            call = stub.Train(metadata=self._metadata)
            hello = gateway_pb2.TrainerHello(job_id=self._job_id, fork=self._fork, public_key=self._public_key)
            # The hello claims the job for this fork, so it is written before anything that waits in the queue.
            await call.write(gateway_pb2.TrainerUp(hello=hello))

            async def write() -> None:
                while (message := await self._messages.get()) is not None:
                    await call.write(message)
                await call.done_writing()

            tasks.create_task(write())
            async for message in call:
                if message.HasField("certificate"):
                    self._certified(message.certificate)
                elif (value := message_from_pb(message)) is not None:
                    await on_message(value)
        raise Unreachable(f"the gateway at {self._address} ended the trainer's stream")

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

    async def _publish(self, stub: "gateway_pb2_grpc.GatewayAsyncStub") -> None:
        with rpc.remote_errors(self._address):
            await stub.Publish(self._published(), metadata=self._metadata)
        # The gateway answers the call once it has read all records. An answer before the last one means that it gave
        # up.
        if self._was_last:
            self._all_read.set()
            return
        raise Unreachable(f"the gateway at {self._address} ended the publishing stream")

    async def _watch(self) -> None:
        await self._stalled.wait()
        raise Unreachable(f"the gateway at {self._address} has read no publication for {STALL_S:.0f} s; it has stalled")

    async def _published(self) -> AsyncIterator[gateway_pb2.PublicationRecord]:
        while (record := await self._records.get()) is not None:
            yield publication_record_to_pb(record)
        self._was_last = True


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
