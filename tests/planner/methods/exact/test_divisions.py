"""Parts of a subproblem cover it, are smaller than it, and are only made where dividing changes the model."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.branching import BranchingRule
from planner.methods.exact.divisions import (
    arrival_underestimate,
    divided_by_critic,
    divided_by_receivers,
    divided_by_step,
    divided_by_window,
    inner_point,
)
from planner.methods.exact.program.linear_model import INFINITE, Floats
from planner.methods.exact.program.ortools_solver import solve_relaxed
from planner.methods.exact.relaxation.building import build_relaxation
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.fleet import Fleet, Machines
from planner.problem.goal import Goal, Objective, Problem
from planner.problem.workload import Task
from tests.planner.methods.exact.conftest import fleet, region

APART = ((Task.GENERATION,), (Task.REFERENCE, Task.ACTOR_TRAINING))
MOST_S = 60.0
MakeProblem = Callable[..., Problem]


def solved(problem: Problem) -> tuple[Relaxation, Floats]:
    """The model of generation apart from training in the first region, with a point of it."""
    data = ProblemArrays(CostTables(problem), MOST_S, 1)
    built = build_relaxation(data, Subproblem(grouping=APART, trainer_region=0), MOST_S, INFINITE)
    assert built is not None
    values = solve_relaxed(built.model).values
    assert values is not None
    return built, values


def three_regions() -> Fleet:
    machines = Machines(gpu="A100-40GB-SXM", gpus_per_machine=8, num_machines=1, usd_per_gpu_hour=2.0)
    return fleet(*(region(name, machines) for name in ("east", "north", "west")))


def capped(problem: Problem) -> Problem:
    """The same problem with a slow uplink that regions share."""
    regions = tuple(replace(region, wan_up_bytes_per_s=2e8) for region in problem.fleet.regions)
    return replace(problem, fleet=replace(problem.fleet, regions=regions))


@pytest.mark.parametrize(("at", "kept"), [(5.0, 5.0), (0.0, 2.0), (99.0, 8.0)])
def test_a_range_is_divided_near_a_point_but_not_at_its_ends(at: float, kept: float) -> None:
    assert inner_point(at, 0.0, 10.0, 0.2) == pytest.approx(kept)


def test_halves_of_a_window_meet_inside_it(make_problem: MakeProblem) -> None:
    built, values = solved(make_problem(eta=1))
    first, second = (part.window_s for part in divided_by_window(built, values, 0.01))
    low, high = built.window_range_s
    assert (first[0], second[1]) == (low, high)
    assert first[1] == second[0]
    assert low + 0.2 * (high - low) <= first[1] * (1 + 1e-12)
    assert first[1] <= (high - 0.2 * (high - low)) * (1 + 1e-12)


def test_a_narrow_window_is_not_divided(make_problem: MakeProblem) -> None:
    built, values = solved(make_problem(eta=1))
    high = built.window_range_s[1]
    narrow = replace(built.candidates, window_s=(high * (1 - 1e-6), high))
    built.candidates = narrow
    assert divided_by_window(built, values, 0.01) == ()


def test_fewer_receivers_and_at_least_as_many_are_all_there_are(make_problem: MakeProblem) -> None:
    built, values = solved(capped(make_problem(eta=1, of=three_regions())))
    values = values.copy()
    values[built.receivers] = 1.0
    few, many = (part.receivers for part in divided_by_receivers(built, values))
    assert (few[0], many[1]) == built.subproblem.receivers
    assert few[1] + 1 == many[0] == 2
    assert arrival_underestimate(built, values) > 0
    values[built.receivers] = 0.0
    assert divided_by_receivers(built, values) == ()


def test_one_receiver_is_never_later_than_counted(make_problem: MakeProblem) -> None:
    built, values = solved(capped(make_problem(eta=1)))
    values = values.copy()
    values[built.receivers] = 1.0
    assert len(built.receivers) == 1
    assert arrival_underestimate(built, values) == 0.0


def test_steps_are_divided_under_a_budget_alone(make_problem: MakeProblem) -> None:
    built, _ = solved(make_problem(eta=1))
    assert divided_by_step(built, 20.0) == ()
    paid, _ = solved(make_problem(eta=1, goal=Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=20.0)))
    first, second = (part.step_s for part in divided_by_step(paid, 20.0))
    assert first == (0.0, 20.0)
    assert second == (20.0, MOST_S)


def test_a_job_without_critic_is_not_divided_by_it(make_problem: MakeProblem) -> None:
    built, values = solved(make_problem(eta=1))
    assert divided_by_critic(built, values) == ()


def test_a_window_that_gained_little_waits_for_its_program(make_problem: MakeProblem) -> None:
    """The first division of a window needs no gain; later ones need a share of what the bound lacks."""
    rule = BranchingRule(gap=0.01)
    built, values = solved(make_problem(eta=1))
    values = values.copy()
    # No unit generates, so all samples that the model counts are missing.
    assert built.generating is not None
    values[built.generating.at] = 0.0
    assert built.looseness(values) == 1.0
    assert len(rule.after_relaxation(built, values, gained=0.0, missing=10.0)) == 2
    low, high = built.window_range_s
    built.subproblem = replace(built.subproblem, window_s=(low, high))
    assert rule.after_relaxation(built, values, gained=1.0, missing=10.0) == ()
    assert len(rule.after_relaxation(built, values, gained=3.0, missing=10.0)) == 2


def test_parts_of_a_subproblem_have_no_lower_bound_than_the_whole(make_problem: MakeProblem) -> None:
    built, values = solved(make_problem(eta=1))
    whole = solve_relaxed(built.model).bound * built.scale_s
    for part in divided_by_window(built, values, 0.01):
        again = build_relaxation(built.data, part, MOST_S, INFINITE)
        if again is not None:
            bound = solve_relaxed(again.model).bound * again.scale_s
            assert bound >= whole * (1 - 1e-3) or np.isclose(bound, whole)
