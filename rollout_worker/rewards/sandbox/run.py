"""One run of a program that a model wrote: three processes, of which the last is the program.

    reward process -- forks --> outer: leaves its namespaces; the reward process says who it is there
      outer  -- forks --> inner: process 1 of the new process namespace; makes the view, gives up its user
        inner  -- forks --> program: limited, without rights and some system calls, with an empty environment

When the program ends, `inner` ends, and the kernel ends whatever else is in the namespace. When time is up or too much
was printed, the reward process kills `outer` and `inner`. All are killed with the reward process.

Where the kernel refuses namespaces, a run is refused too, unless it is asked for without (`isolated=False`): then the
program is limited in time, memory and size of files, but sees the network and the files of the worker's user. Then
`outer` is the keeper of what the program has started (keeper.py).
"""

import contextlib
import math
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from periplus import clock
from rollout_worker.rewards.keeper import die_with_parent, keep
from rollout_worker.rewards.sandbox import kernel, view

NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
"""What a program shares with nobody: users, mounts, network, processes, shared memory, host name and control groups."""

USER = 1000
"""Number of the program's user in its namespace. It is nobody's outside if the worker is root, else the worker's."""

PROGRAM = "program.py"
"""File name of the program in its folder."""

EXIT_REFUSED = 97
"""Exit code of a process for which the kernel refused the sandbox."""

ASKS = b"?"
"""What `outer` writes when it needs to be told who it is, and the answer that it was."""

READ_BYTES = 1 << 16
"""Bytes that are read of a program's output at a time: a pipe holds as many."""


class SandboxRefused(Exception):
    """The kernel refuses a part of the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What a program may take. Memory and files are limits of each of its processes; `time_s` is processor and wall
    time."""

    time_s: float
    memory_bytes: int
    file_bytes: int = 16 << 20
    output_bytes: int = 1 << 20
    num_processes: int = 8
    num_files: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a program printed, and how it ended: its exit code, or None if it was ended for one of its limits."""

    output: bytes
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What the processes of the sandbox need to know; `asked` and `telling` are their ends of two pipes."""

    source: str
    folder: str
    python: str
    limits: RunLimits
    isolated: bool
    asked: int
    telling: int


def run_program(source: str, stdin: bytes, limits: RunLimits, *, isolated: bool = True) -> RunResult:
    """Run a Python program to its end or its limits.

    Raises: SandboxRefused if the kernel refuses the sandbox; OSError.
    """
    folder = tempfile.mkdtemp(prefix="periplus-sandbox-")
    reading, writing = os.pipe()
    asking, asked = os.pipe()  # from the sandbox: "who am I here?", and what it was refused
    telling, told = os.pipe()  # from here: "you are"
    given = os.memfd_create("stdin")
    try:
        os.write(given, stdin)
        os.lseek(given, 0, os.SEEK_SET)
        order = _Order(
            source=source,
            folder=folder,
            python=os.path.realpath(sys.executable),
            limits=limits,
            isolated=isolated,
            asked=asked,
            telling=telling,
        )
        outer = os.fork()
        if outer == 0:
            _outer(order, given, writing)
        for descriptor in (writing, asked, telling):
            os.close(descriptor)
        said = os.read(asking, 1) if isolated else b""
        if said == ASKS:
            said = b""
            _map_users(outer)
            os.write(told, ASKS)
        result = _result(outer, reading, limits, isolated=isolated)
        if refusal := said + os.read(asking, READ_BYTES):
            raise SandboxRefused(refusal.decode(errors="replace"))
        return result
    finally:
        for descriptor in (reading, asking, told, given):
            os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _result(outer: int, reading: int, limits: RunLimits, *, isolated: bool) -> RunResult:
    until_s, output, in_time = clock.monotonic_s() + limits.time_s, b"", True
    while True:
        left_s = until_s - clock.monotonic_s()
        if left_s <= 0 or len(output) > limits.output_bytes:
            in_time = False
            break
        if select.select([reading], [], [], left_s)[0]:
            if not (more := os.read(reading, READ_BYTES)):
                break
            output += more
    # Closed output does not mean that the program has ended.
    in_time = in_time and _ends(outer, until_s)
    with contextlib.suppress(ProcessLookupError):
        if isolated:
            os.killpg(outer, signal.SIGKILL)
        else:
            os.kill(outer, signal.SIGTERM)
    _, status = os.waitpid(outer, 0)
    code = os.waitstatus_to_exitcode(status) if in_time else None
    return RunResult(output=output[: limits.output_bytes], exit_code=code)


