"""A worker's streams to a gateway on loopback that does as a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from periplus.codec.frame import CodecId, Frame
from periplus.errors import Unreachable
from periplus.net import rpc
from periplus.net.convert import publication_record_to_pb
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from periplus.publication import Chunk
from periplus.values.policy import Policy
from rollout_worker.gateway import WorkerHello, exchange_leases, subscribed
from rollout_worker.messages import GatewayMessage, LeasesRevoked, SamplingStarted, WorkerMessage
from rollout_worker.outbox import Outbox
from rollout_worker.weights.incoming import ReceivedRecord
from rollout_worker.weights.subscription import SubscriptionRequest
from tests.support.keys import JOB_SECRET

DEADLINE_S = 200.0
HELLO = WorkerHello(job_id="j", worker_id="w", region="far", epoch=3, bundle_digest=b"d", num_samples=8)
NOTHING = SubscriptionRequest(have=None, has_bundle=False, distrusts_copies=False)
CHUNKS = (Chunk(0, b"one"), Chunk(1, b"two"))


@dataclass
class Gateway(gateway_pb2_grpc.GatewayServicer):
    """Keeps what comes up, sends `down` when it has as many messages as `after`, and ends the stream if told so."""

    after: int = 0
    down: tuple[gateway_pb2.RolloutDown, ...] = ()
    ends: bool = False
    up: list[gateway_pb2.RolloutUp] = field(default_factory=list)
    requests: list[gateway_pb2.SubscribeRequest] = field(default_factory=list)
    address: str = ""

    async def Rollout(self, request_iterator: Any, context: object) -> AsyncIterator[gateway_pb2.RolloutDown]:
        async for message in request_iterator:
            self.up.append(message)
            if len(self.up) == self.after:
                for answer in self.down:
                    yield answer
                if self.ends:
                    return

    async def Subscribe(
        self, request: gateway_pb2.SubscribeRequest, context: object
    ) -> AsyncIterator[gateway_pb2.PublicationRecord]:
        self.requests.append(request)
        for chunk in CHUNKS:
            yield publication_record_to_pb(chunk)
        if not self.ends:
            await asyncio.Event().wait()


@asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[str]:
    server = rpc.server()
    address = rpc.bind(server, "127.0.0.1:0")
    gateway_pb2_grpc.add_GatewayServicer_to_server(gateway, server)  # type: ignore[no-untyped-call,unused-ignore]
    await server.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield address
    finally:
        await server.stop(None)


def gateway_that(**does: Any) -> Gateway:
    return Gateway(**does)  # type: ignore[abstract]  # the other methods are the base's: unimplemented


def exchange(gateway: Gateway, outbox: Outbox[WorkerMessage], on_message: Callable[[GatewayMessage], None]) -> None:
    async def heard(message: GatewayMessage) -> None:
        on_message(message)

    async def run() -> None:
        async with serving(gateway) as address:
            await exchange_leases(address, JOB_SECRET, HELLO, outbox, heard)

    asyncio.run(run())


def test_a_lease_stream_begins_with_hello_and_room_and_then_carries_the_outbox_in_order() -> None:
    async def filled() -> Outbox[WorkerMessage]:
        outbox = Outbox[WorkerMessage]("w", 3)
        await outbox.put(SamplingStarted((1,), Policy(0, 0)))
        await outbox.put_frame(Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"columns"))
        return outbox

    heard: list[GatewayMessage] = []
    down = gateway_pb2.RolloutDown(worker_id="w", revoked=gateway_pb2.LeasesRevoked(lease_ids=[1]))
    gateway = gateway_that(after=4, down=(gateway_pb2.RolloutDown(), down), ends=True)
    with pytest.raises(Unreachable, match="ended the lease stream"):
        exchange(gateway, asyncio.run(filled()), heard.append)
    assert [message.WhichOneof("body") for message in gateway.up] == ["hello", "capacity", "started", "frame"]
    assert {message.worker_id for message in gateway.up} == {"w"}
    hello, frame = gateway.up[0].hello, gateway.up[3].frame
    assert (hello.job_id, hello.region, hello.bundle_digest, hello.epoch) == ("j", "far", b"d", 3)
    assert gateway.up[1].capacity.num_samples == 8
    assert (frame.epoch, frame.sequence, frame.payload, frame.region) == (3, 0, b"columns", "")
    assert heard == [LeasesRevoked(frozenset({1}))], "what is unknown is passed over"


def read(gateway: Gateway, number: int, again: asyncio.Event | None = None) -> list[ReceivedRecord]:
    """So many records of one subscription; `again` is set after the last."""
    found: list[ReceivedRecord] = []

    async def run() -> None:
        async with (
            serving(gateway) as address,
            subscribed(address, JOB_SECRET, "j", "w", NOTHING, again or asyncio.Event()) as it,
        ):
            async for record in it:
                found.append(record)
                if len(found) == number and again is not None:
                    again.set()

    with pytest.raises(Unreachable, match="subscribing again" if again else "ended the subscription"):
        asyncio.run(run())
    return found


def test_the_records_of_a_subscription_come_in_order_until_the_gateway_ends_it() -> None:
    gateway = gateway_that(ends=True)
    assert read(gateway, 2) == list(CHUNKS)
    assert [(request.job_id, request.reader_id, request.has_state) for request in gateway.requests] == [
        ("j", "w", False)
    ]


def test_a_subscription_is_left_when_the_reader_must_subscribe_again() -> None:
    assert read(gateway_that(), 2, asyncio.Event()) == list(CHUNKS)


def test_a_gateway_that_cannot_be_reached_is_unreachable() -> None:
    async def ignore(message: GatewayMessage) -> None:
        pass

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await exchange_leases("127.0.0.1:1", JOB_SECRET, HELLO, Outbox[WorkerMessage]("w", 3), ignore)

    with pytest.raises(Unreachable):
        asyncio.run(run())
