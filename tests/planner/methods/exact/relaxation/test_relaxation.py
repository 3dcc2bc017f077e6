"""Every placement that the oracle accepts is above the bound of its own subproblem, however that is divided."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bench.planner_cases.baselines.sampling import drawn
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.program.linear_model import INFINITE, LinearModel
from planner.methods.exact.program.ortools_solver import solve_relaxed, solve_whole
from planner.methods.exact.relaxation.building import build_relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.group_lower_bounds import group_lower_bounds
from planner.methods.exact.subproblem.reachable_candidates import units_at
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.methods.exact.subproblem.rent_lower_bounds import least_usd
from planner.problem.fleet import Fleet
from planner.problem.goal import Goal, Objective, Problem, Rules
from planner.problem.workload import TRAINING, Task
from tests.support.cases.tiers import rest_is_slow

TOLERANCE = 1e-6
NARROW = 1 + 1e-7
"""Limit on the step relative to the plan's own step. It makes the model of the subproblem as tight as possible."""


def capped(fleet: Fleet, *, slower: float) -> Fleet:
    """Uplinks that regions share, downlinks that bind, slower links."""
    regions = tuple(
        replace(region, wan_up_bytes_per_s=2e8 * (1 + i), wan_down_bytes_per_s=(1e6, None)[i % 2])
        for i, region in enumerate(fleet.regions)
    )
    return replace(
        fleet,
        regions=regions,
        links=tuple(replace(link, bytes_per_s=link.bytes_per_s / slower) for link in fleet.links),
    )


def plans(cost_tables: CostTables, data: ProblemArrays) -> Iterator[tuple[Placement, Evaluation, Subproblem]]:
    for placement, evaluation in drawn(cost_tables, np.random.default_rng(5), 8):
        home = data.region_at[trainer_region_of(cost_tables, placement)]
        grouping = tuple(group.tasks for group in placement.groups)
        yield placement, evaluation, Subproblem(grouping=grouping, trainer_region=home)


def bound_s(data: ProblemArrays, node: Subproblem, most_s: float) -> float:
    built = build_relaxation(data, node, most_s, INFINITE)
    return INFINITE if built is None else solve_relaxed(built.model).bound * built.scale_s


@pytest.mark.parametrize(
    "rules", rest_is_slow([Rules(), Rules(generating=frozenset({"west"})), Rules(max_regions=1)], quick=2)
)
@pytest.mark.parametrize(
    ("eta", "critic"), rest_is_slow([(1, True), (0, False), (4, False), (1, False), (0, True)], quick=2)
)
@pytest.mark.parametrize("slower", rest_is_slow([1.0, 50.0]))
def test_no_plan_is_faster_than_its_own_part_allows(
    make_problem: Callable[..., Problem], eta: int, critic: bool, rules: Rules, slower: float
) -> None:
    problem = make_problem(eta=eta, critic=critic, rules=rules)
    cost_tables = CostTables(replace(problem, fleet=capped(problem.fleet, slower=slower)))
    data = ProblemArrays(cost_tables, INFINITE, 2)
    for _, evaluation, node in plans(cost_tables, data):
        for most_s in (evaluation.step_s * NARROW, evaluation.step_s * 1.5):
            assert bound_s(data, node, most_s) <= evaluation.step_s * (1 + TOLERANCE)


@pytest.mark.parametrize("eta", rest_is_slow([1, 0, 4], quick=2))
def test_halves_of_a_window_hold_what_the_whole_holds(make_problem: Callable[..., Problem], eta: int) -> None:
    cost_tables = CostTables(make_problem(eta=eta))
    data, rng = ProblemArrays(cost_tables, INFINITE, 2), np.random.default_rng(6)
    for _, evaluation, node in plans(cost_tables, data):
        most_s = evaluation.step_s * NARROW
        built = build_relaxation(data, node, most_s, INFINITE)
        assert built is not None
        if built.window is None:
            continue
        low, high = built.window_range_s
        middle = low + (high - low) * rng.random()
        halves = [replace(node, window_s=ends) for ends in ((low, middle), (middle, high))]
        assert min(bound_s(data, half, most_s) for half in halves) <= evaluation.step_s * (1 + TOLERANCE)


