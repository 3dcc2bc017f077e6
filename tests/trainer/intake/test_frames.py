import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame, unpack
from periplus.errors import CorruptFrame, DiskFull
from periplus.process.backoff import Backoff
from periplus.spool.format import Durability
from periplus.spool.spool import Spool
from periplus.values.trajectory import TrajectoryLimits, content_digest, token_ids
from periplus.values.transport_keys import FrameKey
from tests.periplus.values.test_trajectory import GOOD
from trainer import disk_wait as disk_wait_module
from trainer.disk_wait import DiskWait
from trainer.intake import frames as intake_module
from trainer.intake.committed import Committed
from trainer.intake.frames import FrameIntake, decode
from trainer.intake.leased_prompts import LeasedPrompts

LIMITS = TrajectoryLimits(vocab_size=100, max_prompt_tokens=4, max_completion_tokens=3)


def disk_wait() -> DiskWait:
    return DiskWait(asyncio.Event(), lambda phase: None)


def frame(*samples: int) -> Frame:
    payload = trajectory_codec.encode([replace(GOOD, sample=sample) for sample in samples])
    return Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, payload)


def key(sequence: int, epoch: int = 1) -> FrameKey:
    return FrameKey(worker_id=GOOD.worker_id, epoch=epoch, sequence=sequence)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool.open(tmp_path, durability=Durability.MACHINE, max_bytes=1 << 20)
    yield spool
    spool.close()


def commit(store: Spool, *frames: tuple[FrameKey, Frame]) -> list[tuple[Committed, ...]]:
    """Each frame is committed alone."""

    async def run() -> list[tuple[Committed, ...]]:
        intake = FrameIntake(store, LIMITS, disk_wait())
        done = []
        for each in frames:
            await intake.put(each[0], "far", each[1])
            done.append(await intake.take())
        return done

    return asyncio.run(run())


def test_what_is_taken_is_on_disk_and_says_where(store: Spool) -> None:
    ((committed,),) = commit(store, (key(0), frame(0, 1)))

    assert [(kept.trajectory.sample, kept.index) for kept in committed.kept] == [(0, 0), (1, 1)]
    assert [kept.digest for kept in committed.kept] == [content_digest(kept.trajectory) for kept in committed.kept]
    (record,) = store.records()
    assert {kept.frame for kept in committed.kept} == {record.position}
    assert store._num_synced == record.position.sequence + 1
    assert unpack(bytes(record.data), max_payload_bytes=1 << 20) == frame(0, 1)


class OneProblem:
    """The environment of a job with the problem 0, and the encoder of its prompt."""

    def item(self, index: int) -> Any:
        return [GOOD.prompt_ids.tolist()][index]

    def encode(self, item: Any) -> Any:
        return item


def test_a_sample_with_another_prompt_than_its_problems_is_refused(store: Spool) -> None:
    right = replace(GOOD, item=0, sample=0)
    wrong = [
        replace(right, sample=1, prompt_ids=token_ids([*GOOD.prompt_ids.tolist(), 1])),
        replace(right, sample=2, prompt_ids=token_ids(reversed([1, *GOOD.prompt_ids.tolist()]))),
        replace(right, sample=3, item=1),
    ]
    prompts = LeasedPrompts(OneProblem(), OneProblem())  # type: ignore[arg-type]

    async def run() -> Committed:
        intake = FrameIntake(store, LIMITS, disk_wait(), [prompts.check])
        payload = trajectory_codec.encode([right, *wrong])
        await intake.put(key(0), "far", Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, payload))
        (committed,) = await intake.take()
        return committed

    committed = asyncio.run(run())
    assert [kept.trajectory.sample for kept in committed.kept] == [0]
    assert [each.sample for each in committed.refused] == [1, 2, 3]
    assert ["bad prompt" in str(each.why) for each in committed.refused] == [True, True, False]
    assert "no problem 1" in str(committed.refused[2].why)


def test_a_resend_is_acknowledged_and_not_kept_again(store: Spool) -> None:
    done = commit(store, (key(0), frame(0)), (key(0), frame(0)), (key(0, epoch=2), frame(0)))

    assert [len(committed.kept) for (committed,) in done] == [1, 0, 1]
    assert {committed.region for (committed,) in done} == {"far"}
    assert [committed.key for (committed,) in done] == [key(0), key(0), key(0, epoch=2)]
    assert store.num_records == 2


