"""The greedy descent with which the method `auto` opens."""

import numpy as np
import pytest

from bench.planner_cases.fleets.published import HetrlScenario
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import EvaluationBudget
from planner.methods.opening.greedy_descent import Descent
from planner.problem.goal import Goal, Objective, Problem, Rules
from tests.support.planner.searches import problem, still

ASKED = [
    problem(HetrlScenario.MULTI_CONTINENT),
    problem(algorithm="ppo", is_async=False),
    problem(goal=Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=60.0)),
    problem(rules=Rules(max_regions=1)),
]
IDS = ["async", "sync ppo", "cost", "one region"]


def budget_of(cost_tables: CostTables, max_evals: int) -> EvaluationBudget:
    return EvaluationBudget(cost_tables, budget_s=1.0, now_s=still, max_evals=max_evals)


@pytest.mark.parametrize("asked", ASKED, ids=IDS)
def test_every_incumbent_is_what_the_oracle_says(asked: Problem) -> None:
    cost_tables = CostTables(asked)
    budget = budget_of(cost_tables, 200)
    Descent(cost_tables, np.random.default_rng(0)).run(budget)
    assert budget.trace
    for each in budget.trace:
        assert evaluate(cost_tables, each.placement) == each.evaluation
    values = [each.value(asked.goal) for each in budget.trace]
    assert values == sorted(values, reverse=True)


def test_the_same_seed_finds_the_same() -> None:
    found = []
    for _ in range(2):
        cost_tables = CostTables(ASKED[0])
        budget = budget_of(cost_tables, 200)
        Descent(cost_tables, np.random.default_rng(3)).run(budget)
        found.append(budget.trace)
    assert found[0] == found[1]


def test_it_goes_on_where_it_ended_and_ends_when_nothing_better_comes() -> None:
    cost_tables = CostTables(ASKED[0])
    descent = Descent(cost_tables, np.random.default_rng(0))
    first, second = budget_of(cost_tables, 100), budget_of(cost_tables, 100_000)
    descent.run(first)
    descent.run(second, first.best_loss, patience=2)
    assert second.num_evaluations < 100_000
    descent.run(third := budget_of(cost_tables, 1000), 0.0)
    assert third.num_evaluations == 0  # no grouping may be better than nothing at all
