"""A placement that misses its deadline gets units until it keeps it; one that is early loses units to cost less."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.incumbents.repair import repaired
from planner.methods.exact.method import search
from planner.problem.goal import Goal, Objective, Problem
from planner.problem.workload import Task
from tests.planner.methods.exact.conftest import two_regions, workload

SLOW_S = 40.0


def prices_within(problem: Problem, most_s: float) -> CostTables:
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=most_s)
    return CostTables(replace(problem, goal=goal))


def usd(cost_tables: CostTables, placement: Placement) -> float:
    estimate = evaluate(cost_tables, placement)
    assert isinstance(estimate, Evaluation), estimate
    return estimate.usd_per_hour


def with_units(placement: Placement, change: Callable[[int], int]) -> Placement:
    """Another number of units wherever generation has devices of its own."""
    group = placement.group_of(Task.GENERATION)
    pools = tuple(replace(pool, num_units=change(pool.num_units)) for pool in group.pools)
    changed = replace(group, pools=pools)
    return Placement(groups=tuple(changed if each is group else each for each in placement.groups))


@pytest.fixture(scope="module")
def apart() -> tuple[CostTables, Placement]:
    """A problem, and a good placement whose generation has several units of its own."""
    problem = Problem(fleet=two_regions(num_a100=2, num_l40s=2), workload=workload(eta=1))
    pins = ((Task.GENERATION, frozenset({"west"})), (Task.ACTOR_TRAINING, frozenset({"east"})))
    problem = replace(problem, rules=replace(problem.rules, pins=pins))
    fast = search(CostTables(problem), seed=0, budget_s=20.0, now_s=lambda: 0.0)
    best = getattr(fast, "best", None)
    assert best is not None
    assert sum(pool.num_units for pool in best.placement.group_of(Task.GENERATION).pools) > 1
    return prices_within(problem, best.evaluation.step_s * 1.05), best.placement


def test_a_placement_that_is_late_comes_in_time(apart: tuple[CostTables, Placement]) -> None:
    cost_tables, placement = apart
    late = with_units(placement, lambda num: max(1, num // 2))
    assert not isinstance(evaluate(cost_tables, late), Evaluation)
    found = repaired(cost_tables, late, float("inf"))
    assert found is not None
    assert usd(cost_tables, found) <= usd(cost_tables, placement)


def test_a_placement_that_is_early_gets_cheaper(apart: tuple[CostTables, Placement]) -> None:
    cost_tables, placement = apart
    patient = prices_within(cost_tables.problem, SLOW_S * 4)
    found = repaired(patient, placement, float("inf"))
    assert found is not None
    assert usd(patient, found) < usd(patient, placement)


def test_what_cannot_be_in_time_or_is_too_dear_is_none(apart: tuple[CostTables, Placement]) -> None:
    cost_tables, placement = apart
    assert repaired(prices_within(cost_tables.problem, 1e-3), placement, float("inf")) is None
    assert repaired(cost_tables, placement, 0.01) is None
