"""What a refusal means, on real small file systems where there is one."""

import errno
import os
from pathlib import Path

import pytest

from periplus.errors import DiskFull, StorageError
from periplus.process.disk import no_room, replacing, sync
from tests.support.small_disk import small_disk


def test_a_full_disk_is_named_with_the_bytes_that_are_needed_and_free(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=64) as disk:
        path = disk.root / "absent" / "file"
        disk.fill(leaving_bytes=8192)
        error = no_room(path, OSError(errno.ENOSPC, "No space left on device"), 10_000)
    assert isinstance(error, DiskFull)
    assert error.path == path
    assert str(error).startswith(f"the disk is full at {path} (10000 bytes are needed, 8192 are free)")


def test_a_file_system_without_inodes_is_no_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=1024, num_inodes=4) as disk:
        for number in range(3):
            (disk.root / str(number)).touch()
        with pytest.raises(OSError) as refused:
            (disk.root / "3").touch()
        error = no_room(disk.root / "next", refused.value)
    assert refused.value.errno == errno.ENOSPC
    assert isinstance(error, StorageError)
    assert not isinstance(error, DiskFull)
    assert "no inode is free" in str(error)
    assert str(disk.root / "next") in str(error)


def test_a_quota_is_waited_for_as_a_disk_is_and_called_by_its_name(tmp_path: Path) -> None:
    error = no_room(tmp_path / "x", OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), 5)
    assert isinstance(error, DiskFull)
    assert "quota is used up" in str(error)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.EFBIG, errno.ENOENT])
def test_what_room_would_not_mend_is_not_about_room(tmp_path: Path, number: int) -> None:
    assert no_room(tmp_path / "x", OSError(number, os.strerror(number))) is None


def test_files_and_folders_are_synced_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"data")
    num_open = len(os.listdir("/proc/self/fd"))
    for path in (file, tmp_path):
        sync(path)
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "missing")
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["file"])


def test_a_file_stays_as_it_was_if_writing_its_successor_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with replacing(path) as file:
            file.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])
