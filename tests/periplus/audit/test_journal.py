import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.audit import records
from periplus.audit.journal import AuditJournal, ChainEnd, read_lines
from periplus.audit.records import START_OF_CHAIN, EndEntry, LostEntry, chain_hash, from_line
from periplus.errors import ConfigError, Conflict, DiskFull, NotFound, PeriplusError, StorageError
from tests.support.cases.examples import examples
from tests.support.small_disk import small_disk

RECORD = EndEntry(how="stopped")


def lost(number: int, worker: str = "w") -> LostEntry:
    return LostEntry(lease_id=number, group=0, sample=0, worker_id=worker, why="expired")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_each_line_names_the_one_before_it(path: Path) -> None:
    with AuditJournal.open(path) as journal:
        assert [journal.append(lost(i), float(i)) for i in range(3)] == [0, 1, 2]
        end = journal.position
    lines = [line.rstrip(b"\n") for line in read_lines(path)]
    prevs = [from_line(line, "here").prev for line in lines]
    assert prevs == [START_OF_CHAIN, chain_hash(lines[0]), chain_hash(lines[1])]
    assert end == ChainEnd(3, chain_hash(lines[2]))


def test_a_journal_is_continued_where_it_ends(path: Path) -> None:
    with AuditJournal.open(path) as journal:
        journal.append(lost(0), 0.0)
        end = journal.position
    with AuditJournal.open(path) as journal:
        assert (journal.position, journal.cut_bytes) == (end, 0)
        journal.append(RECORD, 1.0)
    lines = list(read_lines(path))
    assert from_line(lines[1].rstrip(b"\n"), "here").prev == end.prev


@pytest.mark.parametrize("whole_lines", [0, 2])
def test_a_torn_last_line_is_cut_and_told(path: Path, whole_lines: int) -> None:
    with AuditJournal.open(path) as journal:
        for i in range(whole_lines):
            journal.append(lost(i), 0.0)
        end = journal.position
    with path.open("ab") as file:
        file.write(b'{"n":2,"pre')
    with AuditJournal.open(path) as journal:
        assert (journal.position, journal.cut_bytes) == (end, 11)
    assert len(list(read_lines(path))) == whole_lines


def test_a_long_last_line_is_found_whole(path: Path) -> None:
    many = tuple(records.DroppedSample(sample, bytes(16), 1) for sample in range(8000))
    with AuditJournal.open(path) as journal:
        journal.append(lost(0), 0.0)
        journal.append(records.DropEntry(group=1, why="failed", samples=many), 0.0)
        end = journal.position
    with AuditJournal.open(path) as journal:
        assert journal.position == end


def test_a_damaged_last_line_is_not_continued(path: Path) -> None:
    path.write_bytes(b"no record\n")
    with pytest.raises(ConfigError, match="cut it off"):
        AuditJournal.open(path)
    assert path.read_bytes() == b"no record\n"


def test_a_file_has_one_writer_at_a_time(path: Path) -> None:
    with AuditJournal.open(path), pytest.raises(Conflict, match="another process"):
        AuditJournal.open(path)
    AuditJournal.open(path).close()


def test_lines_reach_the_file_with_a_flush_and_not_before(path: Path) -> None:
    with AuditJournal.open(path) as journal:
        journal.append(lost(0), 0.0)
        assert path.read_bytes() == b""
        journal.flush()
        assert len(list(read_lines(path))) == 1
        journal.append(lost(1, "w" * (1 << 20)), 0.0)
        assert len(list(read_lines(path))) == 1, "who appends decides when: an append cannot fail"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="absent"):
        AuditJournal.open(tmp_path / "absent" / "audit.jsonl")


@given(sessions=st.lists(st.integers(0, 4), max_size=5), torn=st.binary(max_size=5))
@settings(max_examples=examples(50), deadline=None)
def test_any_number_of_restarts_leave_one_whole_chain(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[int], torn: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "audit.jsonl"
    for num_records in sessions:
        with AuditJournal.open(path) as journal:
            for i in range(num_records):
                journal.append(lost(i), 0.0)
        with path.open("ab") as file:
            file.write(torn.replace(b"\n", b""))
    AuditJournal.open(path).close()
    chain = START_OF_CHAIN
    for n, raw in enumerate(read_lines(path)):
        line = from_line(raw.rstrip(b"\n"), "here")
        assert (line.n, line.prev) == (n, chain)
        chain = chain_hash(raw.rstrip(b"\n"))


def test_lines_that_a_full_disk_refuses_are_written_whole_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditJournal.open(path) as journal:
        journal.append(EndEntry(how="stopped"), 1.0)
        journal.flush()
        write = os.write
        calls = iter(["some", "none"])

        def full(descriptor: int, data: memoryview) -> int:
            if next(calls, "none") == "some":
                return write(descriptor, data[:7])
            raise OSError(errno.ENOSPC, "No space left on device")

        journal.append(EndEntry(how="stopped"), 2.0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(PeriplusError):
                journal.flush()
        assert len(path.read_bytes().splitlines()) == 1
    lines = path.read_bytes().splitlines()
    assert [from_line(line, "here").n for line in lines] == [0, 1]


@pytest.mark.parametrize("leaving_bytes", [0, 4096, 8192, 12288])
def test_a_real_disk_that_fills_up_and_gets_room_leaves_one_whole_chain(tmp_path: Path, leaving_bytes: int) -> None:
    with small_disk(tmp_path / "small", num_kib=256) as disk:
        path = disk.root / "audit.jsonl"
        with AuditJournal.open(path) as journal:
            journal.append(lost(0), 0.0)
            journal.flush()
            before = path.read_bytes()
            filler = disk.fill(leaving_bytes=leaving_bytes)
            for number in range(1, 200):
                journal.append(lost(number), 0.0)
            for _ in range(3):
                with pytest.raises(DiskFull, match=str(path)):
                    journal.flush()
                assert path.read_bytes() == before
            filler.unlink()
            journal.flush()
        assert [from_line(line.rstrip(b"\n"), "here").n for line in read_lines(path)] == list(range(200))


def test_a_journal_that_was_removed_is_an_error_and_not_a_silent_loss(path: Path) -> None:
    journal = AuditJournal.open(path)
    path.unlink()
    journal.append(RECORD, 0.0)
    for act in (journal.flush, journal.sync_flushed, journal.close):
        with pytest.raises(StorageError, match="was removed"):
            act()


def test_a_journal_that_cannot_be_closed_whole_lets_the_next_writer_in(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=64) as disk:
        journal = AuditJournal.open(disk.root / "audit.jsonl")
        filler = disk.fill()
        journal.append(RECORD, 0.0)
        with pytest.raises(DiskFull):
            journal.close()
        filler.unlink()
        with AuditJournal.open(disk.root / "audit.jsonl") as again:
            assert again.position.n == 0
