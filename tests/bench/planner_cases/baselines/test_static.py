"""The static families contain what their docstrings say, and each search returns the best of its whole family."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest

from bench.planner_cases import brute_force, small
from bench.planner_cases.baselines import streamrl_like, verl_like
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Found, objective_value
from planner.answer.placement import Group, Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import STUDY, Objective, Rules
from planner.problem.workload import Task
from tests.support.planner.cost import GPU, fleet, machines, problem, region, slower, workload

pytestmark = pytest.mark.slow

MOST = 2000


def _is_static(group: Group) -> bool:
    return len(group.pools) <= 2 and len({(pool.unit_gpus, pool.layouts) for pool in group.pools}) == 1


def _is_verl(placement: Placement) -> bool:
    return len(placement.groups) == 1 and _is_static(placement.groups[0])


def _is_streamrl(placement: Placement) -> bool:
    generation = placement.group_of(Task.GENERATION)
    whole = all(pool.layout(Task.GENERATION).tensor == pool.unit_gpus for pool in generation.pools)
    alone = len(placement.groups) == 2 and generation.tasks == (Task.GENERATION,)
    return alone and whole and all(_is_static(group) for group in placement.groups)


@pytest.mark.parametrize(("search", "belongs"), [(verl_like.search, _is_verl), (streamrl_like.search, _is_streamrl)])
def test_nothing_in_the_family_is_better(search: Callable[..., object], belongs: Callable[[Placement], bool]) -> None:
    compared = 0
    for number in range(80):
        problem = small.problem(number, small.DEVICES)
        cost_tables = CostTables(problem)
        every = brute_force.placements(cost_tables, most=MOST)
        if every is None or problem.goal.objective is not Objective.THROUGHPUT or compared == 3:
            continue
        estimate = [evaluate(cost_tables, placement) for placement in every if belongs(placement)]
        least = min((each.step_s for each in estimate if isinstance(each, Evaluation)), default=None)
        found = search(cost_tables, seed=0, budget_s=60.0, now_s=lambda: 0.0)
        if least is None:
            assert not isinstance(found, Found)
            continue
        assert isinstance(found, Found)
        assert belongs(found.best.placement)
        assert objective_value(problem.goal, found.best.evaluation) == pytest.approx(least, rel=1e-9)
        compared += 1
    assert compared == 3


def test_where_roles_cannot_share_devices_there_is_no_verl() -> None:
    for number in range(40):
        problem = small.problem(number, small.DEVICES)
        if not problem.limits.colocates:
            found = verl_like.search(CostTables(problem), seed=0, budget_s=60.0, now_s=lambda: 0.0)
            assert not isinstance(found, Found)


def test_with_a_raised_limit_both_stages_of_streamrl_may_have_all_classes() -> None:
    """Generation binds, so that the best split has every slow region in it; no set of them is left out."""
    slow = slower(GPU, "slow", factor=0.2)
    apart = ("p", "q", "r")
    regions = [region("home", machines(per_machine=8)), *(region(name, machines(slow)) for name in apart)]
    of = replace(workload((Task.GENERATION, Task.ACTOR_TRAINING)), group_size=64)
    rules = Rules(pins=((Task.GENERATION, frozenset(apart)),))
    asked = problem(fleet(*regions, types=(GPU, slow), bytes_per_s=1e10, rtt_s=0.001), of, rules=rules)
    found = {}
    for most in (2, 4):
        one = CostTables(replace(asked, limits=replace(STUDY, max_train_blocks=most)))
        outcome = streamrl_like.search(one, seed=0, budget_s=60.0, now_s=lambda: 0.0)
        assert isinstance(outcome, Found)
        found[most] = outcome.best
    generation = found[4].placement.group_of(Task.GENERATION)
    assert len(generation.pools) > 2
    assert found[4].evaluation.step_s < found[2].evaluation.step_s * 0.95
    (training,) = (group for group in found[4].placement.groups if group is not generation)
    for size in range(1, len(generation.pools)):
        for pools in combinations(generation.pools, size):
            fewer = Placement(groups=(replace(generation, pools=pools), training))
            estimate = evaluate(CostTables(asked), fewer)
            assert isinstance(estimate, Evaluation)
            assert estimate.step_s >= found[4].evaluation.step_s
