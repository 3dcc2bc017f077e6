"""Writes to disk: what a failed one means, whether waiting can help, and how a file is replaced as a whole.

A full disk may get free space again, because a person removes files or another job ends. So after `DiskFull` nothing
has changed, and the caller may try the same write again. Any other error (no permission, a read-only file system, no
free inode, a limit on the size of a file) stays until a person changes something, and it ends the job.

`open_regular` opens files that another program may have put there; it never waits for the writer of a pipe. `sync`
makes a file's bytes, or a folder's names, survive a power cut. `replacing` writes a file whole or not at all.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

from periplus.errors import DiskFull, StorageError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers that mean a full disk or an exhausted quota."""

PARTIAL = ".partial"
"""Suffix of a file or folder that is still being written and that must not be read."""

_SMALLEST_FILE_BYTES = 4096
"""The block size of most file systems. With fewer free bytes a new file fails for lack of space, not of inodes."""


def no_room(path: Path, error: OSError, needed_bytes: int = 0) -> StorageError | None:
    """Return the StorageError for a write to `path` that failed for lack of space, or None for any other OSError.

    The result is DiskFull, which may be retried, unless the file system has free space but no free inode.
    `needed_bytes` is the number of bytes of the write, or 0 if it is not known.
    """
    if error.errno not in NO_ROOM:
        return None
    found = _file_system(path)
    free_bytes = None if found is None else found.f_bavail * found.f_frsize
    if found is not None and free_bytes is not None and error.errno == errno.ENOSPC:
        # ENOSPC also means that no inode is free. Then waiting for space does not help.
        has_bytes = free_bytes >= max(needed_bytes, _SMALLEST_FILE_BYTES)
        if found.f_files and not found.f_favail and has_bytes:
            return StorageError(
                f"no inode is free for {path}: its file system can hold only {found.f_files} files, although "
                f"{free_bytes} bytes are free; remove files, then resume the job"
            )
    what = "the disk quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
    needed = f"{needed_bytes} bytes are needed, " if needed_bytes else ""
    free = "free bytes are unknown" if free_bytes is None else f"{free_bytes} are free"
    return DiskFull(f"{what} at {path} ({needed}{free}); make room there, nothing that was written is lost", path)


def open_regular(path: str, flags: int) -> int:
    """Open a regular file, for use as `open(..., opener=open_regular)`.

    It does not wait for the writer of a pipe. Raises: OSError, also if the path is a pipe or a device, because reading
    those might never end.
    """
    # Opened first and examined then, so that the path cannot be exchanged in between; O_NONBLOCK keeps a pipe from
    # waiting.
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def sync(path: Path) -> None:
    """Return when a file's bytes, or the names that were added to and removed from a folder, survive a power cut.

    Raises: OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def partial_path(path: Path) -> Path:
    """Return the hidden name beside `path` under which this process writes what it then renames to `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")


@contextmanager
def replacing(path: Path) -> Iterator[BufferedWriter]:
    """Yield a file to write, which replaces `path` once the body has ended without an error.

    Readers, also after a power cut, find the old file or the whole new one. Raises: OSError, and any error of the body;
    the old file is then still there, and nothing else is left.
    """
    partial = partial_path(path)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            # The content must be on disk before the name points to it, or a power cut may leave an empty file.
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    # The rename itself is durable only with the folder.
    sync(path.parent)


def _file_system(path: Path) -> os.statvfs_result | None:
    # The file itself may not exist yet: its nearest existing folder is on the same file system.
    for folder in (path, *path.parents):
        try:
            return os.statvfs(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
