import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from periplus.errors import ConfigError, Denied, DiskFull, NotFound, PeriplusError
from periplus.job.run_directory import RunDirectory, append_line, read_lines, write_atomically
from tests.support import sample_run
from tests.support.small_disk import small_disk

RECORDS = sample_run.records()[:5]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "runs" / "job-1")
    assert not directory.root.exists()
    directory.create()
    directory.create()
    return directory


def test_records_come_back_as_they_were_appended(run: RunDirectory) -> None:
    for record in RECORDS:
        run.append(record)
    assert [record.to_json() for record in run.records()] == [record.to_json() for record in RECORDS]


def test_a_torn_last_line_is_not_read_and_is_cut_before_the_next_append(run: RunDirectory) -> None:
    run.append(RECORDS[0])
    with run.metrics.open("a") as file:
        file.write(RECORDS[1].to_json()[:20])
    assert len(run.records()) == 1
    run.append(RECORDS[2])
    assert [record.to_json() for record in run.records()] == [RECORDS[0].to_json(), RECORDS[2].to_json()]


def test_a_file_that_is_one_torn_line_is_empty(tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.write_bytes(b"half")
    assert read_lines(torn) == []
    append_line(torn, "whole")
    assert torn.read_bytes() == b"whole\n"


def test_a_whole_line_that_is_no_record_is_named(run: RunDirectory) -> None:
    run.append(RECORDS[0])
    append_line(run.metrics, '{"kind": "step"}')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl line 2"):
        run.records()


def test_a_line_with_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one line"):
        append_line(tmp_path / "x", "a\nb")


def test_an_atomic_write_replaces_all_or_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(run.summary, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PeriplusError, match="disk is full"):
        write_atomically(run.summary, "new")
    assert run.summary.read_text() == "old"
    assert [path.name for path in run.root.iterdir() if path.is_file()] == ["summary.json"]


def test_refusals_of_the_operating_system_are_clear_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="absent"):
        RunDirectory(tmp_path / "absent").records()
    (tmp_path / "file").write_text("")
    with pytest.raises(PeriplusError, match="file"):
        RunDirectory(tmp_path / "file").create()

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(Denied, match="no permission"):
        RunDirectory(tmp_path / "other").create()


@pytest.mark.parametrize("leaving_bytes", range(0, 3 * 4096, 1000))
def test_lines_that_a_full_disk_refuses_leave_the_file_as_it_was(tmp_path: Path, leaving_bytes: int) -> None:
    """The records of one append are all there or none is, wherever in them the disk fills up."""
    with small_disk(tmp_path / "small", num_kib=256) as disk:
        run = RunDirectory(disk.root / "job-1")
        run.create()
        run.append(*RECORDS[:2])
        before = run.metrics.read_bytes()
        filler = disk.fill(leaving_bytes=leaving_bytes)
        many = RECORDS[2:5] * 120
        with pytest.raises(DiskFull, match=r"metrics\.jsonl"):
            run.append(*many)
        assert run.metrics.read_bytes() == before
        filler.unlink()
        run.append(*many)
        assert len(run.records()) == 2 + len(many)


def test_an_atomic_write_that_finds_no_room_keeps_the_old_content_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=64) as disk:
        path = disk.root / "report.html"
        write_atomically(path, "old")
        with pytest.raises(DiskFull, match="100000 bytes are needed"):
            write_atomically(path, "x" * 100_000)
        assert [each.name for each in disk.root.iterdir()] == ["report.html"]
        assert path.read_text() == "old"


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_modes_follow_the_umask(run: RunDirectory) -> None:
    write_atomically(run.summary, "{}")
    run.append(RECORDS[0])
    assert {path.stat().st_mode & 0o777 for path in (run.summary, run.metrics)} == {0o640}


def test_what_a_killed_process_left_half_written_goes_and_what_a_living_one_writes_stays(run: RunDirectory) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = run.root / f".summary.json.{int(dead.stdout)}.partial"
    being_written = run.root / f".report.html.{os.getpid()}.partial"
    left.write_text("half")
    being_written.write_text("half")
    run.create()
    assert not left.exists()
    assert being_written.exists()


def test_a_run_directory_that_was_removed_is_named_and_not_made_again(run: RunDirectory) -> None:
    for folder in (run.logs, run.checkpoints, run.root):
        folder.rmdir()
    with pytest.raises(NotFound, match=str(run.metrics)):
        run.append(RECORDS[0])
    assert not run.root.exists()
