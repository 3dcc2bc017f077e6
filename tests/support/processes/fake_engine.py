"""Processes that are started as vLLM's are: a core, and its rank, each with a block of shared memory.

They never end by themselves, ignore SIGTERM, and do not notice who dies.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import NamedTuple

DEADLINE_S = 60.0


class FakeProcess(NamedTuple):
    """A process of the engine, and the name of its block of shared memory."""

    pid: int
    block: str


def start_fake_engine() -> list[FakeProcess]:
    """Start both processes, and return them when both have their block."""
    context = multiprocessing.get_context("spawn")
    reading, writing = context.Pipe(duplex=False)
    context.Process(target=_core, args=(writing,)).start()
    writing.close()
    return [reading.recv(), reading.recv()]


def _core(found: "Connection[FakeProcess, None]") -> None:
    multiprocessing.get_context("spawn").Process(target=_rank, args=(found,)).start()
    _stay(found)


def _rank(found: "Connection[FakeProcess, None]") -> None:
    os.setpgid(0, 0)  # whoever kills the task's group does not reach it
    _stay(found)


def _stay(found: "Connection[FakeProcess, None]") -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    block = SharedMemory(create=True, size=1 << 12)
    found.send(FakeProcess(os.getpid(), block.name))
    found.close()
    time.sleep(600)


def is_alive(pid: int) -> bool:
    """Return whether a process runs: one that has ended stays until its parent has asked how."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def exists(block: str) -> bool:
    return Path("/dev/shm", block).exists()


def wait_for(true: Callable[[], bool], what: str) -> None:
    """Wait until something is true that other processes bring about."""
    until_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < until_s, f"waited in vain: {what}"
        time.sleep(0.01)
