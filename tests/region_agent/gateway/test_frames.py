"""The spool of a region's frames: what is taken once, what comes back, what waits, and where it lies."""

import asyncio
import logging
from pathlib import Path

import pytest

from periplus.codec.frame import CodecId, Frame
from periplus.errors import Conflict, StorageError
from periplus.spool.database import DATABASE
from periplus.spool.format import Durability
from periplus.values.transport_keys import FrameKey, KeyedFrame
from region_agent.gateway import frames as frames_module
from region_agent.gateway.frames import FrameSpool, open_frames
from tests.support.gateway.loopback import frame_spool, play
from tests.support.gateway.spool_disk import SpoolDisk
from tests.support.small_disk import small_disk


def key(sequence: int, epoch: int = 1, worker_id: str = "w") -> FrameKey:
    return FrameKey(worker_id=worker_id, epoch=epoch, sequence=sequence)


def frame(payload: bytes = b"payload") -> Frame:
    return Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, payload)


def on_disk(folder: Path) -> FrameSpool:
    return open_frames(folder, durability=Durability.MACHINE, max_bytes=1 << 22)


def test_a_frame_is_taken_once_under_whatever_key_order_and_goes_up_as_it_came() -> None:
    async def scene() -> None:
        spool = frame_spool()
        for sequence in (3, 1, 2, 0):
            assert await spool.take(key(sequence), frame(bytes([sequence])))
        for sequence in (0, 1, 2, 3):
            assert not await spool.take(key(sequence), frame(b"another"))
        assert await spool.take(key(0, epoch=2), frame())
        assert await spool.take(key(0, worker_id="v"), frame())
        assert spool.pending[:4] == (key(3), key(1), key(2), key(0))
        assert spool.read(key(2)) == KeyedFrame(key(2), frame(b"\2"))

    asyncio.run(scene())


def test_what_the_ledger_has_is_not_sent_again_and_not_taken_again() -> None:
    async def scene() -> None:
        spool = frame_spool()
        await spool.take(key(0), frame())
        await spool.take(key(1), frame())
        spool.commit([key(0), key(0), key(77), key(1, epoch=9)])
        assert spool.pending == (key(1),)
        assert spool.read(key(0)) is None
        assert not await spool.take(key(0), frame())

    asyncio.run(scene())


def test_after_a_crash_everything_uncommitted_is_pending_again_once_and_in_order() -> None:
    async def scene() -> None:
        disk = SpoolDisk()
        spool = frame_spool(disk, max_bytes=1 << 20)
        for sequence in range(40):
            await spool.take(key(sequence), frame(bytes(3000)))
        spool.commit([key(sequence) for sequence in range(30)])
        disk.kill()
        again = frame_spool(disk, max_bytes=1 << 20)
        assert [one for one in again.pending if one.sequence >= 30] == [key(sequence) for sequence in range(30, 40)]
        again.close()
        again = frame_spool(disk, max_bytes=1 << 20)
        assert not await again.take(key(35), frame())
        disk.kill()
        assert frame_spool(disk, max_bytes=1 << 20).pending == again.pending

    asyncio.run(scene())


def test_what_was_durable_survives_a_power_cut() -> None:
    async def scene() -> None:
        disk = SpoolDisk()
        spool = frame_spool(disk, durability=Durability.MACHINE)
        await spool.take(key(0), frame())
        await spool.durable()
        await spool.take(key(1), frame())
        disk.cut_power(lambda most: 0)
        assert frame_spool(disk, durability=Durability.MACHINE).pending == (key(0),)

    asyncio.run(scene())