def _ends(pid: int, until_s: float) -> bool:
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], max(0.0, until_s - clock.monotonic_s()))[0])
    finally:
        os.close(descriptor)


def _map_users(outer: int) -> None:
    """Say which users of the host those of the new namespace are."""
    if os.geteuid() == 0:
        mapping = f"0 0 1\n{USER} {kernel.NOBODY} 1\n"
        groups = mapping
    else:
        mapping, groups = f"{USER} {os.geteuid()} 1\n", f"{USER} {os.getegid()} 1\n"
        Path(f"/proc/{outer}/setgroups").write_text("deny")
    Path(f"/proc/{outer}/uid_map").write_text(mapping)
    Path(f"/proc/{outer}/gid_map").write_text(groups)


# ---- in the processes of the sandbox; none of these functions returns ------------------------------------------------


def _outer(order: _Order, given: int, writing: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        _become_standard(given, writing, keep=(order.asked, order.telling))
        if order.isolated:
            kernel.unshare(NAMESPACES)
            os.write(order.asked, ASKS)
            if os.read(order.telling, 1) != ASKS:
                os._exit(EXIT_REFUSED)
            die_with_parent()  # after the user has changed, which clears it
            _exit_as(_forked(_inner, order))
        die_with_parent(signal.SIGTERM)
        _exit_as(keep(lambda: _guarded(_inner, order)))
    except BaseException as error:  # nothing of the reward process may go on here
        _refuse(order, error)


def _inner(order: _Order) -> NoReturn:
    if order.isolated:
        was_root = os.geteuid() == 0
        if was_root:
            os.setgroups([])
        with contextlib.suppress(OSError):  # the first to be killed when the host's memory is short
            Path("/proc/self/oom_score_adj").write_text("1000")
        view.enter_view(order.folder, USER)
        if was_root:
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
        kernel.hide_memory()
    else:
        os.chdir(order.folder)
    die_with_parent()
    _exit_as(_forked(_program, order))


def _program(order: _Order) -> NoReturn:
    limits = order.limits
    Path(PROGRAM).write_text(order.source, encoding="utf-8", errors="replace")
    kernel.set_no_new_privileges()
    if order.isolated:
        kernel.refuse_calls()
    seconds = math.ceil(limits.time_s)
    for which, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NPROC, limits.num_processes),
        (resource.RLIMIT_NOFILE, limits.num_files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (most, most))
    # The pipes to the reward process close here: a program cannot claim that it was refused.
    os.execve(order.python, [order.python, "-I", "-S", "-B", PROGRAM], {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})


def _forked(work: Callable[[_Order], NoReturn], order: _Order) -> int:
    """Do `work` in a child, and return the child's exit code."""
    child = os.fork()
    if child == 0:
        _guarded(work, order)
    os.close(1)  # the output ends with the program
    os.close(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _guarded(work: Callable[[_Order], NoReturn], order: _Order) -> NoReturn:
    try:
        work(order)
    except BaseException as error:  # nothing of the reward process may go on here
        _refuse(order, error)


def _refuse(order: _Order, error: BaseException) -> NoReturn:
    os.write(order.asked, str(error).encode()[:1000])
    os._exit(EXIT_REFUSED)


def _exit_as(code: int) -> NoReturn:
    os._exit(code if code >= 0 else 128 - code)


def _become_standard(given: int, writing: int, keep: tuple[int, ...]) -> None:
    """Leave this process with its input, its output, nothing as error output, and what is kept."""
    os.dup2(given, 0)
    os.dup2(writing, 1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    last = 3
    for descriptor in sorted(keep):
        os.closerange(last, descriptor)
        last = descriptor + 1
    os.closerange(last, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
