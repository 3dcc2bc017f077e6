"""The exact method against known placements: its proofs hold, and the oracle accepts its results."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from bench.planner_cases import small
from bench.planner_cases.baselines.sampling import drawn
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, objective_value
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import ignore
from planner.methods.exact.method import search
from planner.methods.exact.search import Search
from planner.problem.goal import Goal, Objective, Problem, Rules
from tests.support.planner.known_parts import known_parts
from tests.support.planner.searches import still

DEMANDS = (Rules(), Rules(min_regions=2), Rules(generating=frozenset({"west"})))


@pytest.mark.slow
@pytest.mark.parametrize("rules", DEMANDS)
@pytest.mark.parametrize(("eta", "critic"), [(0, False), (1, False), (3, False), (1, True)])
def test_no_known_plan_beats_the_bound(
    make_problem: Callable[..., Problem], eta: int, critic: bool, rules: Rules
) -> None:
    cost_tables = CostTables(make_problem(eta=eta, critic=critic, rules=rules))
    found = search(cost_tables, seed=0, budget_s=5.0, now_s=time.perf_counter)
    assert isinstance(found, Found | BudgetExhausted)
    assert found.best is not None
    assert found.best.bound is not None
    for part, each in known_parts(cost_tables.problem).parts():
        assert found.best.bound <= each.value * (1 + 1e-6), part
    assert found.best.bound > 0


@pytest.mark.parametrize("eta", [0, 1])
def test_a_proof_of_a_hundredth_is_found_and_the_oracle_agrees(make_problem: Callable[..., Problem], eta: int) -> None:
    cost_tables = CostTables(make_problem(eta=eta))
    found = search(cost_tables, seed=0, budget_s=60.0, now_s=time.perf_counter)
    assert isinstance(found, Found)
    assert found.best.gap(cost_tables.problem.goal) <= 0.01 + 1e-9
    again = evaluate(CostTables(cost_tables.problem), found.best.placement)
    assert isinstance(again, Evaluation)
    assert again.step_s == pytest.approx(found.best.evaluation.step_s)


def test_the_same_question_gets_the_same_answer(make_problem: Callable[..., Problem]) -> None:
    problem = make_problem(eta=1)
    answers = [search(CostTables(problem), seed=3, budget_s=60.0, now_s=time.perf_counter) for _ in range(2)]
    assert isinstance(answers[0], Found)
    assert isinstance(answers[1], Found)
    assert answers[0].best.placement == answers[1].best.placement


def test_cost_at_a_throughput_keeps_the_deadline_and_is_cheaper_than_random_plans(
    make_problem: Callable[..., Problem],
) -> None:
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=60.0)
    cost_tables = CostTables(make_problem(goal=goal))
    found = search(cost_tables, seed=0, budget_s=4.0, now_s=time.perf_counter)
    assert isinstance(found, Found | BudgetExhausted)
    assert found.best is not None
    assert found.best.evaluation.step_s <= 60.0 * (1 + 1e-9)
    for _, each in drawn(cost_tables, np.random.default_rng(2), 200):
        assert objective_value(goal, each) >= (found.best.bound or 0.0) * (1 - 1e-9)


def test_a_budget_of_dollars_is_kept(make_problem: Callable[..., Problem]) -> None:
    goal = Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=20.0)
    cost_tables = CostTables(make_problem(goal=goal))
    found = search(cost_tables, seed=0, budget_s=4.0, now_s=time.perf_counter)
    assert isinstance(found, Found | BudgetExhausted)
    assert found.best is not None
    assert found.best.evaluation.usd_per_hour <= 20.0 * (1 + 1e-9)
    for _, each in drawn(cost_tables, np.random.default_rng(2), 200):
        assert each.step_s >= (found.best.bound or 0.0) * (1 - 1e-9)


def test_rules_are_kept(make_problem: Callable[..., Problem]) -> None:
    rules = Rules(max_regions=1)
    found = search(CostTables(make_problem(rules=rules)), seed=0, budget_s=30.0, now_s=time.perf_counter)
    assert isinstance(found, Found)
    classes = {pool.device_class for group in found.best.placement.groups for pool in group.pools}
    assert len({key.split("/")[0] for key in classes}) == 1


def test_asked_to_stop_it_returns_what_it_has(make_problem: Callable[..., Problem]) -> None:
    looks = count()
    found = search(
        CostTables(make_problem()), seed=0, budget_s=60.0, now_s=time.perf_counter, should_stop=lambda: next(looks) > 2
    )
    assert isinstance(found, BudgetExhausted)
    assert found.best is not None


HARD = [
    (26, small.DEVICES, Goal()),  # versions of actor and critic over one link
    (4, small.DEVICES, Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=2.88)),
    (26, small.DEVICES, Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=3.42)),
    (7, small.DEVICES, Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=8.72)),  # a table jumps
    (16, small.DEVICES, Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=5.1)),  # scoring far away is paid
    (52, small.DEVICES, Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=2.62)),  # so are the critic's weights
    (2, small.SYNCHRONOUS_CLASSES, Goal()),
    (22, small.ASYNCHRONOUS_CLASSES, Goal()),
]


@pytest.mark.parametrize(("number", "size", "goal"), HARD)
def test_small_problems_are_proved_without_a_gap(number: int, size: small.Size, goal: Goal) -> None:
    """Without a clock: parts are given up after so many cuts alone."""
    looks = count()
    cost_tables = CostTables(replace(small.problem(number, size), goal=goal))
    found = Search(
        cost_tables=cost_tables,
        gap=0.0,
        budget_s=10.0,
        now_s=still,
        report=ignore,
        should_stop=lambda: next(looks) > 1000,
    ).run()
    assert isinstance(found, Found)
    assert found.best.gap(goal) <= 2.1e-5
