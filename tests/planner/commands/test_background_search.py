import ctypes
import threading
from dataclasses import replace

import click
import pytest

from periplus import clock
from planner.commands.background_search import Interrupt, SearchProgress, progress_line, run_in_background
from planner.problem.goal import Goal, Objective
from tests.support.gpu_plan import estimate

BEST = estimate()[1]


def test_an_answer_is_waited_for_and_shown_on_the_way() -> None:
    shown = threading.Event()

    def search() -> int:
        assert shown.wait(10)
        return 3

    assert run_in_background(search, shown.set, Interrupt()) == 3


def test_what_native_code_prints_is_no_part_of_the_result(capfd: pytest.CaptureFixture[str]) -> None:
    def search() -> int:
        return int(ctypes.CDLL(None).printf(b"a solver's own line\n"))  # into the C library's buffer, flushed whenever

    click.echo("before")
    assert run_in_background(search, lambda: None, Interrupt()) == 20
    click.echo("after")
    printed = capfd.readouterr()
    assert printed.out == "before\nafter\n"
    assert "a solver's own line" in printed.err


def test_what_a_search_raises_is_raised_where_it_is_waited_for() -> None:
    def search() -> int:
        raise ZeroDivisionError("x")

    with pytest.raises(ZeroDivisionError):
        run_in_background(search, lambda: None, Interrupt())


def test_the_first_interrupt_stops_the_search_and_its_answer_counts(capsys: pytest.CaptureFixture[str]) -> None:
    interrupt = Interrupt()

    def search() -> str:
        while not interrupt.should_stop():
            pass
        return "the best so far"

    def press() -> None:
        if not interrupt.is_set:
            raise KeyboardInterrupt

    assert run_in_background(search, press, interrupt) == "the best so far"
    assert "interrupted" in capsys.readouterr().err
    with pytest.raises(click.exceptions.Exit) as left:
        interrupt.leave()
    assert left.value.exit_code == 130


def test_the_second_interrupt_gives_up() -> None:
    over = threading.Event()

    def press() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_background(over.wait, press, Interrupt())
    over.set()


def test_nobody_is_sent_away_without_an_interrupt() -> None:
    Interrupt().leave()


def test_progress_says_the_best_and_what_is_proved() -> None:
    goal = Goal()
    assert progress_line("exact", goal, 1.24, None) == "exact 1.2 s: no placement yet"
    line = progress_line("exact", goal, 3.0, BEST)
    assert line.startswith("exact 3.0 s: ")
    assert line.endswith("(gap 10.00 %)")
    assert progress_line("", goal, 3.0, replace(BEST, bound=None)).endswith("nothing proved yet")
    cost = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=100.0)
    assert "dollars an hour" in progress_line("", cost, 3.0, BEST)


@pytest.mark.parametrize("can_redraw", [True, False])
def test_progress_is_one_line_on_a_terminal_and_a_line_now_and_then_elsewhere(
    can_redraw: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])
    progress = SearchProgress(goal=Goal(), what="auto", can_redraw=can_redraw, began_s=0.0)
    for at_s in (0.1, 1.0, 3.5, 6.0, 9.0):
        now_s[0] = at_s
        if at_s == 6.0:
            progress.report(BEST)
        progress.show()
    progress.clear()
    text = capsys.readouterr().err
    if can_redraw:
        assert text.count("\n") == 0
        assert text.endswith("\r")
    else:
        assert [line.split(":")[0] for line in text.splitlines()] == ["auto 1.0 s", "auto 6.0 s"]
    assert [at_s for at_s, _ in progress.trace] == [6.0]
