"""File system interface of a weight store: what a spool needs of it, and files that are written in place."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from periplus.spool.files import FileLayer, OsFiles, explained
from periplus.spool.format import Buffer


class PlacedFile(Protocol):
    """A file of fixed size."""

    def read_at(self, offset: int, num_bytes: int) -> bytes:
        """Return `num_bytes` bytes. Raises: OSError if the file ends before."""

    def write_at(self, offset: int, data: Buffer) -> None:
        """Write bytes. On OSError, or if the process dies, any of them may have been written."""

    def sync(self) -> None:
        """Return when what was written survives a power cut. The file's name is made durable by syncing its folder."""

    def close(self) -> None: ...


class WeightFiles(FileLayer, Protocol):
    """What a weight store needs of a file system. Every method may raise OSError."""

    def create_sized(self, path: Path, num_bytes: int) -> PlacedFile:
        """Create a file of `num_bytes` bytes with its room on the disk allocated. Raises: FileExistsError."""

    def open_placed(self, path: Path) -> PlacedFile: ...

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes. Raises: FileNotFoundError."""


class OsWeightFiles(OsFiles):
    """The operating system's files."""

    def create_sized(self, path: Path, num_bytes: int) -> PlacedFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if num_bytes:
                os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return _OsPlacedFile(descriptor, path)

    def open_placed(self, path: Path) -> PlacedFile:
        return _OsPlacedFile(os.open(path, os.O_RDWR), path)

    def size(self, path: Path) -> int:
        return path.stat().st_size


class _OsPlacedFile:
    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    def read_at(self, offset: int, num_bytes: int) -> bytes:
        parts = []
        while num_bytes:
            # The kernel may return less than was requested.
            part = os.pread(self._descriptor, num_bytes, offset)
            if not part:
                raise OSError(f"{self._path} ends before byte {offset}")
            parts.append(part)
            offset, num_bytes = offset + len(part), num_bytes - len(part)
        return b"".join(parts)

    def write_at(self, offset: int, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def new_file(layer: WeightFiles, path: Path, *, sync: bool = False) -> Iterator[Callable[[Sequence[Buffer]], None]]:
    """Create a file, and remove it again if the body fails. Yield the function that appends parts to it."""
    with explained(path):
        # An earlier attempt may have left a file of this name.
        layer.unlink(path)
        file = layer.create(path)
        try:
            yield file.append
            if sync:
                file.sync()
        except Exception:
            with contextlib.suppress(OSError):
                layer.unlink(path)
            raise
        finally:
            file.close()
