"""Calls of the Linux kernel that Python 3.11 has no functions for: namespaces, mounts and process attributes."""

import ctypes
import os

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
"""Flags of namespaces (linux/sched.h)."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 0x1, 0x2, 0x4, 0x20, 0x1000
MS_REC, MS_PRIVATE, MS_RELATIME = 0x4000, 0x40000, 0x200000
"""Flags of mounts (linux/mount.h)."""

ST_RELATIME = 0x1000
"""The flag of `statvfs` whose number differs from that of `mount` (bits/statvfs.h)."""

LOCKED = 0x2 | 0x4 | 0x8 | 0x400 | 0x800
"""Flags that a mount inherits and that a user namespace may not clear: nosuid, nodev, noexec, noatime, nodiratime."""

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
"""Operations of prctl (linux/prctl.h)."""


def unshare(flags: int) -> None:
    """Leave namespaces for new ones. Raises: OSError if the kernel refuses."""
    _call("unshare", flags)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount a file system. Raises: OSError."""
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _call("mount", encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])


def bind_read_only(source: str, target: str) -> None:
    """Show a file or folder at another path, where nobody can write. Raises: OSError."""
    mount(source, target, None, MS_BIND)
    known = os.statvfs(target).f_flag
    kept = (known & LOCKED) | (MS_RELATIME if known & ST_RELATIME else 0)
    mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)


def set_no_new_privileges() -> None:
    """Keep this process and its children from gaining rights by running programs. Raises: OSError."""
    _call("prctl", PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def hide_memory() -> None:
    """Keep processes of the same user from reading this process's memory. Raises: OSError."""
    _call("prctl", PR_SET_DUMPABLE, *map(ctypes.c_ulong, (0, 0, 0, 0)))


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
