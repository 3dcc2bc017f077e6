"""The guard of a task: a small process that ends everything that the task has started, once the task itself is dead.

A task whose agent lives leaves nothing behind, because the agent kills its process group. But `kill -9` may end agent
and task together. The processes of an inference engine do not notice that, and hold their memory for ever. So each task
starts a guard, which needs neither of them. It sleeps until the kernel reports the death of the task, and then kills
the processes of the task's Unix session until none is left.

The guard is in the task's session, so the kernel gives the session's number to nobody else while the guard lives. It
has a process group of its own, so that it survives whoever kills the task's group.

Blocks of shared memory stay in /dev/shm until somebody removes their names. Python's multiprocessing has a process for
that, the resource tracker. Each process that makes a block reports its name there, and the tracker removes the names
that are left when all these processes are dead. Python starts it in the task's process group, where it is killed with
the others. So the guard is the task's resource tracker too: it removes names that the task's processes reported, and
never looks for others. (Before Python 3.13 a process also reports a block that it only attaches to. vLLM prevents it.)

A task that leads no session gets no guard, because the session's other processes are not its own. Nor does one on a
system without process descriptors (Linux has had them since 5.3). Processes that have left the session are not found.

This file runs as a script in Python's isolated mode, so that it starts fast: it imports the standard library alone.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from multiprocessing import resource_tracker
from typing import Any


def guard_session() -> int | None:
    """Start the guard of this process and of all that it will start. Return its id, or None where there can be none.

    Processes that multiprocessing starts later report their shared memory to the guard. Raises: OSError if no process
    can be started.
    """
    if os.getsid(0) != os.getpid() or not _has_process_descriptors():
        return None
    reading, writing = os.pipe()
    try:
        # Its errors go to the task's log. Nobody waits for it, so it is no Popen, which complains of that.
        guard = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
            setpgroup=0,
        )
    except OSError:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    # What multiprocessing does in each process that it starts, so that it reports to its parent's tracker.
    tracker: Any = resource_tracker._resource_tracker
    if getattr(tracker, "_fd", None) is None:
        tracker._fd = writing
    else:
        os.close(writing)  # a tracker runs already, and would not understand who forgets what it was told
    return guard


def _has_process_descriptors() -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _end_after(leader: int) -> None:
    """Wait until the leader of this session is dead, and kill the rest of the session."""
    # If this fails, it is dead already: its id is the session's, so no other process can have it.
    with contextlib.suppress(OSError):
        _wait(os.pidfd_open(leader))
    # A process may have started another one before it was killed.
    while killed := _kill_session(leader):
        for descriptor in killed:
            _wait(descriptor)
            os.close(descriptor)


def _kill_session(session: int) -> list[int]:
    """Kill the processes of a session, except for this one. Return descriptors of those that were still alive."""
    killed = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile, or belongs to another user
            if os.getsid(int(entry)) != session:
                continue
            descriptor = os.pidfd_open(int(entry))
            try:
                # The id may have passed to another process before the descriptor was opened.
                if os.getsid(int(entry)) == session and not _has_ended(descriptor):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    killed.append(os.dup(descriptor))
            finally:
                os.close(descriptor)
    return killed


def _wait(descriptor: int) -> None:
    _poll(descriptor, None)


def _has_ended(descriptor: int) -> bool:
    return bool(_poll(descriptor, 0))


def _poll(descriptor: int, timeout_ms: int | None) -> list[tuple[int, int]]:
    # A process descriptor is readable once all threads of the process have ended.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll(timeout_ms)


def main() -> None:
    """Guard the session whose leader the first argument names. Standard input is the pipe of the resource tracker."""
    reports = os.dup(0)  # the tracker closes its standard input
    # The tracker handles signals, which only the main thread may.
    threading.Thread(target=_end_after, args=(int(sys.argv[1]),)).start()
    resource_tracker.main(reports)


if __name__ == "__main__":
    main()
