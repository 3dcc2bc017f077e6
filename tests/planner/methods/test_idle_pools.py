"""Rented devices that do nothing are removed from a placement."""

from dataclasses import replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.idle_pools import trimmed
from planner.problem.workload import Task
from tests.support.planner.cost import problem, workload
from tests.support.planner.two_regions import FAR, PAIR, placement, pool, two_regions


def incumbent(cost_tables: CostTables, at: Placement) -> Incumbent:
    evaluation = evaluate(cost_tables, at)
    assert isinstance(evaluation, Evaluation)
    return Incumbent(placement=at, evaluation=evaluation, bound=1.0, elapsed_s=2.0)


NEAR = pool("x/simple/4", Task.GENERATION, 4)


def test_pools_that_idle_go_and_the_step_stays() -> None:
    cost_tables = CostTables(problem(two_regions(1e6), workload(PAIR)))
    found = incumbent(cost_tables, placement(FAR, NEAR))
    assert found.evaluation.idle == (0,)
    after = trimmed(cost_tables, found)
    assert after.placement == placement(NEAR)
    assert after.evaluation.step_s == found.evaluation.step_s
    assert after.evaluation.usd_per_hour < found.evaluation.usd_per_hour
    assert (after.bound, after.elapsed_s) == (found.bound, found.elapsed_s)


def test_what_works_stays() -> None:
    cost_tables = CostTables(problem(two_regions(), replace(workload(PAIR, eta=0), prompts_per_step=512)))
    found = incumbent(cost_tables, placement(FAR, NEAR))
    assert found.evaluation.idle == ()
    assert trimmed(cost_tables, found) is found
