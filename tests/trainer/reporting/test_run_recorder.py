"""What a run's records hold, and what a full disk costs them."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import DiskFull
from periplus.job.run_directory import RunDirectory
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from tests.support.ledger.drivers import FRAME_BYTES, Frames, driver_of, join, sampled
from tests.support.tiny_job import tiny_job
from trainer.disk_wait import DiskWait
from trainer.intake.ledger_driver import LedgerDriver
from trainer.learning.gate import inspect
from trainer.reporting.progress import Progress
from trainer.reporting.run_recorder import RunRecorder
from trainer.reporting.silence import SilenceWatch
from trainer.tracking.feeds import Trackers


@dataclass
class Link:
    """Keeps the records for watchers, and counts bytes between regions as told."""

    wan_bytes_counted: int | None = None
    records: list[Record] = field(default_factory=list)

    def record(self, record: Record) -> None:
        self.records.append(record)

    async def wan_bytes(self) -> int | None:
        return self.wan_bytes_counted


@dataclass
class Scene:
    recorder: RunRecorder
    run: RunDirectory
    link: Link
    driver: LedgerDriver

    def of_kind(self, kind: RecordKind) -> list[Record]:
        return [record for record in self.run.records() if record.kind is kind]


def scene_in(folder: Path, progress: Progress | None = None) -> Scene:
    """A recorder at the time 30 of a process that started at 10."""
    run, link, driver = RunDirectory(folder / "run"), Link(), driver_of()
    run.create()
    disk = DiskWait(asyncio.Event(), lambda phase: None)
    gateway: Any = link
    sums = progress or Progress()
    job = tiny_job(folder)
    recorder = RunRecorder(
        run,
        gateway,
        driver,
        disk,
        Trackers(),
        sums,
        lambda: 30.0,
        10.0,
        num_steps=job.steps,
        bound=job.staleness,
        problems={"problems_train": 7.0},
        silence=SilenceWatch(job),
    )
    return Scene(recorder, run, link, driver)


def test_a_record_goes_to_watchers_and_to_the_run_directory_with_its_time(tmp_path: Path) -> None:
    scene = scene_in(tmp_path)
    scene.recorder.phase("training")
    [record] = scene.run.records()
    assert (record.text, record.time_s, record.policy) == ("training", 20.0, Policy(0, 0))
    assert scene.link.records == [record]


def test_a_record_without_room_is_kept_and_written_in_order_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_in(tmp_path)
    append = scene.run.append
    is_full = True

    def append_or_refuse(*records: Record) -> None:
        if is_full:
            raise DiskFull("no room", path=tmp_path)
        append(*records)

    monkeypatch.setattr(RunDirectory, "append", lambda run, *records: append_or_refuse(*records))
    scene.recorder.phase("one")
    scene.recorder.phase("two")
    assert [record.text for record in scene.link.records] == ["one", "two"], "watchers need no disk"
    is_full = False
    asyncio.run(scene.recorder.write_pending())
    assert [record.text for record in scene.run.records()] == ["one", "two"]


def test_a_steps_record_has_the_counts_since_the_last_one_and_its_own_mismatches(tmp_path: Path) -> None:
    scene, frames = scene_in(tmp_path), Frames()
    lease, _ = join(scene.driver, "a", 2)
    trajectory = sampled(lease)
    for _ in range(2):
        scene.driver.on_frame(frames.commit(trajectory), 1.0)
    scene.recorder.count_mismatch()
    found = inspect([trajectory], Policy(0, 0), 0)
    for version in (1, 2):
        scene.recorder.step(Policy(0, version), None, [trajectory], found, num_dropped=1, values={"step_s": 2.0})
    first, second = scene.of_kind(RecordKind.STEP)
    assert (first.values["duplicate_samples"], second.values["duplicate_samples"]) == (1, 0)
    assert (first.values["weight_digest_mismatches"], second.values["weight_digest_mismatches"]) == (1, 0)
    assert first.values["tokens_per_s"] == len(trajectory.completion_ids) / 2.0
    assert first.staleness_tokens == {0: len(trajectory.completion_ids)}
    assert scene.recorder.steps == 2
    assert first.values["reward_mean"] == trajectory.reward
    unjudged = [replace(trajectory, reward=None)]
    scene.recorder.step(Policy(0, 3), None, unjudged, found, num_dropped=0, values={"step_s": 2.0})
    record = scene.of_kind(RecordKind.STEP)[-1]
    assert (record.values["unjudged_samples"], "reward_mean" in record.values) == (1, False)


def test_bytes_of_other_regions_are_in_the_sums_of_a_checkpoint_once(tmp_path: Path) -> None:
    scene, frames = scene_in(tmp_path, Progress(remote_trajectory_bytes=5.0, previous_wall_s=100.0)), Frames()
    lease, _ = join(scene.driver, "a", 2, "far")
    scene.driver.on_frame(frames.commit(sampled(lease), region="far"), 1.0)
    sums = [scene.recorder.collect_progress() for _ in range(2)]
    assert [each.remote_trajectory_bytes for each in sums] == [5.0 + FRAME_BYTES] * 2
    assert sums[0].previous_wall_s == 120.0


@pytest.mark.parametrize(("first_count", "in_all"), [(130, 130.0), (20, 120.0)])
def test_a_gateway_that_restarted_since_the_checkpoint_counts_on_from_its_sum(
    tmp_path: Path, first_count: int, in_all: float
) -> None:
    scene = scene_in(tmp_path, Progress(wan_bytes=100.0))
    scene.link.wan_bytes_counted = first_count
    asyncio.run(scene.recorder.count_wan())
    assert scene.recorder.collect_progress().wan_bytes == in_all
    scene.recorder.summary({"accuracy": 0.5}, num_remote_regions=1, digest=b"\1")
    [summary] = scene.of_kind(RecordKind.SUMMARY)
    assert (summary.values["wan_bytes"], summary.values["accuracy_after"], summary.text) == (in_all, 0.5, "01")
