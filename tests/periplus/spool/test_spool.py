"""The log on a disk in memory that lies, and once on the real one."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from periplus.errors import Conflict, CorruptSpool, DiskFull, NotFound, SpoolFull, StorageError
from periplus.spool.files import FileLayer
from periplus.spool.format import MAX_SEGMENT_BYTES, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Durability, Position
from periplus.spool.reader import SpoolReader
from periplus.spool.spool import NOTE_EVERY, Spool
from tests.support.faulty_files import FaultyFiles, Killed, is_durable
from tests.support.small_disk import small_disk

FOLDER = Path("spool")
ROOT = Path(__file__).parents[3]


def opened(
    disk: FileLayer, *, durability: Durability = Durability.PROCESS, max_bytes: int = 1 << 20, segment_bytes: int = 1000
) -> Spool:
    return Spool.open(FOLDER, durability=durability, max_bytes=max_bytes, segment_bytes=segment_bytes, layer=disk)


def held(spool: Spool) -> list[bytes]:
    return [record.data for record in spool.records()]


def test_records_come_back_in_order_under_the_positions_that_append_gave(tmp_path: Path) -> None:
    for epoch in (1, 2):
        spool = Spool.open(tmp_path / "deep" / "spool", durability=Durability.MACHINE, max_bytes=1 << 20)
        positions = [spool.append(b"key", memoryview(bytes([i]) * i)) for i in range(5)]
        assert positions == [Position(epoch, sequence) for sequence in range(5)]
        assert [spool.read(position) for position in positions] == [b"key" + bytes([i]) * i for i in range(5)]
        assert not is_durable(spool, positions[-1])
        spool.sync()
        assert is_durable(spool, positions[-1])
        spool.close()
    reader = SpoolReader.open(tmp_path / "deep" / "spool")
    found = list(reader.records())
    assert [record.position for record in found] == [Position(epoch, i) for epoch in (1, 2) for i in range(5)]
    assert found[7].data == reader.read(Position(2, 2)) == b"key\2\2"


def test_iteration_starts_anywhere_and_skips_what_is_retired() -> None:
    spool = opened(FaultyFiles(), segment_bytes=100)
    positions = [spool.append(bytes([i]) * 30) for i in range(10)]
    spool.retire(positions[7])
    spool.retire(positions[7])
    spool.retire(Position(9, 9))
    found = [record.position for record in spool.records(positions[4])]
    assert found == [positions[i] for i in (4, 5, 6, 8, 9)]
    with pytest.raises(NotFound, match=r"1\.7"):
        spool.read(positions[7])
    assert spool.num_records == 9


def test_segments_that_hold_nothing_live_leave_the_disk_also_from_the_middle() -> None:
    disk = FaultyFiles()
    spool = opened(disk, segment_bytes=150)
    positions = [spool.append(bytes(60)) for _ in range(12)]
    num_files = len(disk.paths())
    for position in positions[4:8]:
        spool.retire(position)
    assert len(disk.paths()) == num_files - 2
    spool.trim(positions[3])
    assert [record.position for record in spool.records()] == positions[3:4] + positions[8:]
    disk.kill()
    again = opened(disk)
    assert [record.position for record in again.records()][-4:] == positions[8:]
    again.trim(Position(2, 0))
    assert again.append(b"x") == Position(2, 0)
    assert len(disk.paths()) == 1
    assert held(again) == [b"x"]


def test_after_a_kill_only_the_last_of_what_was_retired_comes_back_and_after_closing_none() -> None:
    disk = FaultyFiles()
    spool = opened(disk, segment_bytes=1 << 16, max_bytes=1 << 20)
    positions = [spool.append(b"x") for _ in range(3 * NOTE_EVERY)]
    kept = positions[5]
    for position in positions:
        if position != kept:
            spool.retire(position)
    disk.kill()
    again = opened(disk)
    assert [record.position for record in again.records()] == [kept, *positions[2 * NOTE_EVERY + 1 :]]
    again.trim(positions[-2])
    again.close()
    closed = opened(disk)
    assert [record.position for record in closed.records()] == positions[-2:]
    assert sum(path.suffix == ".retired" for path in disk.paths()) == 1
    closed.remove()
    assert disk.paths() == []


def test_a_full_disk_gets_no_file_for_each_note_that_it_refuses_and_one_note_when_it_has_room() -> None:
    disk = FaultyFiles()
    spool = opened(disk)
    positions = [spool.append(b"x") for _ in range(3 * NOTE_EVERY)]
    disk.room_bytes = sum(len(disk.content(path)) for path in disk.paths()) + 5
    for position in positions[1::2]:
        spool.retire(position)
    assert not [path for path in disk.paths() if path.suffix == ".retired"]
    disk.room_bytes = None
    spool.close()
    assert [record.position for record in opened(disk).records()] == positions[::2]
    assert sum(path.suffix == ".retired" for path in disk.paths()) == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_note_that_is_not_whole_is_none_and_costs_only_repeats(damage: str) -> None:
    disk = FaultyFiles()
    spool = opened(disk)
    positions = [spool.append(b"x") for _ in range(3)]
    spool.retire(positions[1])
    spool.close()
    (note,) = [path for path in disk.paths() if path.suffix == ".retired"]
    if damage == "flip":
        disk.content(note)[3] ^= 1
    elif damage == "cut":
        del disk.content(note)[-3:]
    else:
        disk.unlink(note)
    again = opened(disk)
    assert [record.position for record in again.records()] == positions
    again.retire(positions[0])
    again.close()
    assert [record.position for record in opened(disk).records()] == positions[1:]


def test_a_note_outlives_the_records_that_it_names_without_naming_others() -> None:
    """A power cut under `process` may take a segment and leave a note of it: its epoch is not used again."""
    disk = FaultyFiles()
    spool = opened(disk)
    spool.retire(spool.append(b"x"))
    spool.close()
    (segment,) = [path for path in disk.paths() if path.suffix == ".spool"]
    disk.unlink(segment)
    again = opened(disk)
    position = again.append(b"new")
    assert position.epoch == 2
    disk.kill()
    assert held(opened(disk)) == [b"new"]


def test_an_epoch_is_not_used_twice_though_everything_was_retired() -> None:
    disk = FaultyFiles()
    for epoch in range(1, 5):
        spool = opened(disk)
        position = spool.append(b"x")
        assert position.epoch == epoch
        spool.trim(Position(epoch + 1, 0))
        disk.kill()


def test_a_full_spool_refuses_keeps_what_it_has_and_goes_on_when_something_is_retired() -> None:
    disk = FaultyFiles()
    spool = opened(disk, max_bytes=1000, segment_bytes=200)
    positions = [spool.append(bytes(100)) for _ in range(5)]
    before = held(spool)
    for _ in range(3):
        with pytest.raises(SpoolFull, match="at most 1000"):
            spool.append(bytes(100))
    assert spool.num_bytes <= 1000
    assert held(spool) == before
    spool.trim(positions[2])
    positions.append(spool.append(bytes(100)))
    assert [record.position for record in spool.records()] == positions[2:]


def test_a_spool_that_is_full_of_what_is_retired_empties_itself() -> None:
    spool = opened(FaultyFiles(), max_bytes=1000, segment_bytes=1000)
    for _ in range(50):
        spool.retire(spool.append(bytes(300)))


def test_a_full_disk_refuses_and_heals() -> None:
    disk = FaultyFiles()
    spool = opened(disk, segment_bytes=100)
    first = spool.append(b"kept")
    for room in range(sum(len(disk.content(path)) for path in disk.paths()), 400):
        disk.room_bytes = room
        with pytest.raises(DiskFull, match="disk is full"):
            spool.append(bytes(1000))
    disk.room_bytes = None
    second = spool.append(b"new")
    disk.kill()
    assert [(record.position, record.data) for record in opened(disk).records()] == [(first, b"kept"), (second, b"new")]


def test_a_disk_that_is_full_at_the_start_still_gives_back_what_it_holds() -> None:
    disk = FaultyFiles()
    opened(disk).append(b"kept")
    disk.kill()
    disk.room_bytes = 0
    spool = opened(disk)
    assert held(spool) == [b"kept"]
    with pytest.raises(DiskFull):
        spool.append(b"new")
    disk.room_bytes = None
    spool.append(b"new")
    assert held(spool) == [b"kept", b"new"]


@pytest.mark.parametrize("num_bytes", range(1, 3 * RECORD_HEADER_BYTES + SEGMENT_HEADER_BYTES))
def test_a_tail_torn_at_any_byte_by_a_killed_process_is_cut(num_bytes: int) -> None:
    disk = FaultyFiles()
    spool = opened(disk, segment_bytes=100)
    kept = [spool.append(b"a" * 40), spool.append(b"b" * 40)]
    disk.bytes_until_killed = num_bytes
    with pytest.raises(Killed):
        spool.append(b"c" * 120)
    reader = SpoolReader.open(FOLDER, disk)
    sizes = {path: len(disk.content(path)) for path in disk.paths()}
    assert [record.position for record in reader.records()] == kept
    assert sizes == {path: len(disk.content(path)) for path in disk.paths()}, "reading changed something"
    again = opened(disk, segment_bytes=100)
    assert (again.torn is None) == (reader.torn is None)
    assert [record.position for record in again.records()] == kept
    kept.append(again.append(b"d"))
    assert [record.position for record in again.records()] == kept
    assert [record.position for record in opened(disk).records()] == kept


@pytest.mark.parametrize("part", ["header", "length", "promise", "data", "segment"])
@pytest.mark.parametrize("durability", Durability)
def test_damage_of_what_was_durable_is_named_and_never_cut(part: str, durability: Durability) -> None:
    disk = FaultyFiles()
    spool = opened(disk, durability=durability)
    for i in range(5):
        spool.append(bytes([i]) * 50)
        spool.sync()
    (path,) = disk.paths()
    record_bytes = RECORD_HEADER_BYTES + 50
    at = SEGMENT_HEADER_BYTES + 2 * record_bytes
    byte = {"header": at, "length": at + 4, "promise": at + 16, "data": at + 60, "segment": 9}[part]
    disk.content(path)[byte] ^= 1
    where = 0 if part == "segment" else at
    for read in (lambda: opened(disk, durability=durability), lambda: SpoolReader.open(FOLDER, disk)):
        with pytest.raises(CorruptSpool, match=rf"{path.name} is damaged at byte {where}:"):
            read()
    if part != "segment":
        with pytest.raises(CorruptSpool):
            list(spool.records())
    disk.content(path)[byte] ^= 1
    assert len(held(opened(disk, durability=durability))) == 5


def test_damage_of_the_last_record_of_a_spool_that_was_closed_is_found() -> None:
    disk = FaultyFiles()
    spool = opened(disk, durability=Durability.MACHINE)
    spool.append(b"last")
    spool.close()
    spool.close()
    (path,) = disk.paths()
    disk.content(path)[SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES] ^= 1
    with pytest.raises(CorruptSpool):
        opened(disk)


def test_a_segment_is_removed_only_when_its_return_could_do_no_harm() -> None:
    """A removal that is not synced may be undone by a power cut: what comes back must be whole."""
    disk = FaultyFiles()
    spool = opened(disk, durability=Durability.MACHINE, segment_bytes=150)
    first = [spool.append(bytes(60)), spool.append(bytes(60))]
    spool.sync()
    spool.append(b"next segment")
    for position in first:
        spool.retire(position)
    assert len(disk.paths()) == 2, "its seal is not on the disk yet"
    spool.sync()
    assert len(disk.paths()) == 1
    disk.cut_power(lambda most: int(most == 1))
    assert len(disk.paths()) == 2
    assert held(opened(disk)) == [bytes(60), bytes(60), b"next segment"]


def test_a_file_that_lost_its_end_is_found_when_later_files_are_there() -> None:
    disk = FaultyFiles()
    spool = opened(disk, segment_bytes=100)
    for _ in range(6):
        spool.append(bytes(60))
    del disk.content(disk.paths()[0])[-40:]
    with pytest.raises(CorruptSpool, match=disk.paths()[0].name):
        opened(disk)


def test_garbage_that_ends_a_file_is_cut_whatever_it_looks_like() -> None:
    disk = FaultyFiles()
    spool = opened(disk)
    spool.append(b"x" * 20)
    (path,) = disk.paths()
    disk.content(path).extend(b"PSR1" * 30)
    assert held(opened(disk)) == [b"x" * 20]


def test_after_a_failed_sync_nothing_is_promised_until_the_spool_is_opened_again() -> None:
    disk = FaultyFiles()
    spool = opened(disk, durability=Durability.MACHINE)
    spool.append(b"x")
    spool.sync()
    position = spool.append(b"y")
    disk.failing_syncs = True
    with pytest.raises(StorageError, match="could not be synced"):
        spool.sync()
    disk.failing_syncs = False
    for refused in (spool.sync, lambda: spool.append(b"z")):
        with pytest.raises(StorageError, match="open the spool again"):
            refused()
    assert not is_durable(spool, position)
    spool.close()
    assert held(opened(disk, durability=Durability.MACHINE)) == [b"x", b"y"]


def test_one_sync_serves_all_who_appended_before_it() -> None:
    disk = FaultyFiles()
    spool = opened(disk, durability=Durability.MACHINE)
    spool.append(b"")
    before = disk.num_syncs
    positions = [spool.append(bytes([i])) for i in range(9)]
    spool.sync()
    spool.sync()
    assert disk.num_syncs == before + 1
    assert all(is_durable(spool, position) for position in positions)


def test_a_real_file_that_cannot_grow_refuses_and_heals(tmp_path: Path) -> None:
    """The kernel writes what fits below the limit on a file's size and refuses the rest; making room would not mend it,
    so it is no full disk."""
    program = f"""
