"""The two random searches keep their time budget, improve over time, and are reproducible."""

import random
from collections.abc import Callable
from itertools import count

import pytest

from bench.planner_cases import small
from bench.planner_cases.baselines import genetic, random_search
from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import Problem, Rules

SEARCHES = [random_search.search, genetic.search]


def _cost_tables(rules: Rules = Rules()) -> CostTables:  # noqa: B008
    case = small.problem(7, small.DEVICES)
    return CostTables(Problem(fleet=case.fleet, workload=case.workload, rules=rules))


def _ticking() -> Callable[[], float]:
    ticks = count()
    return lambda: next(ticks) * 0.001


@pytest.mark.parametrize("search", SEARCHES)
def test_the_best_gets_better_and_is_the_last_of_the_trace(search: Callable[..., object]) -> None:
    seen: list[Incumbent] = []
    found = search(_cost_tables(), seed=0, budget_s=0.4, now_s=_ticking(), report=seen.append)
    assert isinstance(found, Found)
    values = [each.evaluation.step_s for each in found.trace]
    assert values == sorted(values, reverse=True)
    assert found.best == found.trace[-1] == seen[-1]
    assert all(each.bound is None for each in found.trace)


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_seed_finds_the_same(search: Callable[..., object]) -> None:
    first, second = (search(_cost_tables(), seed=3, budget_s=0.3, now_s=_ticking()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("search", SEARCHES)
def test_nothing_found_is_no_answer(search: Callable[..., object]) -> None:
    rules = Rules(forbidden_regions=frozenset({"east", "west", "south"}))
    found = search(_cost_tables(rules), seed=0, budget_s=0.2, now_s=_ticking())
    assert isinstance(found, BudgetExhausted)
    assert found.best is None


def test_the_interpreters_own_generator_is_left_as_it_was() -> None:
    random.seed(5)
    before = random.getstate()
    genetic.search(_cost_tables(), seed=0, budget_s=0.2, now_s=_ticking())
    assert random.getstate() == before


@pytest.mark.slow
def test_breeding_improves_on_as_many_random_ones_as_it_begins_with() -> None:
    better = 0
    for number in (5, 7, 17):
        case = small.problem(number, small.DEVICES)
        cost_tables = CostTables(Problem(fleet=case.fleet, workload=case.workload))
        first = random_search.search(cost_tables, seed=1, budget_s=genetic.POPULATION * 0.001, now_s=_ticking())
        found = genetic.search(cost_tables, seed=1, budget_s=1.0, now_s=_ticking())
        assert isinstance(first, Found)
        assert isinstance(found, Found)
        better += found.best.evaluation.step_s < first.best.evaluation.step_s
    assert better >= 2
