"""Folders of weights: one a job and authority, few of those that nobody uses."""

import os
from pathlib import Path

from region_agent.weights.disk.folders import KEPT_FOLDERS, folder_of, give_up_oldest, remove_if_empty


def test_jobs_and_authorities_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = {folder_of(tmp_path, job, key) for job in ("a", "a/b", "..") for key in (bytes(32), b"1" * 32)}
    assert len(folders) == 6
    assert all(folder.parent == tmp_path / "weights" for folder in folders)


def test_of_what_nobody_uses_the_newest_stay(tmp_path: Path) -> None:
    folders = [folder_of(tmp_path, f"job-{index}", bytes(32)) for index in range(6)]
    for index, folder in enumerate(folders):
        folder.mkdir(parents=True)
        (folder / "copy").write_bytes(b"weights")
        os.utime(folder, (index, index))
    give_up_oldest(tmp_path, in_use=[folders[0]])
    assert [folder.exists() for folder in folders] == [True, *[False] * (5 - KEPT_FOLDERS), *[True] * KEPT_FOLDERS]
    remove_if_empty(tmp_path)
    assert (tmp_path / "weights").exists()
    give_up_oldest(tmp_path / "elsewhere", in_use=[])
