"""AReaL-Hex's two phases on whole problems."""

from dataclasses import replace

import pytest

from bench.planner_cases.fleets.published import HetrlScenario, areal_hex_fleet
from bench.planner_cases.fleets.published_workloads import areal_hex_workload
from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.areal_hex.method import search
from planner.methods.areal_hex.strategy import PhaseOne
from planner.methods.hetrl.candidate_lists import CandidateLists
from planner.problem.goal import STUDY, Goal, Objective, Problem
from planner.problem.workload import Task
from tests.support.cases.tiers import rest_is_slow
from tests.support.planner.searches import problem, still

HEX = Problem(
    fleet=areal_hex_fleet(num_h800_machines=2, num_h20_machines=2).fleet,
    workload=areal_hex_workload("Qwen2.5-7B").workload,
)
CHEAP = replace(HEX, goal=Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=24.0))


def found_for(asked: Problem, *, max_evals: int = 100) -> Found[Incumbent]:
    outcome = search(CostTables(asked), seed=0, budget_s=1.0, now_s=still, max_evals=max_evals)
    assert isinstance(outcome, Found)
    return outcome


@pytest.mark.parametrize(
    "asked",
    rest_is_slow(
        [CHEAP, problem(HetrlScenario.MULTI_CONTINENT, algorithm="ppo"), HEX, problem(), problem(is_async=False)],
        quick=2,
    ),
    ids=["budget", "ppo", "hex", "hetrl", "sync"],
)
def test_incumbents_are_two_disjoint_pools_and_what_the_oracle_says(asked: Problem) -> None:
    cost_tables = CostTables(asked)
    outcome = search(cost_tables, seed=0, budget_s=1.0, now_s=still, max_evals=100)
    assert isinstance(outcome, Found)
    values = [each.value(asked.goal) for each in outcome.trace]
    assert values == sorted(values, reverse=True)
    for each in outcome.trace:
        rollout, rest = each.placement.groups
        assert rollout.tasks == (Task.GENERATION,)
        assert len(rest.tasks) == len(asked.workload.tasks) - 1
        assert evaluate(cost_tables, each.placement) == each.evaluation


def test_the_same_problem_gives_the_same_answer() -> None:
    assert found_for(CHEAP).trace == found_for(CHEAP).trace


def test_a_budget_in_dollars_is_kept_by_both_phases() -> None:
    first = PhaseOne(CandidateLists(CostTables(CHEAP)))
    first.prepare(lambda: False)
    strategy = first.solve(frozenset(), lambda: False)
    assert strategy is not None
    usd = {k: kind.like.usd_per_gpu_hour or 0.0 for k, kind in enumerate(first.kinds)}
    held = sum(num * usd[k] for k, num in strategy.mesh.held) + sum(n * usd[k] for k, n in enumerate(strategy.rollout))
    assert held <= 24.0 * (1 + 1e-6)
    assert found_for(CHEAP).best.evaluation.usd_per_hour <= 24.0 * (1 + 1e-6)


def test_phase_one_trades_no_device_twice_and_gets_slower_without_its_best_mesh() -> None:
    first = PhaseOne(CandidateLists(CostTables(HEX)))
    first.prepare(lambda: False)
    best = first.solve(frozenset(), lambda: False)
    assert best is not None
    for k, kind in enumerate(first.kinds):
        assert dict(best.mesh.held).get(k, 0) + best.rollout[k] <= kind.num_gpus
    second = first.solve(frozenset({best.mesh}), lambda: False)
    assert second is not None
    assert second.mesh != best.mesh
    assert second.seconds >= best.seconds * 0.98  # bisection is exact to a fraction of a percent


def test_a_runtime_that_cannot_score_where_it_trains_gets_nothing() -> None:
    limits = replace(STUDY, colocates=False)
    outcome = search(CostTables(problem(limits=limits)), seed=0, budget_s=1.0, now_s=still, max_evals=50)
    assert isinstance(outcome, BudgetExhausted)
    assert outcome.best is None
