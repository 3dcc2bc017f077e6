import errno
import os
from pathlib import Path

import pytest

from periplus.errors import ConfigError, Denied, NotFound, PeriplusError
from periplus.run_directory import RunDirectory, append_line, read_lines, write_atomically
from tests.support import sample_run

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
