"""Progress of long work on weights: what is being done, how much of it is done, and how fast it goes."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from periplus import clock
from periplus.cli.progress_line import ProgressLine, write_to_stderr
from periplus.values.weight_state import Tensor, WeightState
from periplus.view import units

Progress = Callable[[str, int, int], None]
"""Callback with what is being done ("hashing OLD"), bytes done, and bytes in all."""


@contextmanager
def stderr_progress() -> Iterator[Progress]:
    """Yield the progress callback of a command. Its line is cleared at the end."""
    line = ProgressLine.of_files(write_to_stderr, can_redraw=sys.stderr.isatty(), began_s=clock.monotonic_s())
    try:
        yield progress_on(line, clock.monotonic_s)
    finally:
        line.clear()


def progress_on(line: ProgressLine, now_s: Callable[[], float]) -> Progress:
    """Return a progress callback that shows what it is told on a line, with the rate since the current `what` began."""
    current, began_s, began_at = "", now_s(), 0

    def show(what: str, done: int, total: int) -> None:
        nonlocal current, began_s, began_at
        time_s = now_s()
        # The rate is that of the present kind of work alone.
        if what != current:
            current, began_s, began_at = what, time_s, done
        if line.is_due(time_s):
            rate = (done - began_at) / max(time_s - began_s, 1e-3)
            percent = done * 100 // max(total, 1)
            line.show(f"{what}: {percent} % of {units.size(total)}, {units.size(rate)}/s", time_s)

    return show


class Watched(Mapping[str, Tensor]):
    """A state that reports the bytes of each tensor that is read from it, to show progress."""

    def __init__(self, state: WeightState, read: Callable[[int], None]) -> None:
        self._state = state
        self._read = read

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._state[name]
        self._read(tensor.data.size)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)
