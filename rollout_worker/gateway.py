"""The two gRPC streams of a worker to its region's gateway: leases both ways, and publications of weights.

Each call opens one stream and serves it until it breaks; the caller decides whether to open another one
(reconnection.py). Messages are values (messages.py, weights/incoming.py) and become protobuf here, by `convert`. This
module does not know what they mean.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from periplus.errors import Unreachable
from periplus.net import rpc
from periplus.net.convert import keyed_frame_to_pb
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from periplus.values.transport_keys import KeyedFrame
from rollout_worker.convert import (
    gateway_message_from_pb,
    received_record_from_pb,
    subscription_to_pb,
    worker_message_to_pb,
)
from rollout_worker.messages import GatewayMessage, WorkerMessage
from rollout_worker.outbox import Outbox
from rollout_worker.weights.incoming import ReceivedRecord
from rollout_worker.weights.subscription import SubscriptionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHello:
    """Who says hello. `epoch` tells this start of the worker's process from earlier ones.

    `bundle_digest` identifies the tokenizer and model config that the worker has. `num_samples` is the number of leases
    that it can hold.
    """

    job_id: str
    worker_id: str
    region: str
    epoch: int
    bundle_digest: bytes
    num_samples: int


async def exchange_leases(
    gateway: str,
    secret: str,
    hello: WorkerHello,
    outbox: Outbox[WorkerMessage],
    on_message: Callable[[GatewayMessage], Awaitable[None]],
    secured: rpc.Secured | None = None,
) -> None:
    """Open a lease stream to `gateway` (host:port), write what `outbox` has, and pass on what comes down.

    `secret` is the job's, and `secured` how to call a gateway that knows its callers by certificates.

    Raises: always a PeriplusError, because a stream ends only by an error.
    """
    async with rpc.channel(gateway, secured) as channel:
        with rpc.remote_errors(gateway):
            call = gateway_pb2_grpc.GatewayStub(channel).Rollout(metadata=metadata_of_job(secret))
            # A stream must open with a hello, and without room the ledger grants no leases.
            for opening in _opening_messages(hello):
                await call.write(opening)
            # Only now, so that frames which the last stream did not acknowledge follow the hello.
            outbox.begin()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_write_out(call, hello.worker_id, outbox))
                async for message in call:
                    if (value := gateway_message_from_pb(message)) is not None:
                        await on_message(value)
                raise Unreachable(f"the gateway at {gateway} ended the lease stream")


@asynccontextmanager
async def subscribed(
    gateway: str,
    secret: str,
    job_id: str,
    reader_id: str,
    request: SubscriptionRequest,
    again: asyncio.Event,
    secured: rpc.Secured | None = None,
) -> AsyncIterator[AsyncIterator[ReceivedRecord]]:
    """Subscribe to the job's publications at `gateway` (host:port), and give an iterator over their records.

    The iterator ends only by an error: Unreachable when the gateway ends the stream or when `again` is set, else what
    the gateway's status says.
    """
    async with rpc.channel(gateway, secured) as channel:
        with rpc.remote_errors(gateway):
            asked = subscription_to_pb(job_id, reader_id, request)
            call = gateway_pb2_grpc.GatewayStub(channel).Subscribe(asked, metadata=metadata_of_job(secret))
            yield _records(call, gateway, again)


def _opening_messages(hello: WorkerHello) -> tuple[gateway_pb2.RolloutUp, gateway_pb2.RolloutUp]:
    greeting = gateway_pb2.WorkerHello(
        job_id=hello.job_id, region=hello.region, bundle_digest=hello.bundle_digest, epoch=hello.epoch
    )
    room = gateway_pb2.Capacity(num_samples=hello.num_samples)
    return (
        gateway_pb2.RolloutUp(worker_id=hello.worker_id, hello=greeting),
        gateway_pb2.RolloutUp(worker_id=hello.worker_id, capacity=room),
    )


async def _write_out(
    call: grpc.aio.StreamStreamCall,  # type: ignore[type-arg]
    worker_id: str,
    outbox: Outbox[WorkerMessage],
) -> None:
    while True:
        match await outbox.next():
            case KeyedFrame(key, frame):
                await call.write(keyed_frame_to_pb(key, frame, ""))
            case message:
                await call.write(worker_message_to_pb(worker_id, message))


async def _records(
    call: grpc.aio.UnaryStreamCall,  # type: ignore[type-arg]
    gateway: str,
    again: asyncio.Event,
) -> AsyncIterator[ReceivedRecord]:
    while True:
        # `again` cuts only the wait for a record. The reader handles each record to its end before it asks for the
        # next, so a thread that works on the host copy is never abandoned.
        reading, cut = asyncio.ensure_future(call.read()), asyncio.ensure_future(again.wait())
        try:
            await asyncio.wait({reading, cut}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Unreachable(f"subscribing again at {gateway}: the engine needs a full state")
            message = reading.result()
        finally:
            reading.cancel()
            cut.cancel()
        if message is grpc.aio.EOF:
            raise Unreachable(f"the gateway at {gateway} ended the subscription")
        assert isinstance(message, gateway_pb2.PublicationRecord)
        yield received_record_from_pb(message)
