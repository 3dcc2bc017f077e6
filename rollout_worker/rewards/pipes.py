"""What the processes of rewards and environments have in common: their pipes to the worker, and their end with it.

It imports little, since a worker may start many such processes at once.
"""

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import Any

from rollout_worker.rewards import wire

PR_SET_PDEATHSIG = 1
"""Number of the `prctl` operation that sets the signal which a process gets when its parent dies (linux/prctl.h)."""

ERROR_CHARACTERS = 500
"""Characters of an error's text that are sent; the rest is cut. Chosen by hand."""


class Pipes:
    """The two pipes to the worker."""

    def __init__(self, reading: int, writing: int) -> None:
        self._in, self._out = os.fdopen(reading, "rb"), writing

    def messages(self) -> Iterator[Any]:
        """Yield what the worker says, until it closes the pipe."""
        while len(header := self._in.read(wire.LENGTH.size)) == wire.LENGTH.size:
            yield wire.read(self._in.read(*wire.LENGTH.unpack(header)))

    def say(self, message: Any) -> None:
        """Send one message."""
        content = memoryview(wire.framed(message))
        while content:
            content = content[os.write(self._out, content) :]


def text_of(error: Exception) -> str:
    """Return an error's class and text, cut to ERROR_CHARACTERS."""
    return f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os._exit(1)


def taken_pipes() -> Pipes:
    """Return the pipes of standard input and output, which then lead to nowhere and to the log."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return Pipes(reading, writing)
