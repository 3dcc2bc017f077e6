"""What the operating system's refusal to write a file means: no room now, or an error that waiting does not mend.

Room comes back: a person removes files, or another job ends. So `DiskFull` leaves everything as it was, and whoever
writes may try the same write again. Any other refusal (no permission, a read-only file system, no free inode, a limit
on the size of one file) stays until a person changes something, and is an error that ends the job.

`open_regular` is for files that somebody else may have put there: of a pipe nothing may ever come.
"""

import errno
import os
import stat
from pathlib import Path

from periplus.errors import DiskFull, StorageError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_SMALLEST_FILE_BYTES = 4096
"""One block of most file systems: with less than this free, a new file fails for want of room, not of inodes."""


def no_room(path: Path, error: OSError, needed_bytes: int = 0) -> StorageError | None:
    """Return the error for a write of `needed_bytes` (0: not known) to `path`; None if `error` is not about room."""
    if error.errno not in NO_ROOM:
        return None
    found = _file_system(path)
    free_bytes = None if found is None else found.f_bavail * found.f_frsize
    if found is not None and free_bytes is not None and error.errno == errno.ENOSPC:
        has_bytes = free_bytes >= max(needed_bytes, _SMALLEST_FILE_BYTES)
        if found.f_files and not found.f_favail and has_bytes:
            return StorageError(
                f"no inode is free for {path}: its file system holds {found.f_files} files and takes no more, though "
                f"{free_bytes} bytes are free; remove files, then resume the job"
            )
    what = "the disk quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
    needed = f"{needed_bytes} bytes are needed, " if needed_bytes else ""
    free = "free bytes are unknown" if free_bytes is None else f"{free_bytes} are free"
    return DiskFull(f"{what} at {path} ({needed}{free}); make room there, nothing that was written is lost", path)


def open_regular(path: str, flags: int) -> int:
    """Open as `open(..., opener=open_regular)` asks, but without waiting for the writer of a pipe.

    Raises: OSError, also for what is no regular file (a pipe, a device): reading it might never end.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", path)


def _file_system(path: Path) -> os.statvfs_result | None:
    for folder in (path, *path.parents):
        try:
            return os.statvfs(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
