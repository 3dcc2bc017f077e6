"""What the processes of rewards and environments have in common: their pipes to the worker, and errors as text.

It imports little, since a worker may start many such processes at once.
"""

import os
import traceback
from collections.abc import Iterator
from typing import Any

from rollout_worker.rewards import wire

ERROR_CHARACTERS = 500
"""Characters of an error's text that are sent; the rest is cut. Chosen by hand."""


class Pipes:
    """The two pipes to the worker. A copy of this process, which the user's code has made by forking, is not heard."""

    def __init__(self, reading: int, writing: int) -> None:
        self._in, self._out = os.fdopen(reading, "rb"), writing
        self._owner = os.getpid()

    def messages(self) -> Iterator[Any]:
        """Yield what the worker says, until it closes the pipe."""
        while len(header := self._in.read(wire.LENGTH.size)) == wire.LENGTH.size:
            yield wire.read(self._in.read(*wire.LENGTH.unpack(header)))

    def say(self, message: Any) -> None:
        """Send one message. A copy of this process ends here."""
        if os.getpid() != self._owner:
            os._exit(0)
        content = memoryview(wire.framed(message))
        while content:
            content = content[os.write(self._out, content) :]


def text_of(error: Exception, folder: str | None = None) -> str:
    """Return an error's class and text, cut to ERROR_CHARACTERS, and where in the folder's files it was raised."""
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
    for frame in reversed(traceback.extract_tb(error.__traceback__)) if folder else ():
        if frame.filename.startswith(f"{folder}/"):
            return f"{text} (line {frame.lineno} of {frame.filename.removeprefix(f'{folder}/')})"
    return text


def taken_pipes() -> Pipes:
    """Return the pipes of standard input and output, which then lead to nowhere and to the log."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return Pipes(reading, writing)
