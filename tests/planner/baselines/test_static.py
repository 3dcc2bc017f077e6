"""The static families hold what their docstrings say, and their best is the best of the whole family."""

from collections.abc import Callable

import pytest

from bench.planner_cases import brute_force, small
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Found, objective_value
from planner.answer.placement import Group, Placement
from planner.baselines import streamrl_like, verl_like
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.question.goal import Objective
from planner.question.workload import Task

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
        prices = Prices(problem)
        every = brute_force.placements(prices, most=MOST)
        if every is None or problem.goal.objective is not Objective.THROUGHPUT or compared == 3:
            continue
        judged = [evaluate(prices, placement) for placement in every if belongs(placement)]
        least = min((each.step_s for each in judged if isinstance(each, Evaluation)), default=None)
        found = search(prices, seed=0, budget_s=60.0, now_s=lambda: 0.0)
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
            found = verl_like.search(Prices(problem), seed=0, budget_s=60.0, now_s=lambda: 0.0)
            assert not isinstance(found, Found)
