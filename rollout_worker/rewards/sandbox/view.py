"""The file system that a sandboxed program sees: an empty one, with the interpreter and the system's libraries in it.

Home directories, the worker's files, /proc, /sys, /run and sockets are not there. What is shown from the host is read
only. The one place to write, WORK, is memory that is gone with the program.
"""

import os
import sys
from pathlib import Path

from rollout_worker.rewards.sandbox import kernel

WORK = "/sandbox"
"""Folder of the program, where it runs and may write."""

SIZE = "64m"
"""Most memory that the program's files may take together. Chosen by hand, above RunLimits.file_bytes."""

NUM_FILES = 1024
"""Most files and folders of the program. Chosen by hand."""

SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom")
"""What is shown of the host besides the interpreter, as far as it is there."""


def enter_view(mount_point: str, owner: int) -> None:
    """Make the view of this process, in a mount namespace of its own. `owner` may write into WORK. Raises: OSError.

    `mount_point` is any empty folder; nothing in it changes for other processes.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", mount_point, "tmpfs", flags, "mode=755")
    for path in (*SYSTEM, *_interpreter()):
        _show(path, mount_point)
    work = mount_point + WORK
    os.mkdir(work, 0o700)
    kernel.mount("none", mount_point, None, flags | kernel.MS_REMOUNT | kernel.MS_RDONLY)
    kernel.mount("tmpfs", work, "tmpfs", flags, f"size={SIZE},nr_inodes={NUM_FILES},mode=700")
    os.chown(work, owner, owner)
    # A process whose root is not that of its mount namespace cannot make user namespaces, and so gains no rights anew.
    os.chroot(mount_point)
    os.chdir(WORK)


def _interpreter() -> tuple[str, ...]:
    """Return the folders of the interpreter and its standard library that are not part of the system's own."""
    paths = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}
    return tuple(sorted(path for path in paths if path != "/" and not path.startswith(("/usr/", "/lib"))))


def _show(path: str, root: str) -> None:
    if not os.path.lexists(path) or path == "/usr/":
        return
    target = root + path
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path):
        os.makedirs(target, 0o755, exist_ok=True)
        kernel.bind_read_only(path, target)
    else:
        Path(target).touch()
        if path.startswith("/dev/"):
            kernel.mount(path, target, None, kernel.MS_BIND)  # a device behind a read-only mount is still a device
        else:
            kernel.bind_read_only(path, target)
