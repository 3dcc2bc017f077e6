"""The log within one process: what is kept under which position, what is refused, and what is found damaged."""

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from periplus.errors import CorruptSpool, DiskFull, NotFound, SpoolFull, StorageError
from periplus.spool import spool as spool_module
from periplus.spool.database import DATABASE, LOG
from periplus.spool.format import Durability, Position
from periplus.spool.reader import SpoolReader
from periplus.spool.spool import DELETED_AT_ONCE, OVERHEAD_BYTES, PAGE_BYTES, Spool
from tests.support.small_disk import small_disk


def opened(folder: Path, *, durability: Durability = Durability.PROCESS, max_bytes: int = 1 << 20) -> Spool:
    return Spool.open(folder, durability=durability, max_bytes=max_bytes)


def held(spool: Spool | SpoolReader) -> list[bytes]:
    return [record.data for record in spool.records()]


def change(folder: Path, statement: str) -> None:
    """Change the database of a closed spool with SQL."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as connection:
        connection.execute(statement)


@pytest.mark.parametrize("durability", list(Durability))
def test_records_come_back_in_order_under_the_positions_that_append_gave(
    tmp_path: Path, durability: Durability
) -> None:
    folder = tmp_path / "deep" / "spool"
    for epoch in (1, 2):
        spool = opened(folder, durability=durability)
        positions = [spool.append(b"key", memoryview(bytes([i]) * i)) for i in range(5)]
        assert positions == [Position(epoch, sequence) for sequence in range(5)]
        assert [spool.read(position) for position in positions] == [b"key" + bytes([i]) * i for i in range(5)]
        spool.sync()
        spool.close()
        spool.close()
    reader = SpoolReader.open(folder)
    found = list(reader.records())
    assert [record.position for record in found] == [Position(epoch, i) for epoch in (1, 2) for i in range(5)]
    assert found[7].data == reader.read(Position(2, 2)) == b"key\2\2"
    for absent in (Position(2, 5), Position(3, 0), Position(1 << 40, 1 << 60)):
        with pytest.raises(NotFound):
            reader.read(absent)


def test_iteration_starts_anywhere_and_skips_what_is_retired(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    positions = [spool.append(bytes([i]) * 30) for i in range(10)]
    spool.retire(positions[7])
    spool.retire(positions[7])
    spool.retire(Position(9, 9))
    found = [record.position for record in spool.records(positions[4])]
    assert found == [positions[i] for i in (4, 5, 6, 8, 9)]
    with pytest.raises(NotFound, match=r"1\.7"):
        spool.read(positions[7])
    assert spool.num_records == 9
    spool.trim(positions[3])
    assert [record.position for record in spool.records()] == [positions[i] for i in (3, 4, 5, 6, 8, 9)]
    reader = SpoolReader.open(tmp_path)
    assert reader.oldest == positions[3]
    spool.trim(Position(2, 0))
    assert (spool.num_records, spool.num_bytes, held(spool)) == (0, 0, [])
    assert SpoolReader.open(tmp_path).oldest is None


def test_an_epoch_is_used_by_one_opening_that_writes_and_by_none_after_everything_was_retired(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        opened(tmp_path).close()
        spool = opened(tmp_path)
        assert spool.append(b"x") == Position(epoch, 0)
        spool.trim(Position(epoch + 1, 0))
        spool.close()


def test_a_full_spool_refuses_keeps_what_it_has_and_goes_on_when_something_is_retired(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=5 * (100 + OVERHEAD_BYTES))
    positions = [spool.append(bytes(100)) for _ in range(5)]
    for _ in range(3):
        with pytest.raises(SpoolFull, match="at most"):
            spool.append(bytes(100))
    assert len(held(spool)) == 5
    for position in positions[:2]:
        spool.retire(position)
        positions.append(spool.append(bytes(100)))
    assert [record.position for record in spool.records()] == positions[2:]


def test_the_room_of_retired_records_is_used_again(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for _ in range(10 * DELETED_AT_ONCE):
        spool.retire(spool.append(bytes(10_000)))
    assert spool.num_records == 0
    spool.close()
    assert (tmp_path / DATABASE).stat().st_size < 3 * DELETED_AT_ONCE * 10_000


@pytest.mark.parametrize("durability", list(Durability))
def test_the_log_is_copied_and_begins_anew(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "LOG_BYTES", 1 << 18)
    spool = opened(tmp_path, durability=durability, max_bytes=1 << 30)
    for _ in range(100):
        spool.append(bytes(50_000))
        spool.sync()
    assert (tmp_path / LOG).stat().st_size < 1 << 19
    assert len(held(SpoolReader.open(tmp_path))) == 100
    spool.close()


def test_damage_of_a_record_is_found_where_it_is_read_and_others_are_read(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    positions = [spool.append(bytes([65 + i]) * 9000) for i in range(3)]
    spool.close()
    content = bytearray((tmp_path / DATABASE).read_bytes())
    content[content.index(b"BBBB")] ^= 1
    (tmp_path / DATABASE).write_bytes(content)
    for read in (SpoolReader.open(tmp_path), opened(tmp_path)):
        with pytest.raises(CorruptSpool, match=r"1\.1; restore"):
            read.read(positions[1])
        with pytest.raises(CorruptSpool):
            list(read.records())
        assert read.read(positions[2]) == b"C" * 9000


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET key = key + 5 WHERE key % 3 = 2",
        "UPDATE records SET data = 'x'",
        "UPDATE records SET data = zeroblob(100000)",
        "CREATE TABLE another (key INTEGER)",
        "ALTER TABLE records RENAME TO others",
    ],
)
def test_what_somebody_changed_with_sql_is_damage(tmp_path: Path, statement: str) -> None:
    spool = opened(tmp_path)
    for i in range(3):
        spool.append(bytes([i]))
    spool.close()
    change(tmp_path, statement)
    with pytest.raises(CorruptSpool):
        list(SpoolReader.open(tmp_path, max_record_bytes=5000).records())
    with pytest.raises(CorruptSpool):
        list(opened(tmp_path).records())


@pytest.mark.parametrize("damage", ["head", "cut", "page", "text"])
def test_a_database_that_is_none_any_more_is_damage_and_the_lock_is_given_back(tmp_path: Path, damage: str) -> None:
    spool = opened(tmp_path)
    for i in range(40):
        spool.append(bytes([i]) * 3000)
    spool.close()
    path = tmp_path / DATABASE
    whole = path.read_bytes()
    path.write_bytes(
        {
            "head": b"\0" * 100 + whole[100:],
            "cut": whole[:20_000],
            "page": whole[:PAGE_BYTES] + b"\xff" * PAGE_BYTES + whole[2 * PAGE_BYTES :],
            "text": b"not a database " * 500,
        }[damage]
    )
    for _ in range(2):
        with pytest.raises(CorruptSpool, match=DATABASE):
            list(opened(tmp_path).records())
    with pytest.raises(CorruptSpool, match=DATABASE):
        list(SpoolReader.open(tmp_path).records())
    path.write_bytes(whole)
    assert len(held(opened(tmp_path))) == 40


def test_a_copy_has_the_records_from_a_position_on_and_goes_on_behind_them(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    positions = [spool.append(bytes([i]) * 5000) for i in range(10)]
    spool.retire(positions[7])
    spool.copy(tmp_path / "copy", positions[6])
    after = spool.append(b"later")
    spool.close()
    copy = opened(tmp_path / "copy", durability=Durability.MACHINE)
    found = list(copy.records())
    assert [record.position for record in found if record.position != positions[7]] == [positions[6], *positions[8:]]
    assert found[-1].data == bytes([9]) * 5000
    assert copy.append(b"more") > after
    copy.close()
    again = opened(tmp_path / "spool")
    with pytest.raises(StorageError):
        again.copy(tmp_path / "copy", positions[0])
    again.close()


def test_a_reader_refuses_what_is_no_file_and_finds_no_spool_where_none_is(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFound):
            SpoolReader.open(folder)
    os.mkfifo(tmp_path / LOG)
    with pytest.raises(StorageError, match="regular file"):
        SpoolReader.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOG]


def test_a_closed_spool_is_read_without_a_trace(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(b"x")
    spool.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert held(SpoolReader.open(tmp_path)) == [b"x"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_after_a_failed_sync_nothing_is_promised_until_the_spool_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> None:
        raise OSError("Input/output error")

    spool = opened(tmp_path, durability=Durability.MACHINE)
    spool.append(b"x")
    spool.sync()
    spool.append(b"y")
    monkeypatch.setattr(spool, "_sync_log", failing)
    with pytest.raises(StorageError, match="could not be synced"):
        spool.sync()
    monkeypatch.undo()
    for refused in (spool.sync, lambda: spool.append(b"z"), lambda: spool.read(Position(1, 0))):
        with pytest.raises(StorageError, match="open the spool again"):
            refused()
    spool.close()
    assert held(opened(tmp_path, durability=Durability.MACHINE)) == [b"x", b"y"]


def test_one_sync_serves_all_who_appended_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path, durability=Durability.MACHINE)
    syncs: list[None] = []
    monkeypatch.setattr(spool, "_sync_log", lambda: syncs.append(None))
    for i in range(9):
        spool.append(bytes([i]))
    spool.sync()
    spool.sync()
    assert len(syncs) == 1


def test_appends_of_several_threads_while_another_syncs_and_retires_keep_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "LOG_BYTES", 1 << 16)
    spool = opened(tmp_path, durability=Durability.MACHINE, max_bytes=1 << 30)
    kept: dict[Position, bytes] = {}

    def append(thread: int) -> None:
        for i in range(50):
            data = bytes([thread, i]) * (10 * i + 1)
            position = spool.append(data)
            if i % 3:
                spool.retire(position)
            else:
                kept[position] = data
            if i % 10 == 0:
                spool.sync()

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.position: record.data for record in spool.records()} == kept
    spool.close()
    assert {record.position: record.data for record in SpoolReader.open(tmp_path).records()} == kept


@pytest.mark.parametrize("durability", list(Durability))
def test_a_real_disk_that_fills_up_again_and_again_keeps_what_was_taken_and_nothing_else(
    tmp_path: Path, durability: Durability
) -> None:
    with small_disk(tmp_path / "small", num_kib=1024) as disk:
        folder = disk.root / "spool"
        spool = opened(folder, durability=durability, max_bytes=1 << 30)
        taken: list[Position] = []
        for _ in range(3):
            filler = disk.fill(leaving_bytes=40_000)
            with pytest.raises(DiskFull, match=str(folder)):  # noqa: PT012  # the loop is what ends
                while len(taken) < 200:
                    taken.append(spool.append(bytes([len(taken)]) * 9000))
            spool.trim(taken[max(0, len(taken) - 3)])  # which needs room too, and is done later
            filler.unlink()
            taken.append(spool.append(bytes([len(taken)]) * 9000))
            spool.sync()
            expected = [(position, bytes([number]) * 9000) for number, position in enumerate(taken)][-4:]
            assert [(record.position, record.data) for record in spool.records()] == expected
        spool.close()
        assert [(record.position, record.data) for record in SpoolReader.open(folder).records()] == expected


def test_a_bad_argument_is_the_callers_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="positive"):
        opened(tmp_path, max_bytes=0)
    monkeypatch.setattr(spool_module, "MAX_RECORD_BYTES", 10)
    with pytest.raises(ValueError, match="at most 10"):
        opened(tmp_path).append(bytes(11))
