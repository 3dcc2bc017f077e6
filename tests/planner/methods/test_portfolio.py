"""`auto` gives each method its share of the time, keeps its time budget, and reports only bounds that hold."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from bench.planner_cases.solving import METHODS
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, RefutedBound
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods import portfolio
from planner.methods.portfolio import auto
from planner.problem.goal import Problem
from tests.support.cases.tiers import rest_is_slow
from tests.support.planner.searches import problem


def ticking(tick_s: float) -> Callable[[], float]:
    """A clock that goes on by so much at each look."""
    ticks = itertools.count()
    return lambda: next(ticks) * tick_s


@cache
def best() -> Found[Incumbent]:
    """What `auto` answers, once for all tests."""
    outcome = auto(CostTables(problem()), seed=0, budget_s=1e6, now_s=ticking(1e-6))
    assert isinstance(outcome, Found)
    return outcome


def test_what_is_proved_is_proved_and_no_bound_is_above_the_answer() -> None:
    asked = problem()
    told: list[Incumbent] = []
    cost_tables = CostTables(asked)
    outcome = auto(cost_tables, seed=0, budget_s=1e6, now_s=ticking(1e-6), report=told.append)
    assert isinstance(outcome, Found)
    assert list(outcome.trace) == told
    assert outcome.best.gap(asked.goal) <= 0.01
    value = outcome.best.value(asked.goal)
    for each in outcome.trace:
        assert each.bound is None or each.bound <= value * (1 + 1e-9)
        assert evaluate(cost_tables, each.placement) == each.evaluation


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_stop_or_an_ended_budget_gives_the_best_so_far(algorithm: str) -> None:
    asked = problem(algorithm=algorithm, is_async=False)
    told: list[Incumbent] = []
    outcome = auto(
        CostTables(asked), seed=0, budget_s=1.0, now_s=ticking(1e-9), report=told.append, should_stop=lambda: bool(told)
    )
    assert isinstance(outcome, (Found, BudgetExhausted))
    assert outcome.best == told[-1]


@pytest.mark.parametrize("name", rest_is_slow(["streamrl", "areal_hex", "hetrl_bounded"]))
def test_no_heuristic_is_better_than_a_proved_answer(name: str) -> None:
    asked: Problem = problem()
    theirs = METHODS[name](CostTables(asked), seed=0, budget_s=1.0, now_s=ticking(2e-3))
    assert isinstance(theirs, Found)
    assert best().best.value(asked.goal) <= theirs.best.value(asked.goal) * (1 + 1e-9)


def test_a_bound_above_a_placement_that_is_known_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method whose bound is wrong must not make an answer look proved, whoever finds the better placement."""
    asked = problem()
    cost_tables = CostTables(asked)
    good = best()
    worse = next(each for each in good.trace if each.value(asked.goal) > good.best.value(asked.goal) * 1.02)
    wrong = replace(worse, bound=worse.value(asked.goal))

    def lying(cost_tables: CostTables, *, report: Callable[[Incumbent], None], **more: object) -> Found[Incumbent]:
        report(wrong)
        report(replace(good.best, bound=None))
        return Found(best=wrong, trace=(wrong,))

    monkeypatch.setattr(portfolio, "exact", lying)
    outcome = auto(cost_tables, seed=0, budget_s=1.0, now_s=ticking(1e-3))
    assert isinstance(outcome, BudgetExhausted)
    assert outcome.best is not None
    assert outcome.best.value(asked.goal) <= good.best.value(asked.goal)
    assert outcome.bound is None
    value = worse.value(asked.goal)
    assert outcome.refuted == RefutedBound(method="exact", bound=value, value=good.best.value(asked.goal))
    assert outcome.best.bound is None