import resource
from pathlib import Path
from periplus.errors import DiskFull, StorageError
from periplus.spool.format import Durability
from periplus.spool.spool import Spool

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
spool = Spool.open(Path({str(tmp_path)!r}), durability=Durability.MACHINE, max_bytes=1 << 30)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
taken = 0
try:
    while True:
        spool.append(bytes([taken]) * 300_000)
        taken += 1
except StorageError as error:
    assert taken == 3, taken
    assert not isinstance(error, DiskFull), error
    spool.sync()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
spool.append(b"after")
spool.sync()
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    found = [record.data for record in SpoolReader.open(tmp_path).records()]
    assert found == [bytes([number]) * 300_000 for number in range(3)] + [b"after"]


@pytest.mark.parametrize("durability", list(Durability))
def test_a_real_disk_that_fills_up_again_and_again_keeps_what_was_taken_and_nothing_else(
    tmp_path: Path, durability: Durability
) -> None:
    with small_disk(tmp_path / "small", num_kib=512) as disk:
        folder = disk.root / "spool"
        taken: list[Position] = []
        spool = Spool.open(folder, durability=durability, max_bytes=1 << 30, segment_bytes=30_000)
        for leaving_bytes in range(0, 40_000, 3000):
            filler = disk.fill(leaving_bytes=leaving_bytes)
            while disk.free_bytes > 2 * 9000:
                taken.append(spool.append(bytes([len(taken)]) * 9000))
            with pytest.raises(DiskFull, match=str(folder)):
                spool.append(bytes(30_000))
            filler.unlink()
            taken.append(spool.append(bytes([len(taken)]) * 9000))
            spool.sync()
            spool.trim(taken[max(0, len(taken) - 3)])
        expected = [(position, bytes([number]) * 9000) for number, position in enumerate(taken)][-3:]
        assert [(record.position, record.data) for record in spool.records()] == expected
        spool.close()
        found = [(record.position, record.data) for record in SpoolReader.open(folder).records()]
        assert found[-3:] == expected


