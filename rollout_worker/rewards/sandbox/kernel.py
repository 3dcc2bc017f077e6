"""Calls of the Linux kernel that Python 3.11 has no functions for: namespaces, mounts, attributes, filters of calls."""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping

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

NOBODY = 65534
"""Number of the user without files, by convention."""

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
"""Operations of prctl (linux/prctl.h)."""

SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS = 0x00050000, 0x7FFF0000, 0x80000000
"""What a filter of system calls may answer (linux/seccomp.h)."""

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Numbers of architectures by the machine's name (linux/audit.h)."""

X32_BIT = 0x40000000
"""Least number of the calls of x86-64's second interface, whose numbers are others."""

SOCKET = {"x86_64": 41, "aarch64": 198}
FAMILIES = (1, 2, 10)
"""Families of sockets that a program may make: AF_UNIX, AF_INET and AF_INET6, none of which leads anywhere from its
network namespace. Others reach beyond it, as AF_VSOCK reaches the hypervisor."""

REFUSED: Mapping[str, Mapping[str, int]] = {
    # Memory that no limit of the process counts.
    "memfd_create": {"x86_64": 319, "aarch64": 279},
    "memfd_secret": {"x86_64": 447, "aarch64": 447},
    "shmget": {"x86_64": 29, "aarch64": 194},
    "msgget": {"x86_64": 68, "aarch64": 186},
    "mq_open": {"x86_64": 240, "aarch64": 180},
    # Large parts of the kernel that programs of the language do not need.
    "io_uring_setup": {"x86_64": 425, "aarch64": 425},
    "io_uring_enter": {"x86_64": 426, "aarch64": 426},
    "io_uring_register": {"x86_64": 427, "aarch64": 427},
    "bpf": {"x86_64": 321, "aarch64": 280},
    "perf_event_open": {"x86_64": 298, "aarch64": 241},
    "userfaultfd": {"x86_64": 323, "aarch64": 282},
    "add_key": {"x86_64": 248, "aarch64": 217},
    "request_key": {"x86_64": 249, "aarch64": 218},
    "keyctl": {"x86_64": 250, "aarch64": 219},
    # Other processes.
    "ptrace": {"x86_64": 101, "aarch64": 117},
    "process_vm_readv": {"x86_64": 310, "aarch64": 270},
    "process_vm_writev": {"x86_64": 311, "aarch64": 271},
}
"""System calls that a program is refused, with their numbers by architecture (asm/unistd.h)."""


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


def refuse_calls() -> None:
    """Refuse the calls of `REFUSED`, and sockets of other `FAMILIES`, to this process and its children for good.

    A call of another architecture ends the process. `set_no_new_privileges` comes before. Raises: OSError, also on an
    architecture without a list.
    """
    machine = platform.machine()
    if machine not in AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"there is no list of system calls for {machine}")
    code = _filter(machine)
    program = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: the number of instructions of 8 bytes each, and where they are.
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(program)))
    _call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), header, ctypes.c_ulong(0), ctypes.c_ulong(0))


def _filter(machine: str) -> bytes:
    """Return instructions of the classic BPF machine (linux/filter.h), which reads a `struct seccomp_data`.

    That holds the number of the call at byte 0, the architecture at 4, and the first argument at 16 (its lower half).
    """
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    refused, no_family = SECCOMP_RET_ERRNO | errno.EPERM, SECCOMP_RET_ERRNO | errno.EAFNOSUPPORT
    found = [
        (load, 0, 0, 4),
        (equal, 1, 0, AUDIT_ARCH[machine]),
        (answer, 0, 0, SECCOMP_RET_KILL_PROCESS),
        (load, 0, 0, 0),
        # A jump skips so many instructions: first if it holds, then if it does not.
        (at_least, 0, 1, X32_BIT),
        (answer, 0, 0, refused),
    ]
    for numbers in REFUSED.values():
        found += [(equal, 0, 1, numbers[machine]), (answer, 0, 0, refused)]
    found += [(equal, 1, 0, SOCKET[machine]), (answer, 0, 0, SECCOMP_RET_ALLOW), (load, 0, 0, 16)]
    for family in FAMILIES:
        found += [(equal, 0, 1, family), (answer, 0, 0, SECCOMP_RET_ALLOW)]
    found.append((answer, 0, 0, no_family))
    return b"".join(struct.pack("HBBI", *each) for each in found)


def hide_memory() -> None:
    """Keep processes of the same user from reading this process's memory. Raises: OSError."""
    _call("prctl", PR_SET_DUMPABLE, *map(ctypes.c_ulong, (0, 0, 0, 0)))


def show_memory() -> None:
    """Undo `hide_memory`, and what a change of the user does likewise. Raises: OSError."""
    _call("prctl", PR_SET_DUMPABLE, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
