"""Tests of the trainer's link to its gateway: what it waits for, how long, and the error when that does not come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc.aio
import pytest

from periplus.codec.frame import CodecId
from periplus.errors import Denied, PeriplusError, TimedOut, Unreachable
from periplus.net import rpc
from periplus.net.convert import certificate_to_pb
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.publication import Certificate, Chunk, PublicationKind, PublisherKey, signed_publication
from periplus.values.policy import Policy
from tests.support.keys import AUTHORITY, JOB_SECRET
from trainer.intake import gateway
from trainer.intake.gateway import OUT_RECORDS, GatewayLink
from trainer.intake.messages import UpMessage

JOB, FORK = "job-1", 3
KEY = PublisherKey.from_private_bytes(bytes(range(32, 64)))
CERTIFICATE = AUTHORITY.certify(JOB, FORK, KEY.public_key)
DEADLINE_S = 100.0
ANCHOR = signed_publication(
    KEY,
    CERTIFICATE,
    job_id=JOB,
    kind=PublicationKind.ANCHOR,
    policy=Policy(FORK, 0),
    codec=CodecId.WEIGHTS,
    content_bytes=9,
    parts=(b"one", b"two", b"three"),
    state_digest=bytes(32),
)


class Home(gateway_pb2_grpc.GatewayServicer):
    """Answers the hello as told, and reads publications once it may."""

    def __init__(self, answer: control_pb2.CertificateAnswer | None) -> None:
        self._answer = answer
        self.hello: gateway_pb2.TrainerHello | None = None
        self.records: list[gateway_pb2.PublicationRecord] = []
        self.may_read = asyncio.Event()

    async def Train(self, request_iterator: Any, context: object) -> AsyncIterator[gateway_pb2.TrainerDown]:
        async for message in request_iterator:
            if message.HasField("hello"):
                self.hello = message.hello
                if self._answer is not None:
                    yield gateway_pb2.TrainerDown(certificate=self._answer)

    async def Publish(self, request_iterator: Any, context: object) -> gateway_pb2.PublishResponse:
        await self.may_read.wait()
        async for record in request_iterator:
            self.records.append(record)
        return gateway_pb2.PublishResponse()

    def Rollout(self, request_iterator: Any, context: object) -> Any:
        raise AssertionError("a trainer does not call this; workers and gateways do")

    def Subscribe(self, request: Any, context: object) -> Any:
        raise AssertionError("a trainer does not call this; workers and gateways do")

    Probe = Relay = Rollout
    Listen = Subscribe

    async def Traffic(self, request: gateway_pb2.TrafficRequest, context: object) -> gateway_pb2.TrafficResponse:
        assert request.job_id == JOB
        pairs = [("home", "far", 70), ("far", "home", 10)]
        return gateway_pb2.TrafficResponse(
            pairs=[control_pb2.PairTraffic(src_region=src, dst_region=dst, sent_bytes=n) for src, dst, n in pairs]
        )


def answer(certificate: Certificate) -> control_pb2.CertificateAnswer:
    return control_pb2.CertificateAnswer(certificate=certificate_to_pb(certificate))


@asynccontextmanager
async def linked(home: Home) -> AsyncIterator[tuple[GatewayLink, grpc.aio.Server]]:
    server = rpc.server()
    address = rpc.bind(server, "127.0.0.1:0")
    gateway_pb2_grpc.add_GatewayServicer_to_server(home, server)
    await server.start()
    link = GatewayLink(address, JOB, FORK, KEY.public_key, JOB_SECRET)

    async def serve() -> None:
        with suppress(Unreachable):
            await link.run(_nobody)

    try:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(serve())
            yield link, server
            running.cancel()
    finally:
        await server.stop(None)


async def _nobody(message: UpMessage) -> None:
    raise AssertionError(f"nobody sent this: {message}")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a link give a lost gateway up at once."""
    monkeypatch.setattr(gateway, "REDIAL_S", 0.0)


def asked(home: Home, stop: asyncio.Event | None = None) -> Certificate | PeriplusError | None:
    async def ask() -> Certificate | PeriplusError | None:
        async with linked(home) as (link, _):
            try:
                return await link.certificate(stop or asyncio.Event())
            except PeriplusError as error:
                return error

    return asyncio.run(ask())


def test_the_hello_shows_the_key_and_the_coordinators_word_for_it_comes_back() -> None:
    home = Home(answer(CERTIFICATE))
    assert asked(home) == CERTIFICATE
    assert home.hello == gateway_pb2.TrainerHello(job_id=JOB, fork=FORK, public_key=KEY.public_key)


def test_a_refusal_says_why_and_what_to_do() -> None:
    error = asked(Home(control_pb2.CertificateAnswer(refused="fork 3 has another trainer")))
    assert isinstance(error, Denied)
    assert "fork 3 has another trainer" in str(error)
    assert "resume" in str(error)


