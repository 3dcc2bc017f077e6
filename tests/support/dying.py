"""A process that is gone within one of its writes, at whichever call a test names."""

import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

GONE = 9
"""The exit code of a process that died so."""

Call = tuple[Any, str]
"""A module or class, and the name of the function in it."""

OS_CALLS: tuple[Call, ...] = tuple((os, name) for name in ("write", "fsync", "replace", "mkdir", "unlink", "rmdir"))
"""What writes on disk are made of."""


def before_each_call(patch: pytest.MonkeyPatch, call: Call, act: Callable[[int], None]) -> None:
    """Runs `act` with the number of each call before it; half of what a call writes is written before."""
    home, attribute = call
    real, numbers = getattr(home, attribute), count(1)

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

    patch.setattr(home, attribute, counted)


def die_at(number: int) -> Callable[[int], None]:
    """Ends the process without a word at that call, as kill -9 does."""

    def act(call: int) -> None:
        if call == number:
            os._exit(GONE)

    return act


def in_a_child(work: Callable[[], object]) -> int:
    """The exit code of a forked process that does it."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work()
    finally:
        os._exit(0)


def num_calls(call: Call, work: Callable[[], object]) -> int:
    """Of a whole run of `work`, here."""
    numbers = [0]
    with pytest.MonkeyPatch.context() as patch:
        before_each_call(patch, call, numbers.append)
        work()
    return numbers[-1]
