"""A real file system that fills up: a tmpfs of its own size, which can be made larger while it is in use."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """Mounted at `root` until it is left."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def resize(self, num_kib: int) -> None:
        """Let it hold so many KiB in all."""
        _mount("-o", f"remount,size={num_kib}k", str(self.root))

    def make_read_only(self) -> None:
        """Refused by the kernel while a file is open for writing."""
        _mount("-o", "remount,ro", str(self.root))

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.root).free

    def fill(self, *, leaving_bytes: int = 0) -> Path:
        """Take all of its room but `leaving_bytes`, rounded up to pages; removing the returned file gives it back."""
        path = self.root / "filler"
        with path.open("ab", buffering=0) as file:
            try:
                while (left := self.free_bytes - leaving_bytes) > 0:
                    file.write(bytes(min(left, 1 << 20)))
            except OSError:
                pass
        return path


@contextmanager
def small_disk(root: Path, *, num_kib: int, num_inodes: int | None = None) -> Iterator[SmallDisk]:
    """Mount a file system of `num_kib` KiB at `root`. The test is skipped where mounting is refused."""
    root.mkdir(exist_ok=True)
    options = f"size={num_kib}k" + (f",nr_inodes={num_inodes}" if num_inodes else "")
    try:
        _mount("-t", "tmpfs", "-o", options, "periplus-test", str(root))
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or error
        pytest.skip(f"a small file system cannot be mounted here, which needs root: {said}")
    try:
        yield SmallDisk(root)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
