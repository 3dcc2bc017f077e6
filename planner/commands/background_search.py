"""A search in a thread of its own, so that an operator sees how it goes and can end it at any moment.

The first interrupt asks the search to stop and waits for its answer, the second gives up.
"""

import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import click

from periplus import clock
from periplus.errors import EXIT_INTERRUPTED, TimedOut
from periplus.process import threads
from periplus.view import units
from planner.answer.outcome import Incumbent
from planner.commands.native import native_output_on_stderr
from planner.problem.goal import Goal, Objective
from planner.solve import Thinking

T = TypeVar("T")

OVERRUN_S = 1.0
"""How far beyond its budget a search may go before it is asked to stop."""
_LEFT_S = 2.0
"""How long after that it is left alone."""
_INTERRUPTED_S = 15.0
"""How long after an operator's interrupt it is left alone; they can interrupt again."""
_LOOK_S = 0.05
_REDRAW_S = 0.1
_QUIET_S = 0.5
_LINE_S = 2.0
"""Between two lines where nothing can be drawn over."""


@dataclass(slots=True)
class Interrupt:
    """Set by an operator's interrupt, read by the search."""

    follows: str = "the best so far follows"
    """What the operator is told when they interrupt."""
    is_set: bool = False
    is_late: bool = False
    """Its time is over."""

    def should_stop(self) -> bool:
        return self.is_set or self.is_late

    def leave(self) -> None:
        """Ends the command with the exit code of an interrupted one, if it was. Call when everything is printed."""
        if self.is_set:
            raise click.exceptions.Exit(EXIT_INTERRUPTED)


@dataclass(slots=True)
class _Work(Generic[T]):
    """What the thread leaves behind."""

    call: Callable[[], T]
    ended: threading.Event = field(default_factory=threading.Event)
    answer: T | None = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.answer = self.call()
        except BaseException as error:  # a task's root: raised again where it is waited for
            self.error = error
        self.ended.set()


def thought(call: Callable[[], T], show: Callable[[], None], interrupt: Interrupt, limit_s: float = math.inf) -> T:
    """The answer of `call`, which runs in a thread while `show` is called now and then.

    After `limit_s` it is asked to stop. Raises: what `call` raises; KeyboardInterrupt at the second interrupt; TimedOut
    where no answer comes soon after it was asked to stop: then it is left alone.
    """
    with native_output_on_stderr():
        return _thought(_Work(call), show, interrupt, clock.monotonic_s() + limit_s)


def is_search_left_alone() -> bool:
    """Whether a search goes on that nobody waits for any more. It takes a core until the command ends."""
    return threads.is_any_running()


def _thought(work: _Work[T], show: Callable[[], None], interrupt: Interrupt, end_s: float) -> T:
    interrupt.is_late = False
    threads.start(work.run)
    while not work.ended.is_set():
        try:
            if clock.monotonic_s() > end_s:
                if interrupt.should_stop():
                    raise TimedOut("the search did not end in time; allow more with --budget-s")
                interrupt.is_late, end_s = True, clock.monotonic_s() + _LEFT_S
            work.ended.wait(_LOOK_S)
            show()
        except KeyboardInterrupt:
            if interrupt.is_set:
                raise
            interrupt.is_set = True
            end_s = min(end_s, clock.monotonic_s() + _INTERRUPTED_S)
            click.echo(f"\ninterrupted: {interrupt.follows} (again: nothing does)", err=True)
    if work.error is not None:
        raise work.error
    assert work.answer is not None
    return work.answer


@dataclass(slots=True)
class SearchProgress:
    """How a search goes, on standard error: one line that is drawn over, or a line now and then elsewhere."""

    goal: Goal | None
    """None: what is shown is no search."""
    what: str = ""
    can_redraw: bool = field(default_factory=lambda: sys.stderr.isatty())
    began_s: float = field(default_factory=clock.monotonic_s)
    best: Incumbent | None = None
    trace: list[tuple[float, Incumbent]] = field(default_factory=list)
    _shown_s: float = 0.0
    _text: str = ""
    _width: int = 0

    def report(self, incumbent: Incumbent) -> None:
        """Called by the search, from its thread."""
        self.best = incumbent
        self.trace.append((clock.monotonic_s() - self.began_s, incumbent))

    def show(self) -> None:
        """Draw what is new."""
        now_s = clock.monotonic_s()
        if now_s - self.began_s < _QUIET_S or now_s - self._shown_s < (_REDRAW_S if self.can_redraw else _LINE_S):
            return
        text = progress_line(self.what, self.goal, now_s - self.began_s, self.best)
        if not self.can_redraw and self._text == text.partition(":")[2]:
            return
        self._shown_s, self._text = now_s, text.partition(":")[2]
        if self.can_redraw:
            click.echo(f"\r{text.ljust(self._width)}", nl=False, err=True)
            self._width = len(text)
        else:
            click.echo(text, err=True)

    def clear(self) -> None:
        """The search is over."""
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", nl=False, err=True)
        self._width = 0

    def thinking(self, budget_s: float, seed: int, interrupt: Interrupt) -> Thinking:
        """What a search is handed."""
        return Thinking(
            budget_s=budget_s, now_s=clock.monotonic_s, seed=seed, report=self.report, should_stop=interrupt.should_stop
        )


def progress_line(what: str, goal: Goal | None, elapsed_s: float, best: Incumbent | None) -> str:
    """`exact 3.2 s: 12.3 s a step, at least 12.1 (gap 1.6 %)`."""
    begin = f"{what} {elapsed_s:.1f} s".strip()
    if goal is None:
        return f"{begin}: still at it"
    if best is None:
        return f"{begin}: no placement yet"
    bound = "nothing proved yet"
    if best.bound:
        bound = f"at least {units.short(best.bound)} (gap {best.gap(goal) * 100:.2f} %)"
    return f"{begin}: {value_words(goal, best.value(goal))}, {bound}"


def value_words(goal: Goal, value: float) -> str:
    """An objective value with its unit."""
    if goal.objective is Objective.COST_AT_THROUGHPUT:
        return f"{value:,.2f} dollars an hour"
    return f"{units.short(value)} s a step"
