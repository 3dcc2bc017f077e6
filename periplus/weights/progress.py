"""Progress of long work on standard error.

Nothing is shown for the first second. Then a terminal shows one line that is redrawn, and anything else gets a line now
and then.
"""

import sys
from collections.abc import Callable, Iterator, Mapping

from periplus import clock
from periplus.values.weight_state import Tensor, WeightState
from periplus.view import units

Progress = Callable[[str, int, int], None]
"""Callback with what is being done ("hashing OLD"), bytes done, and bytes in all. An empty text ends and clears the
line."""

QUIET_S = 1.0
"""Seconds without output at the start of the work."""
REDRAW_S = 0.1
"""Seconds between two redraws of the line."""
LINE_S = 10.0
"""Seconds between two lines if the line cannot be redrawn."""


def stderr_progress() -> Progress:
    """Return the progress callback of a command."""
    return progress_of(sys.stderr.isatty(), _write, clock.monotonic_s)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def progress_of(can_redraw: bool, write: Callable[[str], None], now_s: Callable[[], float]) -> Progress:
    """Return a progress callback that calls `write`. Its line ends with the rate since the current `what` began."""
    started_s = shown_s = began_s = now_s()
    width, current, began_at = 0, "", 0

    def show(what: str, done: int, total: int) -> None:
        nonlocal shown_s, width, current, began_s, began_at
        time_s = now_s()
        if not what:
            if width:
                write(f"\r{' ' * width}\r")
            width = 0
            return
        if what != current:
            current, began_s, began_at = what, time_s, done
        if time_s - started_s < QUIET_S or time_s - shown_s < (REDRAW_S if can_redraw else LINE_S):
            return
        shown_s = time_s
        rate = (done - began_at) / max(time_s - began_s, 1e-3)
        text = f"{what}: {done * 100 // max(total, 1)} % of {units.size(total)}, {units.size(rate)}/s"
        write(f"\r{text.ljust(width)}" if can_redraw else f"{text}\n")
        width = max(width, len(text)) if can_redraw else 0

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
