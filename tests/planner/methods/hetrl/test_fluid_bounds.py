"""No placement of an arm is better than the arm's lower bound."""

from dataclasses import replace

import numpy as np
import pytest

from bench.planner_cases.baselines.sampling import sample
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import objective_value
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import EvaluationBudget
from planner.methods.hetrl import fluid_bounds as bounds_module
from planner.methods.hetrl.candidate_lists import CandidateLists
from planner.methods.hetrl.fluid_bounds import Bounds
from planner.methods.hetrl.settings import SETTINGS
from planner.methods.opening.greedy_descent import Descent
from planner.problem.goal import Goal, Objective, Problem
from planner.problem.groupings import groupings
from tests.support.cases.tiers import rest_is_slow
from tests.support.planner.searches import problem, still

CHEAP = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=120.0)


def in_order(placement: Placement) -> list[tuple[tuple[str, ...], int]]:
    order = {task: i for i, task in enumerate(problem(algorithm="ppo").workload.tasks)}
    groups = sorted(placement.groups, key=lambda group: order[group.tasks[0]])
    return [(group.tasks, sum(pool.num_gpus for pool in group.pools)) for group in groups]


@pytest.mark.parametrize(
    "asked",
    rest_is_slow(
        [
            problem(),
            problem(goal=CHEAP),
            problem(is_async=False),
            problem(algorithm="ppo", is_async=False),
            problem(algorithm="ppo"),
        ],
    ),
    ids=["async", "cost", "sync", "sync ppo", "async ppo"],
)
def test_random_placements_do_not_beat_the_bounds_of_their_arms(asked: Problem) -> None:
    cost_tables = CostTables(asked)
    bounds = Bounds(CandidateLists(cost_tables))
    for placement in sample(cost_tables, np.random.default_rng(7), 8):
        estimate = evaluate(cost_tables, placement)
        assert isinstance(estimate, Evaluation)
        value = objective_value(asked.goal, estimate) * (1 + 1e-6)
        groups = in_order(placement)
        grouping = tuple(tasks for tasks, _ in groups)
        by_sizes = bounds.of_sizes(grouping, tuple(num for _, num in groups))  # type: ignore[arg-type]
        assert bounds.of_grouping(grouping) <= value  # type: ignore[arg-type]
        assert by_sizes <= value


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_search_finds_does_not_beat_the_bounds_of_its_arm(is_async: bool) -> None:
    asked = problem(is_async=is_async)
    cost_tables = CostTables(asked)
    bounds = Bounds(CandidateLists(cost_tables))
    budget = EvaluationBudget(cost_tables, budget_s=1.0, now_s=still, max_evals=400)
    Descent(cost_tables, np.random.default_rng(1)).run(budget)
    for each in budget.trace:
        groups = in_order(each.placement)
        grouping = tuple(tasks for tasks, _ in groups)
        value = each.value(asked.goal) * (1 + 1e-6)
        assert bounds.of_grouping(grouping) <= value  # type: ignore[arg-type]
        assert bounds.of_sizes(grouping, tuple(num for _, num in groups)) <= value  # type: ignore[arg-type]


def test_more_devices_never_raise_a_bound() -> None:
    bounds = Bounds(CandidateLists(CostTables(problem(is_async=False))))
    tasks = problem().workload.tasks
    values = [bounds.of_sizes((tasks,), (num,)) for num in range(1, 65)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_bound_of_a_large_fleet_is_no_higher_and_hardly_lower_for_counting_in_multiples(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost_tables = CostTables(problem(is_async=is_async, algorithm="ppo"))
    exact, every = Bounds(CandidateLists(cost_tables)), groupings(cost_tables.problem)[::20]
    monkeypatch.setattr(bounds_module, "SETTINGS", replace(SETTINGS, max_device_counts=16))
    rounded = Bounds(CandidateLists(cost_tables))
    for grouping in every:
        assert rounded.of_grouping(grouping) <= exact.of_grouping(grouping) * (1 + 1e-3)
        sizes = exact.best_sizes(grouping)
        assert 0.5 * exact.of_sizes(grouping, sizes) <= rounded.of_sizes(grouping, sizes)
        assert rounded.of_sizes(grouping, sizes) <= exact.of_sizes(grouping, sizes)