def test_two_owners_are_a_conflict_and_a_reader_is_no_owner(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, durability=Durability.PROCESS, max_bytes=1 << 20)
    spool.append(b"x")
    with pytest.raises(Conflict, match="locked"):
        Spool.open(tmp_path, durability=Durability.PROCESS, max_bytes=1 << 20)
    assert SpoolReader.open(tmp_path).num_records == 1
    spool.close()
    Spool.open(tmp_path, durability=Durability.PROCESS, max_bytes=1 << 20).remove()
    assert not tmp_path.exists()
    with pytest.raises(NotFound):
        SpoolReader.open(tmp_path)
    assert not tmp_path.exists()


def test_appends_of_several_threads_while_another_syncs_and_retires_keep_their_bytes(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, durability=Durability.MACHINE, max_bytes=1 << 30, segment_bytes=4096)
    kept: dict[Position, bytes] = {}

    def append(thread: int) -> None:
        for i in range(200):
            data = bytes([thread, i]) * (i + 1)
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
    found = {record.position: record.data for record in SpoolReader.open(tmp_path).records()}
    assert kept.items() <= found.items()


def test_the_bytes_on_disk_do_not_change() -> None:
    disk = FaultyFiles()
    spool = opened(disk)
    spool.append(b"a", b"b")
    spool.append(b"")
    spool.close()
    (path,) = disk.paths()
    assert path.name == "0000000001-00000000000000.spool"
    head, first, second, seal = (
        "5053504f4f4c310a01000000000000000000000000000000b562defc7c132b48",
        "5053523102000000000000000000000000000000000000002dc99999a6aaef3fa444ec5c6162",
        "505352310000000001000000000000000100000000000000af1349b9f5f9a1a661def3ed",
        "50535231ffffffff020000000000000002000000000000000000000000000000a02c7570",
    )
    assert disk.content(path).hex() == head + first + second + seal


def test_a_bad_argument_is_the_callers_fault() -> None:
    with pytest.raises(ValueError, match="positive"):
        opened(FaultyFiles(), max_bytes=0)


def test_a_segment_beyond_the_largest_that_is_written_is_refused_before_it_is_read(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, durability=Durability.PROCESS, max_bytes=1 << 20)
    spool.append(b"x")
    spool.close()
    (segment,) = tmp_path.glob("*.spool")
    os.truncate(segment, MAX_SEGMENT_BYTES + 1)
    with pytest.raises(CorruptSpool, match=f"{segment.name} has {MAX_SEGMENT_BYTES + 1} bytes, more than"):
        Spool.open(tmp_path, durability=Durability.PROCESS, max_bytes=1 << 20)
    assert segment.stat().st_size == MAX_SEGMENT_BYTES + 1, "nothing was cut"
    os.truncate(segment, 100_000)
    with pytest.raises(CorruptSpool, match="more than the 99999 of"):
        SpoolReader.open(tmp_path, max_segment_bytes=99_999)
    assert SpoolReader.open(tmp_path, max_segment_bytes=100_000).num_records == 1
