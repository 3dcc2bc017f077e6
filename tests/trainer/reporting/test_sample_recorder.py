"""The recorder of samples: what it writes, what it removes, and that it never fails a run."""

import asyncio
from pathlib import Path

import pytest

from periplus.errors import DiskFull, StorageError
from periplus.job.samples.index import read_index
from periplus.job.samples.step_blocks import StepBlock
from periplus.spool.format import Position
from periplus.values.policy import Policy
from periplus.values.trajectory import Trajectory
from tests.support.trainer.kept_samples import REGIONS, SampleWriter, trajectory_of
from trainer.intake.committed import KeptTrajectory
from trainer.learning.sample_figures import SampleFigures
from trainer.reporting import sample_recorder
from trainer.reporting.sample_recorder import sample_block


def block_of(trajectory: Trajectory, policy: Policy) -> StepBlock:
    kept = KeptTrajectory(trajectory, b"", Position(3, 4), 5)
    figures = SampleFigures(trajectory.group, trajectory.sample, 0.25, -1.0, 0.5, 2.0)
    return sample_block(policy, [kept], [figures], REGIONS)


def test_a_row_says_where_its_trajectory_is_and_what_the_trainer_found() -> None:
    trajectory = trajectory_of(7, 8, completion=(("ab", 2), ("c", 4)), worker="w-us", reward=1.0)
    block = block_of(trajectory, Policy(1, 6))
    [row] = block.rows
    assert (row["group"], row["sample"], row["epoch"], row["sequence"], row["index"]) == (7, 8, 3, 4, 5)
    assert (row["tokens"], row["staleness"]) == (3, 5 - 2)
    # The reward that was trained on, which is not that of the trajectory if rewards are shuffled.
    assert (row["reward"], row["advantage"]) == (0.25, -1.0)
    assert (row["difference_mean"], row["difference_max"]) == (0.5, 2.0)
    assert block.region_of(0) == "us-east"


def test_an_unknown_region_is_said_to_be_so() -> None:
    block = block_of(trajectory_of(7, 8, worker="gone"), Policy(0, 1))
    assert (block.regions, block.region_of(0)) == ((), "")


def test_files_whose_frames_are_gone_go_too_and_the_one_that_is_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_recorder, "FILE_BYTES", 1)  # each block in a file of its own
    writer = SampleWriter(tmp_path / "run")
    for version in (1, 2, 3):
        writer.step(Policy(0, version), [trajectory_of(version, 0)])
    writer.recorder.trim(Position(1, 1))
    assert [block.policy.version for block in read_index(writer.run).blocks] == [2, 3]
    writer.recorder.trim(Position(9, 9))
    assert [block.policy.version for block in read_index(writer.run).blocks] == [3]


def test_a_new_recorder_does_not_write_behind_a_torn_block(tmp_path: Path) -> None:
    first = SampleWriter(tmp_path / "run")
    first.step(Policy(0, 1), [trajectory_of(1, 0)])
    first.store.close()
    [file] = first.run.samples.glob("*.steps")
    file.write_bytes(file.read_bytes() + b"half a block")
    second = SampleWriter(tmp_path / "run")
    second.step(Policy(1, 2), [trajectory_of(2, 0)])
    assert [block.policy for block in read_index(second.run).blocks] == [Policy(0, 1), Policy(1, 2)]


def refusing(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def append(descriptor: int, data: bytes) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(sample_recorder, "append_whole", append)


def test_a_full_disk_keeps_blocks_in_order_until_there_is_room(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patched:
        refusing(patched, DiskFull("no room", path=tmp_path))
        for version in (1, 2):
            writer.step(Policy(0, version), [trajectory_of(version, 0)])
    assert read_index(writer.run).blocks == ()
    asyncio.run(writer.recorder.write_pending())
    assert [block.policy.version for block in read_index(writer.run).blocks] == [1, 2]


def test_any_other_failure_is_said_once_and_ends_the_recording_but_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SampleWriter(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patched:
        refusing(patched, StorageError("broken"))
        writer.step(Policy(0, 1), [trajectory_of(1, 0)])
    writer.step(Policy(0, 2), [trajectory_of(2, 0)])
    asyncio.run(writer.recorder.write_pending())
    assert [record.message for record in caplog.records] == ["samples_not_recorded"]
    assert read_index(writer.run).blocks == ()


def test_a_folder_that_went_away_is_a_warning_when_files_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SampleWriter(tmp_path / "run")
    writer.step(Policy(0, 1), [trajectory_of(1, 0)])
    other = SampleWriter(tmp_path / "other")
    (other.run.samples).mkdir()
    (other.run.samples / "0000000000-00000000000001.steps").mkdir()
    other.recorder.trim(Position(9, 9))
    assert [record.message for record in caplog.records] == ["samples_not_trimmed"]
