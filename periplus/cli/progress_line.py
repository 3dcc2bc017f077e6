"""The progress of long work on standard error: one line that is redrawn on a terminal, elsewhere a line at times.

Whoever works asks `is_due` before it makes a text, so that it may ask as often as it likes. Nothing is shown at the
beginning, because most work is short. The time comes in as an argument.
"""

import sys
from collections.abc import Callable
from math import inf

QUIET_S = 1.0
"""Seconds without output at the start of work on files. Chosen by hand, because most of it takes less."""

REDRAW_S = 0.1
"""Least seconds between two updates of the line on a terminal. Chosen by hand."""

LINE_S = 10.0
"""Least seconds between two lines about work on files where a line cannot be redrawn, as in a log file. Chosen by hand.
"""


class ProgressLine:
    """The line of one piece of work that began at `began_s`.

    `write` prints a text without a line break of its own. Nothing is shown for the first `quiet_s` seconds. If the line
    cannot be redrawn, a new one follows after `line_s` seconds at the earliest.
    """

    def __init__(
        self, write: Callable[[str], object], *, can_redraw: bool, began_s: float, quiet_s: float, line_s: float
    ) -> None:
        self._write = write
        self._can_redraw = can_redraw
        self._pause_s = REDRAW_S if can_redraw else line_s
        self._quiet_until_s = began_s + quiet_s
        self._shown_s = -inf
        self._width = 0

    @classmethod
    def of_files(cls, write: Callable[[str], object], *, can_redraw: bool, began_s: float) -> "ProgressLine":
        """Return the line for work on files, which is quiet for `QUIET_S` on a terminal and for `LINE_S` elsewhere."""
        quiet_s = QUIET_S if can_redraw else LINE_S
        return cls(write, can_redraw=can_redraw, began_s=began_s, quiet_s=quiet_s, line_s=LINE_S)

    def is_due(self, now_s: float) -> bool:
        """Return whether enough time has passed to show a text."""
        return now_s >= self._quiet_until_s and now_s - self._shown_s >= self._pause_s

    def show(self, text: str, now_s: float) -> None:
        """Show a text instead of the last one, or below it where the line cannot be redrawn."""
        self._shown_s = now_s
        if self._can_redraw:
            # Spaces cover what a longer text has left on the line.
            self._write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        else:
            self._write(f"{text}\n")

    def clear(self) -> None:
        """Erase the line from the terminal."""
        if self._width:
            self._write(f"\r{' ' * self._width}\r")
        self._width = 0


def write_to_stderr(text: str) -> None:
    """Print a text on standard error at once."""
    sys.stderr.write(text)
    sys.stderr.flush()
