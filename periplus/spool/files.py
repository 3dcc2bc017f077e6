"""The file operations that stores on disk need, as a protocol, and their implementation by the operating system.

Tests put a simulated disk behind the protocol, which loses unsynced data as a real disk may after a power cut.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from periplus.errors import Conflict, PeriplusError, StorageError
from periplus.process.disk import no_room, open_regular, sync
from periplus.spool.format import Buffer


class AppendFile(Protocol):
    """An open file to which data is appended."""

    def append(self, parts: Sequence[Buffer]) -> None:
        """Hand all parts to the operating system in order. After an OSError some of their bytes may be written."""

    def sync(self) -> None:
        """Return when all appended data survives a power cut. The file's name needs `FileLayer.sync_folder` too."""

    def close(self) -> None: ...


class FileLayer(Protocol):
    """The file system operations that a store needs. Every method may raise OSError."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and its missing parents, whose names then survive a power cut. Repeating it is harmless."""

    def names(self, folder: Path) -> list[str]:
        """Return the names of the entries of a folder. Raises: FileNotFoundError if it does not exist."""

    def create(self, path: Path) -> AppendFile:
        """Create an empty file. Raises: FileExistsError."""

    def read(self, path: Path, offset: int = 0, num_bytes: int = -1) -> bytes:
        """Return up to `num_bytes` bytes from `offset` on, or all when `num_bytes` is negative."""

    def unlink(self, path: Path) -> None:
        """Remove a file. Repeating it is harmless."""

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder. Raises: OSError if it is not empty."""

    def sync_folder(self, folder: Path) -> None:
        """Return when the names that were added to and removed from the folder survive a power cut."""

    def lock(self, path: Path) -> AbstractContextManager[object]:
        """Lock a file until the context ends or the process dies. Raises: BlockingIOError if another holds the lock."""


class OsFiles:
    """The `FileLayer` of the operating system."""

    def make_folder(self, folder: Path) -> None:
        missing = [folder]
        while not missing[-1].exists():
            missing.append(missing[-1].parent)
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing[1:]:
            self.sync_folder(made)

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def create(self, path: Path) -> AppendFile:
        return _OsFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644))

    def read(self, path: Path, offset: int = 0, num_bytes: int = -1) -> bytes:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            file.seek(offset)
            return file.read(num_bytes) if num_bytes >= 0 else file.readall()

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, folder: Path) -> None:
        folder.rmdir()

    def sync_folder(self, folder: Path) -> None:
        sync(folder)

    def lock(self, path: Path) -> AbstractContextManager[object]:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return _open_until_left(descriptor)


@contextlib.contextmanager
def _open_until_left(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


class _OsFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def append(self, parts: Sequence[Buffer]) -> None:
        written = os.writev(self._descriptor, parts)
        if written == sum(len(part) for part in parts):
            return
        views = [memoryview(part) for part in parts]
        while views:  # the disk filled up or a signal came: a full disk makes the next write fail
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]
                written = os.writev(self._descriptor, views)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Translate an OSError about `path` into a PeriplusError."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: Path, error: OSError, needed_bytes: int = 0) -> PeriplusError:
    """Return the PeriplusError for an OSError about `path`: Conflict for a lock, DiskFull, or another StorageError.

    `needed_bytes` is the number of bytes of the failed write, or 0 if it is not known.
    """
    if isinstance(error, BlockingIOError):
        return Conflict(f"{path} is locked by another process that uses this spool; stop that process first")
    full = no_room(path, error, needed_bytes)
    return full or StorageError(f"cannot use {path}: {error.strerror or error}; repair the disk or its permissions")
