"""A process that is gone within one of its writes, at whichever call a test names."""

import multiprocessing
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch

DEADLINE_S = 400.0
"""Far beyond what a child does; one that hangs fails its test instead of the whole run."""

GONE = 9
"""The exit code of a process that died so."""

Call = tuple[Any, str]
"""A module or class, and the name of the function in it."""

OS_CALLS: tuple[Call, ...] = tuple((os, name) for name in ("write", "fsync", "replace", "mkdir", "unlink", "rmdir"))
"""The system calls of which writes on disk are made."""


def before_each_call(patch: pytest.MonkeyPatch, call: Call, act: Callable[[int], None]) -> None:
    """Run `act` before each call with its number. Of a call that writes, half is written before."""
    owner, attribute = call
    real, numbers = getattr(owner, attribute), count(1)

    def counted(*arguments: Any, **keywords: Any) -> Any:
        number, *first, data = next(numbers), *arguments
        done = 0
        if attribute == "write":
            done = len(data) // 2
            real(*first, data[:done])
            data = data[done:]
        act(number)
        found = real(*first, data, **keywords)
        return found + done if attribute == "write" else found

    patch.setattr(owner, attribute, counted)


def die_at(number: int) -> Callable[[int], None]:
    """Return an action that ends the process at that call without a word, as kill -9 does."""

    def act(call: int) -> None:
        if call == number:
            os._exit(GONE)

    return act


def in_a_child(work: Callable[..., object], *arguments: object) -> int:
    """Return the exit code of a child process that calls `work`, a function of a module, with picklable arguments.

    The child is forked from a server that has imported torch and has one thread. A fork of the test process itself, in
    which gRPC and progress bars left threads, can hang for ever in the child.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.processes.dying_imports"])
    child = context.Process(target=_run, args=(work, arguments))
    child.start()
    child.join(DEADLINE_S)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError(f"the child process still ran after {DEADLINE_S:.0f} s")
    return child.exitcode


def _run(work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    try:
        work(*arguments)
    finally:
        os._exit(0)


def num_calls(call: Call, work: Callable[[], object]) -> int:
    """Return how often `work` makes a call, run to its end in this process."""
    numbers = [0]
    with pytest.MonkeyPatch.context() as patch:
        before_each_call(patch, call, numbers.append)
        work()
    return numbers[-1]