@pytest.mark.parametrize(
    "certificate",
    [
        AUTHORITY.certify("job-2", FORK, KEY.public_key),
        AUTHORITY.certify(JOB, FORK + 1, KEY.public_key),
        AUTHORITY.certify(JOB, FORK, PublisherKey.from_private_bytes(bytes(32)).public_key),
    ],
    ids=["another job", "another fork", "another key"],
)
def test_a_certificate_that_was_not_asked_for_is_refused(certificate: Certificate) -> None:
    assert isinstance(asked(Home(answer(certificate))), Denied)


def test_a_coordinator_that_stays_away_is_a_clear_error_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "CERTIFICATE_DEADLINE_S", 0.05)
    error = asked(Home(None))
    assert isinstance(error, TimedOut)
    assert "coordinator" in str(error)


def test_who_is_asked_to_stop_waits_no_longer() -> None:
    stop = asyncio.Event()
    stop.set()
    assert asked(Home(None), stop) is None


@pytest.mark.usefixtures("impatient")
def test_when_the_gateway_goes_away_before_it_answered_nobody_waits_for_it() -> None:
    async def ask() -> None:
        async with linked(Home(None)) as (link, server):
            waiting = asyncio.create_task(link.certificate(asyncio.Event()))
            await asyncio.sleep(0)
            await server.stop(None)
            assert await waiting is None, "`run` says what happened"

    asyncio.run(ask())


def test_records_leave_in_order_however_long_the_gateway_takes_to_read() -> None:
    home = Home(answer(CERTIFICATE))
    chunks = [Chunk(index, b"x") for index in range(4 * OUT_RECORDS)]

    async def send() -> None:
        async with linked(home) as (link, _):
            await link.certificate(asyncio.Event())
            home.may_read.set()
            for record in (*ANCHOR.records(), *chunks):
                await link.publish(record)
            await link.close()

    asyncio.run(send())
    bodies = [record.WhichOneof("body") for record in home.records[:5]]
    assert bodies == ["opening", "chunk", "chunk", "chunk", "closing"]
    assert [record.chunk.index for record in home.records[5:]] == list(range(4 * OUT_RECORDS))


def test_who_publishes_waits_while_as_many_records_wait_as_may() -> None:
    async def send() -> None:
        link = GatewayLink("nowhere", JOB, FORK, KEY.public_key, JOB_SECRET)
        for index in range(OUT_RECORDS):
            await link.publish(Chunk(index, b"x"))
        waiting = asyncio.create_task(link.publish(Chunk(OUT_RECORDS, b"x")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(send())


@pytest.mark.usefixtures("impatient")
def test_a_gateway_that_reads_no_more_is_as_good_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "STALL_S", 0.1)

    async def send() -> None:
        async with linked(Home(answer(CERTIFICATE))) as (link, _):
            await link.certificate(asyncio.Event())
            for index in range(8 * OUT_RECORDS):
                await link.publish(Chunk(index, bytes(1 << 20)))
            await link.close()

    asyncio.run(send())


@pytest.mark.usefixtures("impatient")
def test_what_is_published_to_a_gateway_that_is_gone_is_given_up() -> None:
    async def send() -> None:
        async with linked(Home(answer(CERTIFICATE))) as (link, server):
            await link.certificate(asyncio.Event())
            await server.stop(None)
            for index in range(4 * OUT_RECORDS):
                await link.publish(Chunk(index, b"x"))
            await link.close()

    asyncio.run(send())


def test_bytes_between_regions_are_asked_of_the_gateway_and_the_newest_count_outlives_it() -> None:
    async def scene() -> list[int | None]:
        async with linked(Home(answer(CERTIFICATE))) as (link, server):
            counted = await link.wan_bytes()
            await server.stop(None)
            return [counted, await link.wan_bytes()]

    assert asyncio.run(scene()) == [80, 80]
    assert asyncio.run(GatewayLink("127.0.0.1:1", JOB, FORK, KEY.public_key, JOB_SECRET).wan_bytes()) is None


@pytest.mark.usefixtures("impatient")
def test_a_trainer_that_loses_its_gateway_says_whose_it_was() -> None:
    async def lose() -> None:
        server = rpc.server()
        address = rpc.bind(server, "127.0.0.1:0")
        gateway_pb2_grpc.add_GatewayServicer_to_server(Home(None), server)
        await server.start()
        link = GatewayLink(address, JOB, FORK, KEY.public_key, JOB_SECRET)
        async with asyncio.timeout(DEADLINE_S):
            running = asyncio.create_task(link.run(_nobody))
            await asyncio.sleep(0.1)
            await server.stop(None)
            await running

    with pytest.raises(Unreachable, match=r"lost the gateway of its own region.*127\.0\.0\.1"):
        asyncio.run(lose())
