"""Which samples a run has: dead forks and removed frames are left out."""

from pathlib import Path

import pytest

from periplus.errors import NotFound
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.index import read_index, surviving
from periplus.job.samples.step_blocks import StepBlock, empty_rows
from periplus.spool.format import Position
from periplus.values.policy import Policy
from tests.support.trainer.kept_samples import SampleWriter, trajectory_of, written_run


def blocks_of(*policies: tuple[int, int]) -> list[StepBlock]:
    return [StepBlock(policy=Policy(*policy), regions=(), rows=empty_rows(1)) for policy in policies]


@pytest.mark.parametrize(
    ("written", "alive"),
    [
        ([(0, 1), (0, 2), (0, 3)], [(0, 1), (0, 2), (0, 3)]),
        # The older fork came to version 4; the newer one began again after 2 and is at 3.
        ([(0, 1), (0, 2), (0, 3), (0, 4), (1, 3)], [(0, 1), (0, 2), (1, 3)]),
        ([(0, 1), (0, 2), (1, 2), (1, 3), (2, 2)], [(0, 1), (2, 2)]),
        ([], []),
    ],
)
def test_versions_that_a_newer_fork_repeats_are_dead(
    written: list[tuple[int, int]], alive: list[tuple[int, int]]
) -> None:
    assert [block.policy for block in surviving(blocks_of(*written))] == [Policy(*policy) for policy in alive]


def test_a_run_has_the_samples_that_were_written(tmp_path: Path) -> None:
    index = read_index(written_run(tmp_path / "run"))
    assert [block.policy.version for block in index.blocks] == [1, 2, 3]
    assert index.num_samples == 6
    assert index.has_frames(index.blocks).all()


def test_samples_whose_frames_were_removed_are_known_and_have_none(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run")
    for version in (1, 2, 3):
        writer.step(Policy(0, version), [trajectory_of(version, 0)])
    writer.store.trim(Position(1, 2))
    index = read_index(writer.run)
    assert index.has_frames(index.blocks).tolist() == [False, False, True]


def test_a_block_that_is_half_written_is_not_there_yet(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run")
    [file] = run.samples.glob("*.steps")
    file.write_bytes(file.read_bytes()[:-1])
    assert [block.policy.version for block in read_index(run).blocks] == [1, 2]


def test_a_run_without_samples_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no step of it has been trained yet"):
        read_index(RunDirectory(tmp_path))
