"""HetRL's search and its bounded variant on whole problems."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.planner_cases.fleets.published import HetrlScenario
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Outcome
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.hetrl.method import search, search_bounded
from planner.problem.goal import Goal, Objective, Problem, Rules
from tests.support.cases.tiers import rest_is_slow
from tests.support.planner.searches import problem, still

Method = Callable[..., Outcome]
BOTH = pytest.mark.parametrize("method", [search, search_bounded])


def found_by(method: Method, asked: Problem, *, seed: int = 0, max_evals: int = 150) -> Found[Incumbent]:
    outcome = method(CostTables(asked), seed=seed, budget_s=1.0, now_s=still, max_evals=max_evals)
    assert isinstance(outcome, Found)
    return outcome


@BOTH
@pytest.mark.parametrize(
    "asked",
    rest_is_slow(
        [
            problem(algorithm="ppo"),
            problem(goal=Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=60.0)),
            problem(goal=Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=40.0)),
            problem(rules=Rules(max_regions=2)),
        ],
        quick=2,
    ),
    ids=["ppo", "cost", "budget", "two regions"],
)
def test_every_incumbent_is_what_the_oracle_says_and_better_than_the_one_before(method: Method, asked: Problem) -> None:
    cost_tables = CostTables(asked)
    reported: list[Incumbent] = []
    outcome = method(cost_tables, seed=1, budget_s=1.0, now_s=still, max_evals=150, report=reported.append)
    assert isinstance(outcome, Found)
    assert list(outcome.trace) == reported
    values = [each.value(asked.goal) for each in outcome.trace]
    assert values == sorted(values, reverse=True)
    for each in outcome.trace:
        assert evaluate(cost_tables, each.placement) == each.evaluation


@BOTH
def test_the_same_seed_finds_the_same_and_regions_in_another_order_too(method: Method) -> None:
    asked = problem(HetrlScenario.MULTI_CONTINENT)
    turned = replace(
        asked, fleet=replace(asked.fleet, regions=asked.fleet.regions[::-1], links=asked.fleet.links[::-1])
    )
    first, again, other = (found_by(method, each, seed=5) for each in (asked, asked, turned))
    assert first.trace == again.trace
    assert first.best.placement == other.best.placement


@BOTH
def test_the_budget_of_evaluations_is_kept(method: Method) -> None:
    assert found_by(method, problem(), max_evals=100).num_evaluations <= 100 + 12  # a generation is not cut


@BOTH
def test_a_job_that_nothing_can_do_ends_with_nothing(method: Method) -> None:
    rules = Rules(forbidden_regions=frozenset({"cloud-a", "cloud-b", "edge-a", "edge-b"}))
    outcome = method(CostTables(problem(rules=rules)), seed=0, budget_s=1.0, now_s=still, max_evals=50)
    assert isinstance(outcome, BudgetExhausted)
    assert outcome.best is None


@BOTH
def test_a_search_that_is_stopped_returns_its_incumbent(method: Method) -> None:
    seen: list[Incumbent] = []
    asked = iter(range(1 << 30))
    outcome = method(
        CostTables(problem()),
        seed=0,
        budget_s=1.0,
        now_s=still,
        max_evals=10_000,
        report=seen.append,
        should_stop=lambda: next(asked) > 60,
    )
    assert isinstance(outcome, Found)
    assert outcome.best == seen[-1]
    assert isinstance(outcome.best.evaluation, Evaluation)


@BOTH
def test_time_ends_a_search_without_a_budget_of_evaluations(method: Method) -> None:
    ticks = iter(range(100_000))
    outcome = method(CostTables(problem()), seed=0, budget_s=200.0, now_s=lambda: float(next(ticks)))
    assert isinstance(outcome, Found)
    assert outcome.best.elapsed_s <= 300.0


def test_an_arm_whose_bound_is_no_better_than_the_incumbent_is_not_pulled() -> None:
    asked = problem(is_async=False, model="Qwen3-8B")
    assert found_by(search_bounded, asked, max_evals=300).best.evaluation.step_s <= 1.05 * (
        found_by(search, asked, max_evals=300).best.evaluation.step_s
    )
