"""Building blocks of models cut off nothing that can happen, and are tight where they should be."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.program.linear_model import INFINITE, LinearModel
from planner.methods.exact.program.ortools_solver import solve_relaxed, solve_whole
from planner.methods.exact.relaxation.row_builders import (
    add_weighted_at_most,
    busy_time_variable,
    highest_level,
    limit_by_routes,
)
from planner.methods.exact.relaxation.variables import UnitVariables
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.reachable_candidates import units_at
from planner.problem.goal import Problem
from planner.problem.workload import Task

LONGEST = 1.0
ERROR = 1e-3


def least_busy(counts: list[float], rates: list[float], cuts: list[float]) -> float:
    """The least busy time that the rows allow for these counts."""
    model = LinearModel()
    at = model.variables(counts, whole=False)
    busy = busy_time_variable(model, at, np.array(rates), LONGEST, cuts, error=ERROR)
    model.cost[busy] = 1.0
    for x, count in zip(at.tolist(), counts, strict=True):
        model.low[x] = count
    return solve_relaxed(model).bound


positive = st.floats(min_value=0.5, max_value=20.0)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=4))
def test_busy_time_is_never_above_the_true_one_and_hardly_below(units: list[tuple[float, float]]) -> None:
    counts, rates = ([pair[i] for pair in units] for i in (0, 1))
    true = 1.0 / sum(count * rate for count, rate in units)
    found = least_busy(counts, rates, [])
    if true <= LONGEST:
        assert true - 2 * ERROR <= found <= true * (1 + 1e-6) + 1e-9


def test_a_cut_makes_busy_time_exact_at_its_rate() -> None:
    rate = 3.7
    assert least_busy([1.0], [rate], [rate]) == pytest.approx(1 / rate, rel=1e-6)


def test_a_weighted_sum_is_at_most_the_other_side() -> None:
    model = LinearModel()
    at, limit = model.variables([10.0, 10.0], whole=False), model.variable(0.0, 6.0)
    model.cost[int(at[0])] = -1.0
    add_weighted_at_most(model, at, np.array([2.0, 1.0]), [(limit, 1.0)])
    assert solve_relaxed(model).objective == pytest.approx(-3.0)


@pytest.fixture
def units(make_problem: Callable[..., Problem]) -> tuple[ProblemArrays, LinearModel, UnitVariables]:
    """Units that generate, with the trainer in the first of two regions."""
    data, model = ProblemArrays(CostTables(make_problem(eta=1)), INFINITE, 1), LinearModel()
    of = units_at(data, (Task.GENERATION,), 0)
    return data, model, UnitVariables(of=of, at=model.variables(of.most, whole=True))


def test_the_highest_level_is_that_of_the_most_distant_unit_in_use(
    units: tuple[ProblemArrays, LinearModel, UnitVariables],
) -> None:
    data, model, of = units
    levels = np.where(of.of.region == 0, 1.0, 4.0)
    steps = highest_level(data, model, of, levels, 1.0, is_fine=True)
    for x, value in steps:
        model.cost[x] = value
    near, far = (int(of.at[of.of.region == region][0]) for region in (0, 1))
    model.low[near] = 1.0
    assert solve_whole(model, limit_s=5.0, gap=0.0).objective == pytest.approx(1.0)
    model.low[far] = 1.0
    assert solve_whole(model, limit_s=5.0, gap=0.0).objective == pytest.approx(4.0)
    # The linear relaxation says less, but something.
    assert 1.0 < solve_relaxed(model).objective <= 4.0 + 1e-9


@pytest.mark.parametrize(
    ("cap", "down", "arrives"), [(INFINITE, INFINITE, 10.0), (3.0, INFINITE, 3.0), (5.0, 2.0, 2.0)]
)
def test_no_more_arrives_than_routes_and_the_downlink_carry(
    units: tuple[ProblemArrays, LinearModel, UnitVariables], cap: float, down: float, arrives: float
) -> None:
    """One remote unit that makes 10 samples."""
    data, model, of = units
    made, caps = np.full(len(of.at), 10.0), np.full(len(data.regions), cap)
    at, values = limit_by_routes(model, of, made, caps, data.transfers(0), down)
    far = int(of.at[of.of.region == 1][0])
    for x in of.at.tolist():
        model.high[x] = model.low[x] = float(x == far)
    for x, value in zip(at.tolist(), values.tolist(), strict=True):
        model.cost[x] = -value
    assert solve_relaxed(model).objective == pytest.approx(-arrives)