@pytest.mark.parametrize("eta", rest_is_slow([1, 0, 4], quick=2))
@pytest.mark.parametrize("slower", rest_is_slow([1.0, 50.0]))
def test_parts_by_the_longest_way_of_scoring_hold_what_the_whole_holds(
    make_problem: Callable[..., Problem], eta: int, slower: float
) -> None:
    problem = make_problem(eta=eta)
    cost_tables = CostTables(replace(problem, fleet=capped(problem.fleet, slower=slower)))
    data, num = ProblemArrays(cost_tables, INFINITE, 2), 0
    for _, evaluation, node in plans(cost_tables, data):
        most_s = evaluation.step_s * NARROW
        for tasks in (tasks for tasks in node.grouping if not any(task in TRAINING for task in tasks)):
            levels = np.unique(units_at(data, tasks, node.trainer_region).level_s).tolist()
            for below_s, above_s in pairwise(levels):
                parts = node.by_level(tasks, below_s, above_s)
                assert min(bound_s(data, part, most_s) for part in parts) <= evaluation.step_s * (1 + TOLERANCE)
                num += 1
    assert num > 0


@pytest.mark.parametrize("eta", [1, 4])
@pytest.mark.parametrize("share", rest_is_slow([0.99, 1.01, 0.5, 2.0], quick=2))
def test_parts_by_what_others_take_of_generations_group_hold_what_the_whole_holds(
    make_problem: Callable[..., Problem], eta: int, share: float
) -> None:
    cost_tables = CostTables(make_problem(eta=eta))
    data, num = ProblemArrays(cost_tables, INFINITE, 2), 0
    for _, evaluation, node in plans(cost_tables, data):
        group = next(tasks for tasks in node.grouping if Task.GENERATION in tasks)
        others_s = sum(s for task, s in evaluation.task_s if task in group and task is not Task.GENERATION)
        if Task.ACTOR_TRAINING in group or not others_s:
            continue
        middle = others_s * share
        parts = [replace(node, others_s=ends) for ends in ((0.0, middle), (middle, INFINITE))]
        least_s = min(bound_s(data, part, evaluation.step_s * NARROW) for part in parts)
        assert least_s <= evaluation.step_s * (1 + TOLERANCE)
        num += 1
    assert num > 0


@pytest.mark.parametrize("eta", rest_is_slow([1, 0, 4], quick=2))
def test_parts_by_the_number_of_receivers_hold_what_the_whole_holds(
    make_problem: Callable[..., Problem], eta: int
) -> None:
    problem = make_problem(eta=eta)
    cost_tables = CostTables(replace(problem, fleet=capped(problem.fleet, slower=20.0)))
    data = ProblemArrays(cost_tables, INFINITE, 2)
    for _, evaluation, node in plans(cost_tables, data):
        parts = [replace(node, receivers=ends) for ends in ((0, 0), (1, 1), (2, 9))]
        least_s = min(bound_s(data, part, evaluation.step_s * NARROW) for part in parts)
        assert least_s <= evaluation.step_s * (1 + TOLERANCE)


@pytest.mark.parametrize(("eta", "critic"), [(0, False), (1, True)])
def test_floors_and_groups_alone_are_below_every_plan(
    make_problem: Callable[..., Problem], eta: int, critic: bool
) -> None:
    cost_tables = CostTables(make_problem(eta=eta, critic=critic))
    data = ProblemArrays(cost_tables, INFINITE, 2)
    for _, evaluation, node in plans(cost_tables, data):
        for is_listed in (False, True):
            least = group_lower_bounds(data, node.grouping, node.trainer_region, is_listed=is_listed)
            assert max(least.busy_s, least.path_s() / data.ends) <= evaluation.step_s * (1 + TOLERANCE)


@pytest.mark.parametrize(("eta", "critic"), [(0, False), (1, False), (4, False), (1, True)])
@pytest.mark.parametrize("slower", rest_is_slow([1.0, 50.0]))
def test_no_plan_is_cheaper_than_its_own_part_allows(
    make_problem: Callable[..., Problem], eta: int, critic: bool, slower: float
) -> None:
    """As tight as can be: no step longer than the plan's own is allowed."""
    problem = make_problem(eta=eta, critic=critic, goal=within(1e6))
    cost_tables = CostTables(replace(problem, fleet=capped(problem.fleet, slower=slower)))
    whole = ProblemArrays(cost_tables, INFINITE, 2)
    for placement, evaluation, node in plans(cost_tables, whole):
        most_s = evaluation.step_s * NARROW
        least = group_lower_bounds(whole, node.grouping, node.trainer_region, is_listed=True)
        rent = evaluation.usd_per_hour - evaluation.usd_egress_per_hour
        for is_listed in (False, True):
            usd = least_usd(whole, node.grouping, node.trainer_region, least, most_s, is_listed=is_listed)
            assert 0 < usd <= rent * (1 + TOLERANCE)
        model, usd = least_dollars(cost_tables, placement, node, most_s)
        assert solve_relaxed(model).bound <= usd * (1 + TOLERANCE)


