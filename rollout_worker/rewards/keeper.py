"""The keeper of a reward process: it ends all that reward functions have started, once they have ended themselves.

    worker -- starts --> keeper -- forks --> functions (process.py) -- start --> whatever they like

It is started as `python -m rollout_worker.rewards.keeper MODULE`, and runs the `main` of that module in the fork. The
processes of environments have such a keeper too.

The kernel gives a process that loses its parent to the keeper, even one that has left its process group and its
session. So nothing gets away: when the functions' process has ended, or the worker is dead or has sent SIGTERM, the
keeper kills its descendants until it has none. It ends as the functions' process has ended, with the same exit code
or signal.

It has forked before it imports anything large, so that it takes the memory of a bare interpreter. A function that
kills the keeper on purpose gets away; against such code only the region's policy helps (docs/rewards.md).
"""

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Numbers of the `prctl` operations that set the signal which a process gets when its parent dies, and that give a
process the orphans among its descendants (linux/prctl.h)."""

FAILED = 1
"""Exit code of a child whose work has raised an error."""

HEARD = frozenset({signal.SIGCHLD, signal.SIGTERM})
"""Signals that a keeper waits for."""


def main() -> None:
    """Keep the process of a module, and end as it does."""
    die_with_parent(signal.SIGTERM)
    _leave_as(keep(_run_module))


def _run_module() -> NoReturn:
    importlib.import_module(sys.argv[1]).main()  # imported after the fork: the keeper needs none of it
    os._exit(0)


def keep(work: Callable[[], NoReturn]) -> int:
    """Do `work` in a child until it ends or this process gets SIGTERM, and kill all of this process's descendants.

    Returns the child's exit code, or a signal's number below zero, as `os.waitstatus_to_exitcode` does. This process
    keeps neither standard input nor standard output.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _do(work)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    code = _wait(child)
    _kill_descendants()
    return code


def _do(work: Callable[[], NoReturn]) -> NoReturn:
    try:
        work()
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 0 if error.code is None else FAILED)
    except BaseException:  # the root of the child: nothing of the keeper may go on here
        traceback.print_exc()
    os._exit(FAILED)


def _wait(child: int) -> int:
    heard = 0
    while heard != signal.SIGTERM:
        heard = signal.sigwait(HEARD)
        # With SIGTERM too: if the child has just ended, it matters how.
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                return os.waitstatus_to_exitcode(ended[1])
    return -signal.SIGTERM


def _kill_descendants() -> None:
    while found := descendants(os.getpid(), _parents()):
        for pid in found:
            with contextlib.suppress(OSError):  # it has ended meanwhile, or has become another user
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def descendants(pid: int, parents: Mapping[int, int]) -> frozenset[int]:
    """Return the processes that descend from one, given the parent of each process."""
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found and each not in found}:
        found |= more
    return frozenset(found - {pid})


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                # PID (NAME) STATE PARENT ...; a name may hold anything.
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return parents


def die_with_parent(with_signal: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(with_signal))
    if os.getppid() != parent:  # it died in between
        os._exit(FAILED)


def _leave_as(code: int) -> NoReturn:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # of those that cannot be handled
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
