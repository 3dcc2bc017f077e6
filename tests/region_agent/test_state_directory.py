"""Where jobs' spools and weights lie, and which folders stay of those that no job here uses."""

import os
from pathlib import Path

import pytest

from region_agent.state_directory import KEPT_SPOOLS, KEPT_WEIGHTS, SHARED, StateDirectory

KEY = bytes(32)


def made(folders: list[Path]) -> list[Path]:
    """Make the folders, each newer than the one before."""
    for age, folder in enumerate(folders):
        folder.mkdir(parents=True)
        (folder / "content").write_bytes(b"weights or frames")
        os.utime(folder, (1000 + age, 1000 + age))
    return folders


def test_jobs_and_authorities_have_folders_of_their_own_whatever_their_names(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    weights = {state.weights_of(job, key) for job in ("a", "a/b", "..") for key in (KEY, b"1" * 32)}
    spools = {state.spool_of(job) for job in ("a", "a/b", "..")}
    assert (len(weights), {folder.parent for folder in weights}) == (6, {tmp_path / "weights"})
    assert (len(spools), {folder.parent for folder in spools}) == (3, {tmp_path / "spools"})


@pytest.mark.parametrize(("kind", "num_kept"), [("spools", KEPT_SPOOLS), ("weights", KEPT_WEIGHTS)])
def test_of_folders_that_no_job_uses_the_newest_stay(tmp_path: Path, kind: str, num_kept: int) -> None:
    state = StateDirectory(tmp_path)
    jobs = [f"job-{number}" for number in range(num_kept + 3)]
    folders = made([state.spool_of(job) if kind == "spools" else state.weights_of(job, KEY) for job in jobs])
    state.give_up_oldest({folders[0]})
    assert set((tmp_path / kind).iterdir()) == {folders[0], *folders[3:]}


def test_a_state_directory_that_does_not_exist_has_nothing_to_give_up(tmp_path: Path) -> None:
    StateDirectory(tmp_path / "nowhere").give_up_oldest(())


def test_the_folders_around_spools_and_weights_go_with_the_last_one(tmp_path: Path) -> None:
    root = tmp_path / SHARED / "us"
    state = StateDirectory(root)
    spool, weights = made([state.spool_of("job-1"), state.weights_of("job-1", KEY)])
    for folder in (weights, spool):
        state.remove_if_empty()
        assert folder.exists()
        (folder / "content").unlink()
        folder.rmdir()
    state.remove_if_empty()
    assert list(tmp_path.iterdir()) == []
