"""Settings change how a search proceeds, never what it proves."""

from dataclasses import replace
from functools import cache

import pytest

from bench.planner_cases import small
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Infeasible
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import ignore, never
from planner.methods.exact.search import Search
from planner.methods.exact.settings import DEFAULT_SETTINGS, ExactSettings
from planner.problem.goal import Goal
from tests.support.cases.tiers import rest_is_slow
from tests.support.planner.searches import still

GAP = 4e-5
"""Relative difference of two values that were both proved within a gap of 2e-5."""
OTHERS = {
    "divides early": replace(DEFAULT_SETTINGS, loose_share=0.0, late_share=0.0, waits_share=0.0, window_gain=0.0),
    "divides late": replace(DEFAULT_SETTINGS, loose_share=1.0, late_share=1.0, waits_share=1.0, window_gain=1.0),
    "coarse models": replace(DEFAULT_SETTINGS, tangent_error=0.1, level_step=0.01, window_tangents=2),
    "fine models": replace(DEFAULT_SETTINGS, tangent_error=1e-4, level_step=0.0, window_tangents=21),
    "no first placements": replace(DEFAULT_SETTINGS, first_placements_regions=0),
    "one pool first": replace(DEFAULT_SETTINGS, one_pool_min_classes=0),
    "uneven divisions": replace(DEFAULT_SETTINGS, division_margin=0.02, others_margin=0.02, others_below=0.2),
}


@cache
def outcome(number: int, settings: ExactSettings) -> Found[Incumbent] | BudgetExhausted[Incumbent]:
    problem = replace(small.problem(number, small.DEVICES), goal=Goal())
    found = Search(
        cost_tables=CostTables(problem),
        gap=0.0,
        budget_s=30.0,
        now_s=still,
        report=ignore,
        should_stop=never,
        settings=settings,
    ).run()
    assert not isinstance(found, Infeasible)
    return found


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("number", rest_is_slow([26, 16]))
def test_no_settings_prove_a_wrong_bound(number: int, name: str) -> None:
    usual, other = outcome(number, DEFAULT_SETTINGS), outcome(number, OTHERS[name])
    assert isinstance(usual, Found)
    assert other.best is not None
    assert other.best.bound is not None
    least_s = usual.best.evaluation.step_s
    assert other.best.bound <= least_s * (1 + GAP)
    assert other.best.evaluation.step_s >= least_s * (1 - GAP)


def test_a_subproblem_that_is_given_up_stays_in_the_bound() -> None:
    """Programs are too few and too rough to prove anything, and the outcome says so."""
    few = replace(DEFAULT_SETTINGS, max_programs=0, program_gap_divisor=1e-3, loose_share=1.0, waits_share=1.0)
    usual, found = outcome(26, DEFAULT_SETTINGS), outcome(26, few)
    assert isinstance(usual, Found)
    assert isinstance(found, BudgetExhausted)
    assert found.bound is not None
    assert 0 < found.bound < usual.best.evaluation.step_s
