"""The trainer's two streams to its own gateway: messages both ways, publications one way.

Messages never block the caller: they wait in a bounded queue. Records of publications wait in another one, and who
publishes waits while it is full, so a slow gateway slows encoding and no memory grows; for `STALL_S` at most. Each
queue has one writer, since a gRPC stream takes one write at a time. A trainer without its gateway cannot go on: when a
stream ends, `run` raises.

The hello carries the trainer's public key; the coordinator's certificate of it comes back on the same stream, through
the gateway's agent. Whoever signs asks for it with `certificate`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from periplus.errors import Denied, PeriplusError, TimedOut, Unreachable
from periplus.net import rpc
from periplus.net.convert import certificate_from_pb, publication_record_to_pb, record_to_pb
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.process.telemetry import event
from periplus.publication import Certificate, PublicationRecord
from periplus.values.record import Record

log = logging.getLogger(__name__)

OUT_MESSAGES = 4096
"""Lease batches and records waiting; a gateway on the same machine takes thousands a second."""

OUT_RECORDS = 8
"""Records of publications waiting, of at most 10 MiB each: enough that encoding and sending do not wait for each other
at every part."""

STALL_S = 60.0
"""For a gateway that is there and reads no more records: it is on the same machine and waits for no reader of weights,
so it takes milliseconds for each. A trainer ends with a checkpoint rather than wait for ever."""

CERTIFICATE_DEADLINE_S = 330.0
"""For a coordinator that is being restarted while a trainer starts. The gateway answers within 300 s, if only that it
heard nothing; this is for a gateway that does not."""


class GatewayLink:
    """Open for one trainer of one fork, from `run` until it is cancelled."""

    def __init__(self, address: str, job_id: str, fork: int, public_key: bytes = b"") -> None:
        self._address = address
        self._job_id = job_id
        self._fork = fork
        self._public_key = public_key
        self._answer: Certificate | PeriplusError | None = None
        self._answered = asyncio.Event()
        self._messages: asyncio.Queue[gateway_pb2.TrainerUp | None] = asyncio.Queue(OUT_MESSAGES)
        self._closing = False
        self._ended = asyncio.Event()
        self._records: asyncio.Queue[PublicationRecord | None] = asyncio.Queue(OUT_RECORDS)
        self._was_last = False
        self._wan_bytes: int | None = None
        self._all_read = asyncio.Event()
        self._stalled = asyncio.Event()

    async def run(self, on_message: Callable[[gateway_pb2.TrainerDown], Awaitable[None]]) -> None:
        """Serve both streams. Raises: Unreachable, also of a gateway that stalls; Conflict when another trainer has the
        job."""
        try:
            await self._serve(on_message)
        except Unreachable as error:
            if not self._closing:
                raise Unreachable(
                    f"it lost the gateway of its own region, whose agent ended, was paused or has stalled: {error}"
                ) from error
        finally:
            self._ended.set()
            self._answered.set()
            while not self._records.empty():  # nobody reads them any more; who waits for room goes on
                self._records.get_nowait()

    async def close(self) -> None:
        """Say that nothing more comes, and wait until the gateway has read all that was queued, or is gone."""
        if self._ended.is_set():
            return
        await self._records.put(None)
        await _either(self._all_read, self._ended)
        self._closing = True
        await self._messages.put(None)
        await self._ended.wait()

    def send(self, message: gateway_pb2.RolloutDown) -> None:
        """Towards one worker; given up when the gateway is gone, as `run` says. Raises: Unreachable if it stalls."""
        if self._ended.is_set():
            return
        if self._messages.full():
            raise Unreachable(f"{OUT_MESSAGES} messages wait for the gateway at {self._address}; it has stalled")
        self._messages.put_nowait(gateway_pb2.TrainerUp(down=message))

    def committed(self, region: str, worker_id: str, epoch: int, sequences: Sequence[int]) -> None:
        """These frames of the worker are in the ledger for good, or refused for good: `region`, which the frames name
        and where they are spooled, may forget them."""
        message = gateway_pb2.FramesCommitted(region=region, epoch=epoch, sequences=sequences)
        self.send(gateway_pb2.RolloutDown(worker_id=worker_id, committed=message))

    def record(self, record: Record) -> None:
        """Towards the coordinator and its watchers; given up when too many wait, the run directory has them all."""
        if not self._messages.full():
            self._messages.put_nowait(gateway_pb2.TrainerUp(record=record_to_pb(self._job_id, record)))

    async def publish(self, record: PublicationRecord) -> None:
        """Queue a record behind the earlier ones, when there is room; given up when the gateway is gone, as `run`
        says."""
        if self._ended.is_set():
            return
        try:
            async with asyncio.timeout(STALL_S):
                await self._records.put(record)
        except TimeoutError:
            self._stalled.set()

    async def wan_bytes(self) -> int | None:
        """Payload that the job has sent between regions, as the gateway counts since its start. If the gateway does not
        answer, the newest count that it gave; None if there is none."""
        try:
            async with rpc.channel(self._address) as channel:
                with rpc.remote_errors(self._address):
                    request = gateway_pb2.TrafficRequest(job_id=self._job_id)
                    answer = await gateway_pb2_grpc.GatewayStub(channel).Traffic(request, timeout=rpc.CALL_DEADLINE_S)
            self._wan_bytes = sum(pair.sent_bytes for pair in answer.pairs)
        except PeriplusError as error:
            event(log, logging.WARNING, "wan_bytes_unknown", job=self._job_id, why=error)
        return self._wan_bytes

    async def certificate(self, stop: asyncio.Event) -> Certificate | None:
        """The coordinator's word for the key in the hello; None if asked to stop first, or if the gateway is gone, as
        `run` says. Raises: TimedOut if no answer came, Denied if the coordinator refuses."""
        try:
            async with asyncio.timeout(CERTIFICATE_DEADLINE_S):
                await _either(self._answered, stop)
        except TimeoutError as error:
            raise TimedOut(
                f"the coordinator did not certify the key of job {self._job_id}, fork {self._fork}, within "
                f"{CERTIFICATE_DEADLINE_S:.0f} s: nothing can be published; is it up, and does the agent behind "
                f"{self._address} reach it? Then resume the job"
            ) from error
        if isinstance(self._answer, PeriplusError):
            raise self._answer
        return self._answer

    async def _serve(self, on_message: Callable[[gateway_pb2.TrainerDown], Awaitable[None]]) -> None:
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
        on_message: Callable[[gateway_pb2.TrainerDown], Awaitable[None]],
    ) -> None:
        with rpc.remote_errors(self._address):
            call = stub.Train()
            hello = gateway_pb2.TrainerHello(job_id=self._job_id, fork=self._fork, public_key=self._public_key)
            await call.write(gateway_pb2.TrainerUp(hello=hello))

            async def write() -> None:
                while (message := await self._messages.get()) is not None:
                    await call.write(message)
                await call.done_writing()

            tasks.create_task(write())
            async for message in call:
                if message.HasField("certificate"):
                    self._certified(message.certificate)
                else:
                    await on_message(message)
        raise Unreachable(f"the gateway at {self._address} ended the trainer's stream")

    def _certified(self, answer: control_pb2.CertificateAnswer) -> None:
        certificate = certificate_from_pb(answer.certificate)
        asked = (self._job_id, self._fork, self._public_key)
        why = answer.refused
        if not why and (certificate.job_id, certificate.fork, certificate.public_key) != asked:
            why = f"the answer is for job {certificate.job_id!r}, fork {certificate.fork}, or for another key"
        self._answer = certificate
        if why:
            self._answer = Denied(
                f"the key of the trainer of job {self._job_id}, fork {self._fork}, is not certified: {why}; nothing "
                "can be published, resume the job to start a new fork"
            )
        self._answered.set()

    async def _publish(self, stub: "gateway_pb2_grpc.GatewayAsyncStub") -> None:
        with rpc.remote_errors(self._address):
            await stub.Publish(self._published())
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
