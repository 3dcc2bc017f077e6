"""The trainer's side of trackers: what it hands over, and what a tracker that fails, hangs or is slow costs it."""

import asyncio
import json
import logging
import sys
from pathlib import Path

import pytest

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from trainer.tracking import feeds
from trainer.tracking.feeds import tracking
from trainer.tracking.opening import TrackerOpening

OPENING = TrackerOpening(
    tracker="wandb", folder="/nowhere", name="tiny", job_id="job-1", first_row=0, resumed_version=None, configuration={}
)


def phase() -> Record:
    return Record(kind=RecordKind.PHASE, policy=Policy(0, 0), time_s=0.0, text="loading the model")


def step(version: int) -> Record:
    return Record(kind=RecordKind.STEP, policy=Policy(0, version), time_s=0.0, values={"loss": 1.0})


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have a shell script take the place of the tracker's process."""
    fake = folder / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))


def track(*records: Record) -> None:
    async def run() -> None:
        async with tracking([OPENING], {"PATH": "/usr/bin:/bin"}, asyncio.Event()) as trackers:
            for record in records:
                trackers.record(record)

    asyncio.run(run())


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    return [(record.message, record.__dict__["fields"]["tracker"]) for record in caplog.records]


def test_rows_come_in_order_after_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in(tmp_path, monkeypatch, f"cat > {tmp_path}/lines")
    track(phase(), step(1), step(2))
    opening, *rows = map(json.loads, (tmp_path / "lines").read_text().splitlines())
    assert opening["job_id"] == "job-1"
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert warnings(caplog) == []


def test_a_run_without_values_starts_no_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f"touch {tmp_path}/started")
    track(phase())
    assert not (tmp_path / "started").exists()


def test_trackers_finish_when_the_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f"cat > {tmp_path}/lines")

    async def run() -> None:
        async with tracking([OPENING], {"PATH": "/usr/bin:/bin"}, asyncio.Event()) as trackers:
            trackers.record(step(1))
            raise RuntimeError("the run failed")

    with pytest.raises(RuntimeError, match="the run failed"):
        asyncio.run(run())
    assert len((tmp_path / "lines").read_text().splitlines()) == 2


def test_a_tracker_that_fails_is_one_warning_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in(tmp_path, monkeypatch, "echo 'no key'; exit 1")

    async def run() -> None:
        async with tracking([OPENING], {"PATH": "/usr/bin:/bin"}, asyncio.Event()) as trackers:
            trackers.record(step(1))
            while not caplog.records:
                await asyncio.sleep(0.01)
                trackers.record(step(2))
            for version in range(feeds.QUEUE_ROWS + 1):
                trackers.record(step(version))

    asyncio.run(run())
    assert warnings(caplog) == [("tracker_failed", "wandb")]
    assert caplog.records[0].__dict__["fields"]["why"] == "no key\n"
    assert caplog.records[0].levelno == logging.WARNING


def test_a_process_that_cannot_be_started_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    track(step(1))
    assert warnings(caplog) == [("tracker_failed", "wandb")]


def test_rows_without_room_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeds, "QUEUE_ROWS", 4)
    stand_in(tmp_path, monkeypatch, f"cat > {tmp_path}/lines")
    track(*map(step, range(1, 8)))
    # Three had no room, and the last one gave its place to the end.
    assert warnings(caplog) == [("tracker_behind", "wandb"), ("tracker_lost_rows", "wandb")]
    assert caplog.records[-1].__dict__["fields"]["rows"] == 4
    assert len((tmp_path / "lines").read_text().splitlines()) == 1 + 3


def test_a_tracker_that_hangs_is_killed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeds, "FINISH_S", 0.3)
    stand_in(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    track(step(1))
    assert warnings(caplog) == [("tracker_slow_to_finish", "wandb")]
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path("/proc", pid).exists()
    assert caplog.records[-1].__dict__["fields"]["rows_at_risk"] == 1


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_tracker_that_starts_slowly_gets_all_rows_of_a_short_run_unless_the_trainer_must_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    monkeypatch.setattr(feeds, "TURN_S", 0.2)
    stand_in(tmp_path, monkeypatch, f"sleep 1; cat > {tmp_path}/lines")
    said: list[str] = []

    async def run() -> None:
        stop = asyncio.Event()
        async with tracking([OPENING], {"PATH": "/usr/bin:/bin"}, stop) as trackers:
            trackers.record(step(1))
            trackers.record(step(2))
            if is_stopped:
                stop.set()
            await trackers.finish(stop, said.append)

    asyncio.run(run())
    assert (tmp_path / "lines").exists() is not is_stopped
    if not is_stopped:
        assert len((tmp_path / "lines").read_text().splitlines()) == 1 + 2
    assert [each.partition(", for")[0] for each in said[:1]] == (
        [] if is_stopped else ["waiting for trackers to write the last records: wandb"]
    )
