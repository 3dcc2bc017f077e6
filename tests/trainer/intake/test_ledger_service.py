"""The service around the ledger, without gRPC: what is on record when, and what is acknowledged and returned."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from periplus.audit import records as audit
from periplus.audit.journal import AuditJournal, read_lines
from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame
from periplus.errors import UnknownCodec, WrongRewards
from periplus.spool.format import Durability
from periplus.spool.spool import Spool
from periplus.values.policy import Policy
from periplus.values.trajectory import Trajectory, TrajectoryLimits
from periplus.values.transport_keys import FrameKey
from tests.support.ledger.drivers import HOME, Frames, driver_of, hello, sampled
from tests.support.trainer.reader_proofs import proof_of
from trainer.disk_wait import DiskWait
from trainer.intake.committed import KeptTrajectory
from trainer.intake.frames import FrameIntake
from trainer.intake.ledger_service import MAX_ASKED, LedgerService, acknowledgements
from trainer.intake.messages import (
    AnchorWanted,
    DownMessage,
    FrameReceived,
    FramesAcknowledged,
    GatewayFound,
    ProofReceived,
    UnreadableMessage,
)
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.ledger.values import Granted, Lease, RoomOffered

DEADLINE_S = 100.0
LIMITS = TrajectoryLimits(vocab_size=100, max_prompt_tokens=4, max_completion_tokens=3)
PROOF = proof_of(Policy(0, 0))


@dataclass
class Scene:
    """A service over a real journal and store, and all that it sent with what was on record at that time."""

    service: LedgerService
    audit_file: Path
    sent: list[DownMessage] = field(default_factory=list)
    on_record: list[int] = field(default_factory=list)  # lines in the journal's file at each message
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    num_checks: int = 0
    num_wrong: int = 0  # first checks of an evaluation that find all of its rewards wrong

    def send(self, message: DownMessage) -> None:
        self.sent.append(message)
        self.on_record.append(len(self.lines()))
        self.arrived.set()

    def lines(self) -> list[audit.Entry]:
        return [audit.from_line(line.rstrip(b"\n"), "audit").record for line in read_lines(self.audit_file)]

    def leases(self) -> list[Lease]:
        return [lease for message in self.sent if isinstance(message, Granted) for lease in message.leases]

    async def until_sent(self, kind: type[DownMessage]) -> None:
        while not any(isinstance(message, kind) for message in self.sent):
            await self.next_message()

    async def next_message(self) -> None:
        self.arrived.clear()
        await self.arrived.wait()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    store = Spool.open(tmp_path / "store", durability=Durability.PROCESS, max_bytes=1 << 20)
    disk = DiskWait(asyncio.Event(), lambda phase: None)
    with AuditJournal.open(tmp_path / "audit.jsonl") as journal:

        def send(message: DownMessage) -> None:
            it.send(message)

        lines = WriteAheadJournal(journal, send, disk, lambda: 1.0)
        intake = FrameIntake(store, LIMITS, disk)

        async def wrong_groups(kept: Sequence[KeptTrajectory]) -> frozenset[int]:
            it.num_checks += 1
            return frozenset(each.trajectory.group for each in kept if it.num_checks <= it.num_wrong)

        service = LedgerService(
            driver_of(), intake, lines, send, syncs=True, now=lambda: 0.0, wrong_groups=wrong_groups
        )
        it = Scene(service, tmp_path / "audit.jsonl")
        yield it
    store.close()


def play(scene: Scene, act: Callable[[], Awaitable[None]]) -> None:
    """Run the service beside what a test does."""

    async def run() -> None:
        running = asyncio.create_task(scene.service.run())
        try:
            async with asyncio.timeout(DEADLINE_S):
                await act()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(run())


def received(*trajectories: Trajectory, sequence: int = 0) -> FrameReceived:
    frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode(trajectories))
    return FrameReceived(FrameKey(worker_id="a", epoch=1, sequence=sequence), HOME, frame)


async def join(scene: Scene) -> list[Lease]:
    await scene.service.on_message(hello("a"))
    await scene.service.on_message(RoomOffered("a", 2))
    return scene.leases()


def test_a_lease_is_in_the_journals_file_before_it_is_sent(scene: Scene) -> None:
    async def act() -> None:
        leases = await join(scene)
        written = [line for line in scene.lines() if isinstance(line, audit.LeaseEntry)]
        assert [line.lease_id for line in written] == [lease.lease_id for lease in leases]
        assert scene.on_record[0] == len(leases)

    play(scene, act)


def test_when_a_lost_gateway_is_found_all_leases_end_and_what_was_committed_is_acknowledged_again(
    scene: Scene,
) -> None:
    async def act() -> None:
        first, second = (await join(scene))[:2]
        await scene.service.on_message(received(sampled(first)))
        await scene.until_sent(FramesAcknowledged)
        assert await scene.service.on_message(GatewayFound()) == GatewayFound()
        scene.sent.clear()
        await scene.service.on_message(received(sampled(first)))
        await scene.until_sent(FramesAcknowledged)
        assert scene.leases() == [], "nobody is there"
        await scene.service.on_message(received(sampled(second), sequence=1))
        await scene.service.on_message(hello("a"))
        await scene.service.on_message(RoomOffered("a", 2))
        lost = [line.lease_id for line in scene.lines() if isinstance(line, audit.LostEntry)]
        assert second.lease_id in lost
        assert first.lease_id not in lost
        while sum(isinstance(line, audit.ResultEntry) for line in scene.lines()) < 2:
            await scene.next_message()
        verdicts = [line.verdict for line in scene.lines() if isinstance(line, audit.ResultEntry)]
        assert verdicts == ["accepted", "accepted"], "also the result of a lease that has ended"

    play(scene, act)


def test_a_frame_is_acknowledged_once_the_decisions_about_it_are_on_record(scene: Scene) -> None:
    async def act() -> None:
        first, second = (await join(scene))[:2]
        await scene.service.on_message(received(sampled(first), sampled(second)))
        await scene.until_sent(FramesAcknowledged)
        place = next(i for i, message in enumerate(scene.sent) if isinstance(message, FramesAcknowledged))
        assert scene.sent[place] == FramesAcknowledged(region=HOME, worker_id="a", epoch=1, sequences=(0,))
        before = scene.lines()[: scene.on_record[place]]
        assert [line.verdict for line in before if isinstance(line, audit.ResultEntry)] == ["accepted", "accepted"]

    play(scene, act)


def test_a_batch_is_returned_when_its_last_sample_came_in_and_the_next_one_after_its_step(scene: Scene) -> None:
    async def act() -> None:
        leases = (await join(scene))[:2]
        waiting = asyncio.create_task(scene.service.batch(asyncio.Event()))
        await asyncio.sleep(0)
        assert not waiting.done()
        await scene.service.on_message(received(*map(sampled, leases)))
        batch = await waiting
        assert batch is not None
        assert batch.policy == Policy(0, 0)
        assert [each.trajectory.lease_id for each in batch.kept] == [lease.lease_id for lease in leases]
        line = audit.ConsumeEntry(
            policy=batch.policy, trained=True, why="", samples=(), root=bytes(16), staleness_tokens={0: 6}
        )
        await scene.service.step_done(batch, line)
        assert line in scene.lines()
        stop = asyncio.Event()
        stop.set()
        assert await scene.service.batch(stop) is None, "asked to stop before there was one"

    play(scene, act)


def test_an_evaluation_is_written_with_the_samples_that_it_used(scene: Scene) -> None:
    async def act() -> None:
        await join(scene)
        known = len(scene.leases())
        waiting = asyncio.create_task(scene.service.evaluation((7,), asyncio.Event()))
        while len(scene.leases()) == known:
            await scene.next_message()
        await scene.service.on_message(received(sampled(scene.leases()[known])))
        found = await waiting
        assert found is not None
        (line,) = [line for line in scene.lines() if isinstance(line, audit.EvalEntry)]
        assert [used.digest for used in line.samples] == [each.digest for each in found]

    play(scene, act)


@pytest.mark.parametrize("num_wrong", [1, MAX_ASKED])
def test_samples_with_wrong_rewards_are_dropped_and_asked_for_again_but_not_forever(
    scene: Scene, num_wrong: int
) -> None:
    async def act() -> None:
        scene.num_wrong = num_wrong
        await join(scene)
        known = len(scene.leases())
        waiting = asyncio.create_task(scene.service.evaluation((7,), asyncio.Event()))
        for number in range(min(num_wrong + 1, MAX_ASKED)):
            while len(scene.leases()) == known + number:
                await scene.next_message()
            await scene.service.on_message(received(sampled(scene.leases()[known + number]), sequence=number))
        if num_wrong == MAX_ASKED:
            with pytest.raises(WrongRewards):
                await waiting
        else:
            assert [each.trajectory.group for each in await waiting or ()] == [scene.leases()[-1].group]
        drops = [line for line in scene.lines() if isinstance(line, audit.DropEntry)]
        assert len({line.group for line in drops}) == min(num_wrong, len(drops))
        assert {line.why for line in drops} == {audit.UNSOUND}

    play(scene, act)


def test_an_evaluation_that_is_asked_to_stop_returns_nothing(scene: Scene) -> None:
    async def act() -> None:
        stop = asyncio.Event()
        waiting = asyncio.create_task(scene.service.evaluation((7,), stop))
        await asyncio.sleep(0)
        stop.set()
        assert await waiting is None

    play(scene, act)


def test_messages_that_concern_others_too_are_returned(scene: Scene) -> None:
    async def act() -> None:
        service = scene.service
        assert await service.on_message(AnchorWanted()) == AnchorWanted()
        assert await service.on_message(ProofReceived("a", PROOF)) is None, "of a worker that never said hello"
        failed = ProofReceived("a", replace(PROOF, ok=False))
        assert await service.on_message(failed) == failed, "a mismatch counts, whoever reports it"
        assert await service.on_message(hello("a")) == hello("a")
        assert await service.on_message(RoomOffered("a", 1)) is None
        assert await service.on_message(ProofReceived("a", PROOF)) == ProofReceived("a", PROOF)

    play(scene, act)


def test_a_bad_message_is_logged_and_stops_nobody(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        await scene.service.on_message(UnreadableMessage("a", UnknownCodec("codec 99")))
        await scene.service.on_message(RoomOffered("nobody", 1))
        await scene.service.on_message(replace(hello("a"), bundle_digest=b"of another job"))
        assert [record.getMessage() for record in caplog.records] == ["message_refused"] * 3
        assert len(await join(scene)) == 2

    play(scene, act)


def test_after_the_last_line_of_the_journal_messages_are_ignored(scene: Scene) -> None:
    async def act() -> None:
        await scene.service.close(audit.EndEntry(how="stopped"))
        await join(scene)
        assert await scene.service.on_message(AnchorWanted()) is None
        assert scene.lines() == [audit.EndEntry(how="stopped")]
        assert scene.sent == []

    play(scene, act)


def test_frames_are_acknowledged_to_the_region_that_spools_them_by_start_of_their_worker() -> None:
    frames = Frames()
    committed = [
        frames.commit(worker_id="a"),
        frames.commit(worker_id="b"),
        frames.commit(worker_id="a"),
        frames.commit(worker_id="a", region="far"),
    ]
    assert acknowledgements(committed) == (
        FramesAcknowledged(region=HOME, worker_id="a", epoch=1, sequences=(0, 2)),
        FramesAcknowledged(region=HOME, worker_id="b", epoch=1, sequences=(1,)),
        FramesAcknowledged(region="far", worker_id="a", epoch=1, sequences=(3,)),
    )
