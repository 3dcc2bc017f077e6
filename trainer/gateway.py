"""The trainer's two streams to its own gateway: messages both ways, publications one way.

Sending never blocks the caller: what goes out waits in two bounded queues, each with one writer, since a gRPC stream
takes one write at a time. A trainer without its gateway cannot go on: when a stream ends, `run` raises.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from periplus import rpc
from periplus.convert import publication_record_to_pb, record_to_pb
from periplus.errors import Unreachable
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from periplus.publication import Publication, split
from periplus.record import Record

OUT_MESSAGES = 4096
"""Lease batches and records waiting; a gateway on the same machine takes thousands a second."""

OUT_PUBLICATIONS = 4
"""Encoded versions waiting; beyond, the trainer waits for its gateway rather than run ahead of all readers."""


class GatewayLink:
    """Open for one trainer of one fork, from `run` until it is cancelled."""

    def __init__(self, address: str, job_id: str, fork: int, chunk_bytes: int) -> None:
        self._address = address
        self._job_id = job_id
        self._fork = fork
        self._chunk_bytes = chunk_bytes
        self._messages: asyncio.Queue[gateway_pb2.TrainerUp | None] = asyncio.Queue(OUT_MESSAGES)
        self._closing = False
        self._ended = asyncio.Event()
        self._publications: asyncio.Queue[Publication] = asyncio.Queue(OUT_PUBLICATIONS)

    async def run(self, on_message: Callable[[gateway_pb2.TrainerDown], Awaitable[None]]) -> None:
        """Serve both streams. Raises: Unreachable, Conflict when another trainer has the job."""
        try:
            await self._serve(on_message)
        except Unreachable:
            if not self._closing:
                raise
        finally:
            self._ended.set()
            while not self._publications.empty():  # nobody reads them any more; who waits for room goes on
                self._publications.get_nowait()
                self._publications.task_done()

    async def close(self) -> None:
        """Say that nothing more comes, and wait until the gateway has read all that was queued, or is gone."""
        if self._ended.is_set():
            return
        await self._publications.join()
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

    async def publish(self, publication: Publication) -> None:
        """Queue a publication behind the earlier ones; given up when the gateway is gone, as `run` says."""
        if not self._ended.is_set():
            await self._publications.put(publication)

    async def _serve(self, on_message: Callable[[gateway_pb2.TrainerDown], Awaitable[None]]) -> None:
        async with rpc.channel(self._address) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            with rpc.remote_errors(self._address):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._publish(stub))
                    await self._converse(stub, tasks, on_message)

    async def _converse(
        self, stub: "gateway_pb2_grpc.GatewayAsyncStub", tasks: asyncio.TaskGroup,
        on_message: Callable[[gateway_pb2.TrainerDown], Awaitable[None]],
    ) -> None:  # fmt: skip
        with rpc.remote_errors(self._address):
            call = stub.Train()
            hello = gateway_pb2.TrainerHello(job_id=self._job_id, fork=self._fork)
            await call.write(gateway_pb2.TrainerUp(hello=hello))

            async def write() -> None:
                while (message := await self._messages.get()) is not None:
                    await call.write(message)
                await call.done_writing()

            tasks.create_task(write())
            async for message in call:
                await on_message(message)
        raise Unreachable(f"the gateway at {self._address} ended the trainer's stream")

    async def _publish(self, stub: "gateway_pb2_grpc.GatewayAsyncStub") -> None:
        with rpc.remote_errors(self._address):
            await stub.Publish(self._records())
        raise Unreachable(f"the gateway at {self._address} ended the publishing stream")

    async def _records(self) -> AsyncIterator[gateway_pb2.PublicationRecord]:
        while True:
            publication = await self._publications.get()
            for record in split(publication, self._chunk_bytes):
                yield publication_record_to_pb(record)
            self._publications.task_done()