def least_dollars(
    cost_tables: CostTables, placement: Placement, node: Subproblem, most_s: float
) -> tuple[LinearModel, float]:
    """The part's model for that deadline, and what the placement costs an hour."""
    strict = CostTables(replace(cost_tables.problem, goal=within(most_s)))
    estimate = evaluate(strict, placement)
    assert isinstance(estimate, Evaluation)
    built = build_relaxation(ProblemArrays(strict, INFINITE, 2), node, most_s, estimate.usd_per_hour * NARROW)
    assert built is not None
    return built.model, estimate.usd_per_hour


def dear(fleet: Fleet, *, usd_per_gbyte: float) -> Fleet:
    """A fleet whose egress costs about as much as its devices, each way another price."""
    links = tuple(replace(link, usd_per_gbyte=usd_per_gbyte * (1 + i)) for i, link in enumerate(fleet.links))
    return replace(fleet, links=links)


@pytest.mark.parametrize(("eta", "critic"), [(0, False), (2, False), (1, True)])
def test_no_plan_is_cheaper_than_its_own_part_allows_where_egress_is_dear(
    make_problem: Callable[..., Problem], eta: int, critic: bool
) -> None:
    problem = make_problem(eta=eta, critic=critic, goal=within(1e6))
    cost_tables = CostTables(replace(problem, fleet=dear(problem.fleet, usd_per_gbyte=100.0)))
    for placement, evaluation, node in plans(cost_tables, ProblemArrays(cost_tables, INFINITE, 2)):
        model, usd = least_dollars(cost_tables, placement, node, evaluation.step_s * NARROW)
        assert solve_relaxed(model).bound <= usd * (1 + TOLERANCE)
        assert solve_whole(model, limit_s=20.0, gap=0.0).bound <= usd * (1 + TOLERANCE)


@pytest.mark.parametrize("eta", rest_is_slow([1, 0, 4], quick=2))
def test_a_part_of_a_window_is_no_dearer_than_the_plans_in_it(make_problem: Callable[..., Problem], eta: int) -> None:
    """Rows of several shapes, on intervals that are wide and narrow."""
    cost_tables = CostTables(make_problem(eta=eta, goal=within(1e6)))
    for placement, evaluation, node in plans(cost_tables, ProblemArrays(cost_tables, INFINITE, 2)):
        most_s = evaluation.step_s * NARROW
        strict = CostTables(replace(cost_tables.problem, goal=within(most_s)))
        estimate = evaluate(strict, placement)
        assert isinstance(estimate, Evaluation)
        data, most_usd = ProblemArrays(strict, INFINITE, 2), estimate.usd_per_hour * NARROW
        assert data.pays_for_few
        for parts in (2, 7):
            ends = [0.0, *np.geomspace(0.1, 1.0, parts) * (eta + 1) * most_s, INFINITE]
            nodes = [replace(node, window_s=pair) for pair in pairwise(ends)]
            built = [build_relaxation(data, part, most_s, most_usd) for part in nodes]
            least = min(solve_relaxed(each.model).bound for each in built if each is not None)
            assert least <= estimate.usd_per_hour * (1 + TOLERANCE)


def test_samples_that_are_scored_far_away_are_paid_for_in_the_program(make_problem: Callable[..., Problem]) -> None:
    """Whole numbers know what the oracle says of the egress."""
    pins = ((Task.REFERENCE, frozenset({"west"})), (Task.GENERATION, frozenset({"east"})))
    rules = Rules(pins=(*pins, (Task.ACTOR_TRAINING, frozenset({"east"}))))
    problem = make_problem(eta=1, goal=within(60.0), rules=rules)
    cost_tables = CostTables(replace(problem, fleet=dear(problem.fleet, usd_per_gbyte=1000.0)))
    data = ProblemArrays(cost_tables, INFINITE, 2)
    grouping = ((Task.GENERATION,), (Task.REFERENCE,), (Task.ACTOR_TRAINING,))
    subproblem = Subproblem(grouping=grouping, trainer_region=data.region_at["east"])
    built = build_relaxation(data, subproblem, 60.0, INFINITE)
    assert built is not None
    found = solve_whole(built.model, limit_s=20.0, gap=0.0)
    assert found.values is not None
    estimate = evaluate(cost_tables, built.placement(found.values))
    assert isinstance(estimate, Evaluation)
    assert estimate.usd_egress_per_hour > 0.1 * estimate.usd_per_hour
    assert estimate.usd_per_hour * 0.99 <= found.bound <= estimate.usd_per_hour * (1 + TOLERANCE)


def within(max_step_s: float) -> Goal:
    return Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=max_step_s)
