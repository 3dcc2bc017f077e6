"""The door between a spool and the disk. Tests put a disk behind it that lies as much as disks may."""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from periplus.errors import Conflict, PeriplusError, StorageError
from periplus.process.disk import no_room, open_regular
from periplus.spool.format import Buffer


class AppendFile(Protocol):
    """A file that only grows at its end."""

    def append(self, parts: Sequence[Buffer]) -> None:
        """Hand all parts to the operating system, in order. On OSError some of their bytes may have been written."""

    def truncate(self, num_bytes: int) -> None:
        """Cut what follows."""

    def sync(self) -> None:
        """Return when what was appended survives a power cut; the file's name is the folder's matter."""

    def close(self) -> None: ...


class FileLayer(Protocol):
    """What a spool asks of a file system. Every method may raise OSError."""

    def make_folder(self, folder: Path) -> None:
        """A repeat is harmless. The names of the folders made survive a power cut."""

    def names(self, folder: Path) -> list[str]:
        """Raises: FileNotFoundError."""

    def create(self, path: Path) -> AppendFile:
        """A new empty file. Raises: FileExistsError."""

    def reopen(self, path: Path) -> AppendFile: ...

    def num_bytes(self, path: Path) -> int:
        """The file's size."""

    def read(self, path: Path, offset: int = 0, num_bytes: int = -1) -> bytes:
        """Up to `num_bytes` bytes, all that are there when negative."""

    def unlink(self, path: Path) -> None:
        """A repeat is harmless."""

    def remove_folder(self, folder: Path) -> None:
        """Raises: OSError if it is not empty."""

    def sync_folder(self, folder: Path) -> None:
        """Return when the names that were made and removed in it survive a power cut."""

    def lock(self, path: Path) -> AbstractContextManager[object]:
        """Held until left or until the process dies. Raises: BlockingIOError when another holds it."""


class OsFiles:
    """The operating system's files."""

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

    def reopen(self, path: Path) -> AppendFile:
        return _OsFile(os.open(path, os.O_WRONLY | os.O_APPEND))

    def num_bytes(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path, offset: int = 0, num_bytes: int = -1) -> bytes:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            file.seek(offset)
            return file.read(num_bytes) if num_bytes >= 0 else file.readall()

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, folder: Path) -> None:
        folder.rmdir()

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

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
        while views:  # the disk filled up, or a signal came: the next write says which
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]
                written = os.writev(self._descriptor, views)

    def truncate(self, num_bytes: int) -> None:
        os.ftruncate(self._descriptor, num_bytes)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Translate the operating system's refusal about `path`."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: Path, error: OSError, needed_bytes: int = 0) -> PeriplusError:
    """What an OSError about `path` means to the one who spools; `needed_bytes` were to be written (0: not known)."""
    if isinstance(error, BlockingIOError):
        return Conflict(f"{path} is locked by another process that spools there; stop it first")
    full = no_room(path, error, needed_bytes)
    return full or StorageError(f"cannot use {path}: {error.strerror or error}; mend the disk or its permissions")