def test_a_frame_that_is_no_good_is_refused_with_its_error_and_leaves_the_others_alone(store: Spool) -> None:
    bad = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"nonsense")
    done = commit(store, (key(0), bad), (key(1), frame(0)))

    ((refused,), (fine,)) = done
    assert isinstance(refused.refusal, CorruptFrame)
    assert not refused.kept
    assert len(fine.kept) == 1
    assert store.num_records == 1


def test_a_trajectory_that_breaks_the_jobs_limits_takes_its_frame_with_it(store: Spool) -> None:
    ((refused,),) = commit(
        store,
        (key(0), Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode([replace(GOOD, reward=float("inf"))]))),
    )
    assert refused.refusal is not None
    assert "reward" in str(refused.refusal)


def test_what_waits_is_committed_together_in_order(store: Spool) -> None:
    async def run() -> tuple[Committed, ...]:
        intake = FrameIntake(store, LIMITS, disk_wait())
        for sequence in range(5):
            await intake.put(key(sequence), "far", frame(sequence % 3))
        return await intake.take()

    committed = asyncio.run(run())
    assert [each.key.sequence for each in committed] == list(range(5))
    assert store.num_records == 5


def test_who_puts_more_than_may_wait_waits(store: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "WAITING_BYTES", 1)

    async def run() -> None:
        intake = FrameIntake(store, LIMITS, disk_wait())
        await intake.put(key(0), "far", frame(0))
        second = asyncio.ensure_future(intake.put(key(1), "far", frame(1)))
        await asyncio.sleep(0)
        assert not second.done()
        assert len(await intake.take()) == 1
        await second
        assert len(await intake.take()) == 1

    asyncio.run(run())


def test_a_full_disk_is_tried_again_and_nothing_is_lost(
    store: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_wait_module, "RETRY", Backoff(first_s=0.0))
    append, refusals = store.append, iter([False, True, True])

    def sometimes(*parts: Any) -> Any:
        if next(refusals, False):
            raise DiskFull("no room")
        return append(*parts)

    monkeypatch.setattr(store, "append", sometimes)

    async def run() -> tuple[Committed, ...]:
        intake = FrameIntake(store, LIMITS, disk_wait())
        for sequence in range(3):
            await intake.put(key(sequence), "far", frame(sequence))
        return await intake.take()

    committed = asyncio.run(run())
    assert [kept.trajectory.sample for each in committed for kept in each.kept] == [0, 1, 2]
    assert store.num_records == 3
    assert [record.message for record in caplog.records] == ["disk_full"]


def test_what_is_too_much_for_one_commit_waits_for_the_next(store: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "COMMIT_TOKENS", 1)

    async def run() -> list[list[int]]:
        intake = FrameIntake(store, LIMITS, disk_wait())
        for sequence in range(3):
            await intake.put(key(sequence), "far", frame(sequence))
        return [[each.key.sequence for each in await intake.take()] for _ in range(3)]

    assert asyncio.run(run()) == [[0], [1], [2]]


def test_of_a_frame_with_invalid_samples_the_valid_ones_are_kept_as_a_frame_of_their_own(store: Spool) -> None:
    samples = [
        replace(GOOD, sample=0),
        replace(GOOD, sample=1, lease_id=11, reward=1e200),
        replace(GOOD, sample=2),
        replace(GOOD, sample=3, lease_id=13, worker_id="another"),
    ]
    mixed = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode(samples))
    ((committed,), (again,)) = commit(store, (key(0), mixed), (key(0), mixed))

    assert [(kept.trajectory.sample, kept.index) for kept in committed.kept] == [(0, 0), (2, 1)]
    assert [(one.lease_id, one.group, one.sample) for one in committed.refused] == [
        (11, GOOD.group, 1),
        (13, GOOD.group, 3),
    ]
    assert "1e+200" in str(committed.refusal)
    assert "another" in str(committed.refused[1].why)
    (record,) = store.records()
    stored = decode(unpack(bytes(record.data), max_payload_bytes=1 << 20), LIMITS)
    assert stored == tuple(kept.trajectory for kept in committed.kept)
    assert (again.kept, again.refused) == ((), ())


def test_a_frame_without_samples_takes_no_room(store: Spool) -> None:
    commit(store, (key(0), frame()))
    assert store.num_records == 0


def test_a_frame_of_invalid_samples_alone_takes_no_room_and_names_them(store: Spool) -> None:
    bad = trajectory_codec.encode([replace(GOOD, sample=sample, reward=float("inf")) for sample in range(3)])
    ((committed,),) = commit(store, (key(0), Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, bad)))
    assert [one.sample for one in committed.refused] == [0, 1, 2]
    assert store.num_records == 0
