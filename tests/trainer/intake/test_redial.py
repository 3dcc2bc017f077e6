"""A trainer's link whose connection to a real gateway breaks: what comes again, what is void, and when it gives up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from periplus.errors import Fenced, PeriplusError, Unreachable
from periplus.publication import PublicationKind, PublicationRecord
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from region_agent.control.certificates import CertificateRequests
from tests.support.gateway.cable import Cable, cable_to
from tests.support.gateway.loopback import (
    JOB,
    Gateway,
    Reader,
    Worker,
    anchor,
    bundle,
    certified,
    delta,
    gateway,
    played,
    remote_gateway,
    until,
)
from tests.support.keys import AUTHORITY, JOB_SECRET
from trainer.intake import gateway as link_module
from trainer.intake.gateway import OUT_RECORDS, GatewayLink
from trainer.intake.messages import (
    FrameReceived,
    FramesAcknowledged,
    GatewayFound,
    HelloReceived,
    JobFinished,
    UpMessage,
)
from trainer.ledger.values import Revoked


@dataclass
class Scene:
    """A link over a cable to a gateway, what came over it, and the error with which it ended."""

    home: Gateway
    cable: Cable
    link: GatewayLink
    came: list[UpMessage] = field(default_factory=list)
    error: PeriplusError | None = None

    async def take(self, message: UpMessage) -> None:
        self.came.append(message)

    async def run(self) -> None:
        try:
            await self.link.run(self.take)
        except PeriplusError as error:
            self.error = error

    async def certificate(self) -> None:
        await self.link.certificate(asyncio.Event())

    async def lose(self) -> None:
        """Cut the cable, and wait until both ends have noticed."""
        self.cable.cut()
        await until(lambda: self.home.hub.trainer_slot.trainer is None)
        await until(lambda: not self.link._connection.followed.is_set())

    async def find(self) -> None:
        num_found = self.num_found
        self.cable.mend()
        await until(lambda: self.num_found > num_found)

    @property
    def num_found(self) -> int:
        return sum(isinstance(message, GatewayFound) for message in self.came)

    def of(self, kind: type[UpMessage]) -> list[UpMessage]:
        return [message for message in self.came if isinstance(message, kind)]

    async def publish(self, *records: PublicationRecord) -> None:
        for record in records:
            await self.link.publish(record)


@asynccontextmanager
async def scene(home: Gateway | None = None, fork: int = 0) -> AsyncIterator[Scene]:
    async with gateway() as fresh:
        home = home or fresh
        async with cable_to(home.address) as cable, asyncio.TaskGroup() as tasks:
            it = Scene(home, cable, GatewayLink(cable.address, JOB, fork, AUTHORITY.public_key, JOB_SECRET))
            running = tasks.create_task(it.run())
            await it.certificate()
            yield it
            running.cancel()


def finished(worker_id: str) -> JobFinished:
    return JobFinished(worker_id=worker_id, why="done")


@played
async def test_after_a_loss_every_worker_says_hello_again_and_messages_from_before_are_void() -> None:
    async with scene() as it:
        async with Worker(it.home.address, "w") as worker:
            await until(lambda: len(it.of(HelloReceived)) == 1)
            await it.lose()
            it.link.send(Revoked("w", (1,)))
            it.link.send(FramesAcknowledged(region="home", worker_id="w", epoch=1, sequences=(0,)))
            it.link.send(finished("w"))
            assert it.link._messages.qsize() == 1
            await it.find()
            assert isinstance(await worker.ended(), Unreachable)
        await until(lambda: it.home.hub.job_is_done)  # said to whoever is there
        async with Worker(it.home.address, "w") as again:
            await until(lambda: len(it.of(HelloReceived)) == 2)
            it.link.send(Revoked("w", (2,)))
            await until(lambda: [list(down.revoked.lease_ids) for down in again.got] == [[2]])
        assert [type(message) for message in it.came].index(GatewayFound) == 1
        assert it.error is None


@played
async def test_frames_come_again_from_the_spools_of_both_regions_until_they_are_acknowledged() -> None:
    async with scene() as it, remote_gateway(it.home.address) as far:
        async with Worker(it.home.address, "near") as near, Worker(far.address, "away") as away:
            await near.frame(b"near")
            await away.frame(b"away")
            await until(lambda: len(it.of(FrameReceived)) == 2)
            await it.lose()
            await it.find()
            await until(lambda: len(it.of(FrameReceived)) == 4)
        for message in it.of(FrameReceived)[2:]:
            assert isinstance(message, FrameReceived)
            key = message.key
            it.link.send(
                FramesAcknowledged(
                    region=message.region, worker_id=key.worker_id, epoch=key.epoch, sequences=(key.sequence,)
                )
            )
        await until(lambda: not it.home.frames.pending and not far.frames.pending)


@played
async def test_a_publication_that_was_cut_is_not_continued_and_the_next_one_is_complete() -> None:
    size = 1 << 14  # of several chunks
    async with scene() as it, Reader(it.home.address) as reader:
        await it.publish(*bundle().records(), *anchor(0, num_bytes=size).records())
        await until(lambda: reader.policy == Policy(0, 0))
        opening, *rest = delta(0, 1, num_bytes=size).records()
        await it.publish(opening, rest[0])
        await until(lambda: it.home.hub.feed._coming_kind is PublicationKind.DELTA)
        await it.lose()
        await it.publish(rest[1])
        await it.find()
        await it.publish(*rest[2:], *delta(1, 2, num_bytes=size).records())  # the link must not let these through
        await it.publish(*bundle().records(), *anchor(2, num_bytes=size).records())
        await it.publish(*delta(2, 3, num_bytes=size).records())
        await until(lambda: reader.policy == Policy(0, 3))
        assert it.home.hub.feed.num_refused == {}
        assert it.error is None


@played
async def test_who_publishes_does_not_wait_for_a_gateway_that_is_away() -> None:
    async with scene() as it:
        await it.lose()
        for _ in range(4 * OUT_RECORDS):
            await it.publish(*anchor(0).records())
        it.link.record(Record(kind=RecordKind.PHASE, policy=Policy(0, 0), time_s=0.0, text="waiting"))
        await it.find()
        await until(lambda: [record.text for record in it.home.records] == ["waiting"])
        await it.link.close()


@played
async def test_the_gateway_certifies_again_while_the_coordinator_is_away() -> None:
    requests = CertificateRequests("nowhere", lambda message: None)

    async def ask() -> None:
        async with gateway(certify=requests.ask) as home, scene(home) as it:
            await it.lose()
            await it.find()

    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask())
        await until(lambda: len(requests.unanswered()) == 1)
        requests.answered(await certified(JOB, 0, AUTHORITY.public_key))
        await asking


@played
async def test_a_gateway_that_still_follows_the_old_stream_is_dialled_until_it_does_not() -> None:
    async with scene() as it:
        await it.lose()
        held = it.home.hub.claim_trainer(0, "the old stream")
        it.cable.mend()
        await until(lambda: it.link._num_dials > 3)
        assert (it.num_found, it.error) == (0, None)
        it.home.hub.trainer_slot.release(held)
        await it.find()


@played
async def test_a_trainer_of_a_newer_fork_is_final() -> None:
    async with scene() as it:
        await it.lose()
        it.home.hub.claim_trainer(1, "another")
        it.cable.mend()
        await until(lambda: it.error is not None)
        assert isinstance(it.error, Fenced)


@played
async def test_a_gateway_that_stays_away_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "REDIAL_S", 0.5)
    async with scene() as it:
        await it.lose()
        assert it.error is None
        await until(lambda: it.error is not None)
        assert isinstance(it.error, Unreachable)
        assert "lost the gateway of its own region" in str(it.error)
        await it.link.close()
        it.link.send(finished("w"))
        await it.publish(*bundle().records())


@played
async def test_it_may_be_lost_again_and_again() -> None:
    async with scene() as it:
        for _ in range(3):
            await it.lose()
            await it.find()
        await it.publish(*bundle().records(), *anchor(0).records())
        await until(lambda: it.home.hub.feed.log.newest == Policy(0, 0))
        await it.link.close()
        assert it.error is None
