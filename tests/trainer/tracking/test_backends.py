"""Real trackers in their own processes: what a run and its resumption leave in their files."""

import asyncio
import json
import os
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from trainer.tracking import feeds
from trainer.tracking.feeds import tracking
from trainer.tracking.opening import TrackerOpening, tracker_folder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def step(fork: int, version: int, loss: float) -> Record:
    values = {"step": float(version), "loss": loss}
    return Record(kind=RecordKind.STEP, policy=Policy(fork, version), time_s=float(version), values=values)


FIRST = (
    Record(kind=RecordKind.PHASE, policy=Policy(0, 0), time_s=0.0, text="supervised warm-up"),
    Record(
        kind=RecordKind.WARMUP,
        policy=Policy(0, 0),
        time_s=0.5,
        values={"step": 10.0, "steps_total": 40.0, "loss": 3.0},
    ),
    step(0, 1, 0.75),
    step(0, 2, 0.5),
    step(0, 3, 0.25),
)
"""The first fork: a warm-up and three steps."""

AGAIN = (step(1, 2, 0.625), step(1, 3, 0.125))
"""The second fork, which goes on from version 1 and takes two of the steps again."""


def track(tracker: str, folder: Path, records: Sequence[Record], resumed: int | None = None) -> None:
    opening = TrackerOpening(
        tracker=tracker,
        folder=tracker_folder(folder, tracker),
        name="tiny",
        job_id="job-1",
        first_row=0 if resumed is None else len(FIRST),
        resumed_version=resumed,
        configuration={"optimizer.lr": 0.01, "environment": "null", "train.filter_groups": False},
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(feeds.__file__).parents[2])}
    environment.pop("WANDB_MODE", None)

    async def run() -> None:
        async with tracking([opening], environment, asyncio.Event()) as trackers:
            for record in records:
                trackers.record(record)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FINISH_S", 120.0)  # a busy machine imports torch slowly


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_hides_the_steps_that_a_resumed_run_repeats(tmp_path: Path) -> None:
    run = tmp_path / "tensorboard" / "tiny"
    track("tensorboard", tmp_path, FIRST)
    found = scalars(run)
    assert found["loss"] == [(1, 0.75), (2, 0.5), (3, 0.25)]
    assert found["warmup/loss"] == [(-30, 3.0)]
    assert any("optimizer.lr: 0.01" in file.read_text() for file in run.glob("*/hparams.yml"))
    track("tensorboard", tmp_path, AGAIN, resumed=1)
    found = scalars(run)
    assert found["loss"] == [(1, 0.75), (2, 0.625), (3, 0.125)]
    assert found["warmup/loss"] == [(-30, 3.0)]


def trackio_rows(folder: Path) -> tuple[list[tuple[str, int, dict[str, Any]]], dict[str, Any]]:
    connection = sqlite3.connect(folder / "trackio" / "tiny.db")
    try:
        rows = connection.execute("select run_name, step, metrics from metrics order by id").fetchall()
        [config] = connection.execute("select config from configs where run_name = 'job-1'").fetchone()
    finally:
        connection.close()
    return [(name, number, json.loads(metrics)) for name, number, metrics in rows], json.loads(config)


def test_trackio_goes_on_with_the_run_in_its_sqlite_file(tmp_path: Path) -> None:
    track("trackio", tmp_path, FIRST)
    track("trackio", tmp_path, AGAIN, resumed=1)
    rows, config = trackio_rows(tmp_path)
    assert {name for name, _, _ in rows} == {"job-1"}
    losses = [(number, values["fork"], values["loss"]) for _, number, values in rows if "loss" in values]
    assert losses == [(1, 0, 0.75), (2, 0, 0.5), (3, 0, 0.25), (2, 1, 0.625), (3, 1, 0.125)]
    assert [(number, values["warmup/loss"]) for _, number, values in rows if "warmup/loss" in values] == [(-30, 3.0)]
    assert (config["optimizer.lr"], config["environment"]) == (0.01, "null")


def wandb_records(path: Path) -> list[Any]:
    """Return the records of a run file: LevelDB's log format, in blocks of 32 KiB after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, position, parts, records = path.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while position + 7 <= len(data):
        # A rest of a block that is shorter than a record's header is filled up.
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        # 1 is a whole record, 4 the last part of one.
        if kind in (1, 4):
            records.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return records


def history(path: Path) -> list[dict[str, Any]]:
    rows = [record.history for record in wandb_records(path) if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]


def test_wandb_offline_goes_on_with_the_run_and_counts_rows_on(tmp_path: Path) -> None:
    track("wandb", tmp_path, FIRST)
    track("wandb", tmp_path, AGAIN, resumed=1)
    files = sorted((tmp_path / "wandb").glob("wandb/offline-run-*-job-1/run-job-1.wandb"))
    first, second = map(history, files)
    assert [(row["step"], row["loss"]) for row in first if "loss" in row] == [(1, 0.75), (2, 0.5), (3, 0.25)]
    assert [(row["step"], row["warmup/loss"]) for row in first if "warmup/loss" in row] == [(-30, 3.0)]
    assert [(row["step"], row["fork"], row["loss"]) for row in second] == [(2, 1, 0.625), (3, 1, 0.125)]
    assert [row["_step"] for row in (*first, *second)] == list(range(len(FIRST) + len(AGAIN)))
    records = wandb_records(files[0])
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert {(run.run_id, run.display_name, run.project) for run in runs} == {("job-1", "job-1", "tiny")}
    updates = [record.config.update for record in records if record.WhichOneof("record_type") == "config"]
    assert {item.key: item.value_json for update in updates for item in update}["optimizer.lr"] == "0.01"


def test_a_tracker_that_cannot_write_its_files_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    track("tensorboard", tmp_path, FIRST)
    [record] = caplog.records
    assert record.message == "tracker_failed"
    assert "File exists" in record.__dict__["fields"]["why"]