def test_who_takes_into_a_full_spool_waits_until_the_ledger_has_something(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "FULL_RETRY_S", 1e9)
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        spool = frame_spool(max_bytes=1 << 18)
        taken = 0
        while spool.num_bytes + 30_000 < 1 << 18:
            await spool.take(key(taken), frame(bytes(20_000)))
            taken += 1
        waiting = [asyncio.create_task(spool.take(key(100 + i), frame(bytes(20_000)))) for i in range(2)]
        twice = asyncio.create_task(spool.take(key(100), frame(bytes(20_000))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "cannot take" in spool.obstacle
        spool.commit(spool.pending[:-1])
        assert [await each for each in waiting] == [True, True]
        assert spool.obstacle == ""
        assert not await twice, "the same key waited twice and was taken once"
        assert [one.sequence for one in spool.pending[-2:]] == [100, 101]

    play(scene)
    names = [record.getMessage() for record in caplog.records]
    assert names.count("spool_full") == names.count("spool_has_room") == 1


@pytest.mark.parametrize("durability", list(Durability))
def test_a_real_disk_that_fills_up_makes_the_sender_wait_and_loses_no_frame(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(frames_module, "FULL_RETRY_S", 0.001)

    async def scene() -> None:
        with small_disk(tmp_path / "small", num_kib=512) as disk:
            folder = disk.root / "spools" / "job"
            spool = FrameSpool.open(folder, durability=durability, max_bytes=1 << 20)
            filler = disk.fill(leaving_bytes=50_000)
            taking = [asyncio.create_task(spool.take(key(number), frame(bytes(20_000)))) for number in range(6)]
            await asyncio.sleep(0.02)
            assert not all(each.done() for each in taking)
            filler.unlink()
            assert await asyncio.gather(*taking) == [True] * 6
            await spool.durable()
            assert spool.close()
            again = FrameSpool.open(folder, durability=durability, max_bytes=1 << 20)
            assert sorted(one.sequence for one in again.pending) == list(range(6))
            again.close(job_is_done=True)

    play(scene)
    (warning,) = [record for record in caplog.records if record.getMessage() == "spool_full"]
    assert warning.levelname == "WARNING"
    assert "bytes are needed" in str(warning.fields["why"])  # type: ignore[attr-defined]


def test_a_full_disk_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "FULL_RETRY_S", 0.001)

    async def scene() -> None:
        disk = SpoolDisk()
        spool = frame_spool(disk)
        await spool.take(key(0), frame())
        disk.is_full = True
        waiting = asyncio.create_task(spool.take(key(1), frame()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        disk.is_full = False
        assert await waiting
        disk.kill()
        assert frame_spool(disk).pending == (key(0), key(1))

    play(scene)


def test_a_disk_that_cannot_sync_promises_nothing() -> None:
    async def scene() -> None:
        disk = SpoolDisk()
        spool = frame_spool(disk, durability=Durability.MACHINE)
        await spool.take(key(0), frame())
        disk.failing_syncs = True
        with pytest.raises(StorageError):
            await spool.durable()

    asyncio.run(scene())


def test_the_folder_goes_when_nothing_is_uncommitted_or_the_job_is_done(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = tmp_path / "spools" / "job-1"
        spool = on_disk(folder)
        await spool.take(key(0), frame())
        with pytest.raises(Conflict):
            on_disk(folder)
        assert spool.close()
        again = on_disk(folder)
        assert again.pending == (key(0),)
        again.commit([key(0)])
        assert not again.close()
        assert not folder.exists()
        done = on_disk(folder)
        await done.take(key(1), frame())
        assert not done.close(job_is_done=True)
        assert not folder.exists()

    asyncio.run(scene())


def test_a_damaged_spool_is_set_aside_whole_and_a_new_one_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        folder = tmp_path / "job-1"
        for number in (1, 2):
            spool = on_disk(folder)
            for sequence in range(3):
                await spool.take(key(sequence), frame())
            spool.close()
            content = bytearray((folder / DATABASE).read_bytes())
            content[content.index(b"payload")] ^= 1
            (folder / DATABASE).write_bytes(content)
            again = on_disk(folder)
            assert again.pending == ()
            again.close()
            aside = folder.with_name(f"{folder.name}.damaged-{number}")
            assert (aside / DATABASE).read_bytes() == bytes(content)

    asyncio.run(scene())
    assert [record.getMessage() for record in caplog.records].count("spool_damaged") == 2


def test_a_record_that_cannot_be_read_any_more_is_said_to_be_lost_and_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        spool = frame_spool()
        await spool.take(key(0), frame())
        await spool.take(key(1), frame())
        spool._spool._connection.execute("UPDATE records SET data = zeroblob(9) WHERE key % 2 = 0")
        assert spool.read(key(0)) is None
        assert spool.read(key(1)) is not None
        assert spool.pending == (key(1),)

    play(scene)
    assert "frame_lost" in [record.getMessage() for record in caplog.records]


def test_streams_that_wait_for_durability_share_syncs() -> None:
    async def scene() -> None:
        disk = SpoolDisk()
        spool = frame_spool(disk, durability=Durability.MACHINE)
        await spool.take(key(0), frame())
        before = disk.num_syncs
        for sequence in range(1, 9):
            await spool.take(key(sequence), frame())
        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(spool.durable())
        assert disk.num_syncs == before + 1

    play(scene)
