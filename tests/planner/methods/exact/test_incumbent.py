"""The incumbent is the best valid placement that was offered, and the outcome says what is proved of it."""

from dataclasses import replace

import pytest

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.incumbent import IncumbentRecord
from planner.methods.exact.incumbents.first_placements import first_placements
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.problem.goal import Problem
from planner.problem.groupings import groupings
from tests.planner.methods.exact.conftest import two_regions, workload

GAP = 0.1


@pytest.fixture(scope="module")
def cost_tables() -> CostTables:
    return CostTables(Problem(fleet=two_regions(), workload=workload(eta=1)))


@pytest.fixture(scope="module")
def placements(cost_tables: CostTables) -> list[tuple[float, Placement]]:
    """Two valid placements with their seconds a step, the slower one first."""
    data = ProblemArrays(cost_tables, INFINITE, 1)
    found = {}
    for placement in first_placements(data, groupings(cost_tables.problem)):
        evaluation = evaluate(cost_tables, placement)
        if isinstance(evaluation, Evaluation):
            found[evaluation.step_s] = placement
    return [(seconds, found[seconds]) for seconds in (max(found), min(found))]


def record(cost_tables: CostTables, reported: list[Incumbent] | None = None) -> IncumbentRecord:
    told: list[Incumbent] = [] if reported is None else reported
    return IncumbentRecord(cost_tables=cost_tables, gap=GAP, elapsed_s=lambda: 7.0, report=told.append)


def test_without_an_incumbent_every_bound_is_of_interest(cost_tables: CostTables) -> None:
    of = record(cost_tables)
    assert (of.value, of.target) == (INFINITE, INFINITE)
    assert of.outcome(INFINITE) == BudgetExhausted(best=None, bound=None, method="exact")
    assert of.outcome(2.0) == BudgetExhausted(best=None, bound=2.0, method="exact")


def test_only_a_better_placement_is_reported(
    cost_tables: CostTables, placements: list[tuple[float, Placement]]
) -> None:
    reported: list[Incumbent] = []
    of, ((slow_s, slow), (fast_s, fast)) = record(cost_tables, reported), placements
    assert of.offer(slow, 1.0) is not None
    assert of.offer(slow, 1.0) is None
    assert of.offer(fast, 2.0) is not None
    assert of.offer(slow, 3.0) is None
    assert [each.evaluation.step_s for each in reported] == [slow_s, fast_s]
    assert [each.bound for each in reported] == [1.0, 2.0]
    assert reported == of.trace
    assert of.num_evaluations == 4
    assert of.target == pytest.approx(fast_s * (1 - GAP))


def test_an_invalid_placement_is_evaluated_and_forgotten(
    cost_tables: CostTables, placements: list[tuple[float, Placement]]
) -> None:
    of, placement = record(cost_tables), placements[0][1]
    first = placement.groups[0]
    pools = tuple(replace(pool, num_units=pool.num_units * 1000) for pool in first.pools)
    assert of.offer(replace(placement, groups=(replace(first, pools=pools), *placement.groups[1:])), 0.0) is None
    assert (of.best, of.num_evaluations) == (None, 1)


def test_a_bound_that_reaches_the_target_is_a_proof(
    cost_tables: CostTables, placements: list[tuple[float, Placement]]
) -> None:
    of, (seconds, placement) = record(cost_tables), placements[1]
    of.offer(placement, 0.0)
    found = of.outcome(seconds * (1 - GAP))
    assert isinstance(found, Found)
    assert found.best.bound == pytest.approx(seconds * (1 - GAP))
    assert found.best.elapsed_s == 7.0
    assert found.trace[-1] == found.best


@pytest.mark.parametrize("share", [0.0, 0.5, 1.1])
def test_a_low_bound_and_one_above_the_known_value_prove_nothing(
    cost_tables: CostTables, placements: list[tuple[float, Placement]], share: float
) -> None:
    of, (seconds, placement) = record(cost_tables), placements[1]
    of.offer(placement, 0.0)
    found = of.outcome(seconds * share)
    assert isinstance(found, BudgetExhausted)
    assert found.bound == (seconds * share if share < 1 else None)
    assert (found.refuted is not None) == (share > 1)
