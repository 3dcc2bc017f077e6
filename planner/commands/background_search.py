"""Run a search in a background thread, so that the operator sees its progress and can end it at any moment.

The main thread waits, draws the progress and receives interrupts. The first interrupt asks the search to stop and waits
for its answer; the second ends the command. A search that does not stop soon after it was asked to is abandoned: its
thread goes on until the command ends, and nobody waits for its answer.
"""

import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import click

from periplus import clock
from periplus.cli.native_output import native_output_on_stderr
from periplus.cli.progress_line import ProgressLine, write_to_stderr
from periplus.errors import EXIT_INTERRUPTED, TimedOut
from periplus.process import threads
from periplus.view import units
from periplus.view.terminal.visible import say
from planner.answer.outcome import Incumbent
from planner.explain.effects import value_words
from planner.problem.goal import Goal
from planner.solve import Thinking

T = TypeVar("T")

OVERRUN_S = 1.0
"""Seconds beyond its budget after which a search is asked to stop. Chosen by hand."""
_LEFT_S = 2.0
"""Seconds after which a search that was asked to stop is abandoned. Chosen by hand."""
_INTERRUPTED_S = 15.0
"""Largest number of seconds that an interrupted search gets to stop. It is long because the operator can end the wait
with a second interrupt. Chosen by hand."""
_LOOK_S = 0.05
"""Seconds between two looks at whether the search has ended. Chosen by hand."""
_QUIET_S = 0.5
"""Seconds before the first progress line, so that a quick search shows none. Chosen by hand."""
_LINE_S = 2.0
"""Least seconds between two progress lines where standard error is not a terminal. Chosen by hand."""


@dataclass(slots=True)
class Interrupt:
    """Flag between the main thread and a search: it asks the search to stop."""

    follows: str = "the best so far follows"
    """Sentence that tells the operator, after an interrupt, what is still printed."""
    is_set: bool = False
    """Whether the operator interrupted."""
    is_late: bool = False
    """Whether the current search has used up its time."""

    def should_stop(self) -> bool:
        """Return whether the search should stop, for whatever reason."""
        return self.is_set or self.is_late

    def leave(self) -> None:
        """End the command with the exit code of an interrupted one if the operator interrupted.

        Call it once everything is printed. Raises: click.exceptions.Exit.
        """
        if self.is_set:
            raise click.exceptions.Exit(EXIT_INTERRUPTED)


@dataclass(slots=True)
class _Work(Generic[T]):
    """A call that runs in a thread, with its answer or error once `ended` is set."""

    call: Callable[[], T]
    ended: threading.Event = field(default_factory=threading.Event)
    answer: T | None = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.answer = self.call()
        except BaseException as error:  # The root of a thread: the waiting thread raises the error again.
            self.error = error
        self.ended.set()


def run_in_background(
    call: Callable[[], T], show: Callable[[], None], interrupt: Interrupt, limit_s: float = math.inf
) -> T:
    """Run `call` in a thread and return its answer; `show` is called repeatedly in the meantime.

    After `limit_s` seconds `interrupt` asks the call to stop. Raises: what `call` raises; KeyboardInterrupt at the
    operator's second interrupt; TimedOut if the call was asked to stop and did not end soon, in which case its thread
    is abandoned.
    """
    with native_output_on_stderr():
        return _wait_for_answer(_Work(call), show, interrupt, clock.monotonic_s() + limit_s)


def is_abandoned_search_running() -> bool:
    """Return whether an abandoned search still runs. It uses a core until the command ends."""
    return threads.is_any_running()


def _wait_for_answer(work: _Work[T], show: Callable[[], None], interrupt: Interrupt, end_s: float) -> T:
    # A flag of the search before must not stop this one.
    interrupt.is_late = False
    threads.start(work.run)
    while not work.ended.is_set():
        try:
            if clock.monotonic_s() > end_s:
                # The search was asked to stop before, by its time or by the operator, and has not.
                if interrupt.should_stop():
                    raise TimedOut("the search did not end in time; allow more with --budget-s")
                # First a request to stop, then a little more time to return the best so far.
                interrupt.is_late, end_s = True, clock.monotonic_s() + _LEFT_S
            work.ended.wait(_LOOK_S)
            show()
        # Python delivers the operator's interrupt to the main thread, which is this one; the search goes on.
        except KeyboardInterrupt:
            if interrupt.is_set:
                raise
            interrupt.is_set = True
            # An interrupted search keeps its own end if that is sooner.
            end_s = min(end_s, clock.monotonic_s() + _INTERRUPTED_S)
            say(f"\ninterrupted: {interrupt.follows}; interrupt again to end without it", err=True)
    if work.error is not None:
        raise work.error
    assert work.answer is not None
    return work.answer


@dataclass(slots=True)
class SearchProgress:
    """Progress of a search on standard error: one line that is redrawn on a terminal, elsewhere a line now and then."""

    goal: Goal | None
    """Goal of the search. None if the work is not a search, such as a simulation."""
    what: str = ""
    """Name of the method or of the work, which begins each progress line."""
    can_redraw: bool = field(default_factory=lambda: sys.stderr.isatty())
    began_s: float = field(default_factory=clock.monotonic_s)
    best: Incumbent | None = None
    """Best incumbent that the search has reported."""
    trace: list[tuple[float, Incumbent]] = field(default_factory=list)
    """Pairs (seconds since the beginning, incumbent) of all reports."""
    _line: ProgressLine = field(init=False)
    _text: str = ""

    def __post_init__(self) -> None:
        self._line = ProgressLine(
            write_to_stderr, can_redraw=self.can_redraw, began_s=self.began_s, quiet_s=_QUIET_S, line_s=_LINE_S
        )

    def report(self, incumbent: Incumbent) -> None:
        """Take a better incumbent. The search calls it from its own thread."""
        self.best = incumbent
        self.trace.append((clock.monotonic_s() - self.began_s, incumbent))

    def show(self) -> None:
        """Print the progress line if it has changed and enough time has passed since the last one."""
        now_s = clock.monotonic_s()
        if not self._line.is_due(now_s):
            return
        text = progress_line(self.what, self.goal, now_s - self.began_s, self.best)
        # In a log, a line whose text after the time is the same as before says nothing new.
        if not self.can_redraw and self._text == text.partition(":")[2]:
            return
        self._text = text.partition(":")[2]
        self._line.show(text, now_s)

    def clear(self) -> None:
        """Erase the progress line from the terminal."""
        self._line.clear()

    def thinking(self, budget_s: float, seed: int, interrupt: Interrupt) -> Thinking:
        """Return the budget, clock, seed and callbacks for a search whose progress this object shows."""
        return Thinking(
            budget_s=budget_s, now_s=clock.monotonic_s, seed=seed, report=self.report, should_stop=interrupt.should_stop
        )


def progress_line(what: str, goal: Goal | None, elapsed_s: float, best: Incumbent | None) -> str:
    """Return one line on a search's progress, such as `exact 3.2 s: 12.3 s a step, at least 12.1 (gap 1.6 %)`."""
    begin = f"{what} {elapsed_s:.1f} s".strip()
    if goal is None:
        return f"{begin}: still running"
    if best is None:
        return f"{begin}: no placement yet"
    bound = "nothing proved yet"
    if best.bound:
        bound = f"at least {units.short(best.bound)} (gap {best.gap(goal) * 100:.2f} %)"
    return f"{begin}: {value_words(goal, best.value(goal))}, {bound}"
