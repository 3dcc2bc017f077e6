"""After Ctrl-C during a search the result so far is printed and marked as incomplete, and the exit code is 130."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from periplus.__main__ import run
from planner import solve
from planner.answer.outcome import BudgetExhausted, Outcome
from planner.cost.tables.cost_tables import CostTables
from tests.support.planner.quick_method import quick

Capture = pytest.CaptureFixture[str]
_LONG_S = 10.0


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A shell that starts tests in the background has them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressed(at_call: int, *, finds: bool) -> Callable[[str], Callable[..., Outcome]]:
    """Methods of which the one that is called as the `at_call`th is interrupted, before or after it found something."""
    calls = [0]

    def search(cost_tables: CostTables, *, should_stop: Callable[[], bool], **options: Any) -> Outcome:
        calls[0] += 1
        if calls[0] != at_call:
            return quick(cost_tables, should_stop=should_stop, **options)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        until_s = time.monotonic() + _LONG_S
        while not should_stop():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        if finds:
            return quick(cost_tables, should_stop=should_stop, **options)
        return BudgetExhausted(best=None, bound=None)

    return lambda name: search


def test_before_the_first_placement(
    workload: str, gpu_fleet: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(solve, "method_of", pressed(1, finds=False))
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "interrupted before any plan was found"


def test_after_it_and_before_what_else_was_asked(
    workload: str, gpu_fleet: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(solve, "method_of", pressed(1, finds=True))
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study", "--explain", "--compare"]) == 130
    out, err = capsys.readouterr()
    assert out.startswith("method quick, trainer in us")
    assert "simulated" not in out
    assert "interrupted before --explain and --compare" in err


def test_while_it_is_explained(
    plan_file: str, workload: str, gpu_fleet: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(solve, "method_of", pressed(3, finds=True))
    assert run(["plan", "explain", plan_file, "-o", "json"]) == 130
    out, err = capsys.readouterr()
    tree = json.loads(out)
    assert tree["num_answered"] == len(tree["lifts"]) == 2
    assert tree["num_asked"] > 2
    assert "interrupted: what was answered so far follows" in err
    monkeypatch.setattr(solve, "method_of", pressed(1, finds=True))
    assert run(["plan", "explain", plan_file]) == 130
    assert f"(interrupted: 0 of {tree['num_asked']} questions were answered)" in capsys.readouterr().out
    monkeypatch.setattr(solve, "method_of", pressed(2, finds=True))
    words = ["--study", "--no-simulate", "--explain", "--compare"]
    assert run(["plan", workload, "--fleet", gpu_fleet, *words]) == 130
    out, err = capsys.readouterr()
    assert "(interrupted: 0 of " in out
    assert "interrupted before --compare" in err


@pytest.mark.parametrize("finds", [True, False])
def test_while_methods_are_compared(
    finds: bool, workload: str, gpu_fleet: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    words = ["--study", "--methods", "exact,hetrl,areal_hex,auto", "--budget-s", "1"]
    monkeypatch.setattr(solve, "method_of", pressed(2, finds=finds))
    assert run(["plan", "compare", workload, "--fleet", gpu_fleet, *words]) == 130
    text = capsys.readouterr().out
    assert "(interrupted: hetrl was cut short, and areal_hex, auto did not run)" in text
    assert ("interrupted before it had a placement" in text) is not finds
    monkeypatch.setattr(solve, "method_of", pressed(3, finds=finds))
    assert run(["plan", "compare", workload, "--fleet", gpu_fleet, *words, "-o", "json"]) == 130
    tree = json.loads(capsys.readouterr().out)
    assert (tree["cut_short"], tree["not_asked"]) == (["areal_hex"], ["auto"])
    assert [each["method"] for each in tree["methods"]] == ["exact", "hetrl", "areal_hex"]
