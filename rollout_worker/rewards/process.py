"""The program of a reward process: it builds the functions that its worker names, and answers its calls one by one.

It is started as `python -m rollout_worker.rewards.process` with two pipes as standard input and output, which it takes
for itself: what functions print goes to the worker's log. It ends when the pipe closes, and the kernel kills it when
its worker dies, even while a function hangs. Everything runs in the main thread, since math-verify needs signals.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from rollout_worker.rewards import wire
from rollout_worker.rewards.functions.completions import BatchFunction, ScoredText
from rollout_worker.rewards.functions.registry import build_function

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


def main() -> None:
    """Serve the worker until it closes the pipe."""
    die_with_parent()
    pipes = taken_pipes()
    messages = pipes.messages()
    try:
        setup = next(messages)
        sys.path[:0] = [setup["folder"]] if setup["folder"] else []
        functions = [build_function(kind, settings) for kind, settings in setup["functions"]]
    except Exception as error:  # the root of foreign code: a user's module may raise anything
        pipes.say({"refused": text_of(error)})
        return
    pipes.say({"ready": True})
    for call in messages:
        _answer(pipes, functions[call["function"]], [ScoredText.of_json(each) for each in call["texts"]])


def _answer(pipes: Pipes, function: Any, texts: list[ScoredText]) -> None:
    if isinstance(function, BatchFunction):
        pipes.say(_reply(lambda: [_number(value) for value in function.score(texts)]))
        return
    for text in texts:
        pipes.say(_reply(lambda text=text: [_number(function(text))]))


def _reply(values: Any) -> Any:
    try:
        return {"values": values()}
    except Exception as error:  # the root of foreign code: a reward function may raise anything
        return {"raised": text_of(error)}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)  # also of a NumPy number or a tensor of one element


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


if __name__ == "__main__":
    main()
