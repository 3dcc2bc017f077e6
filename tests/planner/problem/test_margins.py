import re
from dataclasses import replace
from pathlib import Path

import pytest

from periplus.errors import PlanInfeasible
from planner import solve
from planner.answer.evaluation import Evaluation, Violation
from planner.commands.output import committed
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.explain.lines import explain
from planner.plan import Plan
from planner.problem.goal import Goal, Objective, Problem, Rules
from planner.problem.margins import regime_words, with_margin
from planner.problem.workload import Task
from planner.solve import Thinking
from tests.support.planner.gpu_plan import PROBLEM, gpu_plan
from tests.support.planner.quick_method import quick
from tests.support.planner.searches import problem, still

RECORD = Path(__file__).parents[3] / "docs" / "planner-comparison" / "2026-11-22-limits-without-margin.md"
THINKING = Thinking(budget_s=60.0, now_s=still)


def limited(asked: Problem, max_step_s: float = 100.0) -> Problem:
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=max_step_s)
    return with_margin(replace(asked, goal=goal))


def with_eta(asked: Problem, eta: int) -> Problem:
    return replace(asked, workload=replace(asked.workload, eta=eta))


def test_a_problem_without_a_limit_and_what_is_written_of_it_are_unchanged() -> None:
    assert with_margin(PROBLEM) is PROBLEM
    assert "margin" not in gpu_plan().to_json()


def test_a_goal_with_its_margin_survives_its_text_and_one_without_has_none() -> None:
    goal = limited(PROBLEM).goal
    assert goal.step_margin > 0
    limits = replace(gpu_plan(), goal=goal)
    assert Plan.from_json(limits.to_json()).goal == goal
    tree = limits.to_tree() | {"goal": {"objective": "cost", "max_step_s": 100.0, "max_usd_per_hour": None}}
    without = Plan.from_tree(tree, "plan").goal
    assert without is not None
    assert (without.planned_step_s, without.step_margin) == (100.0, 0.0)


def test_the_margin_grows_with_the_bound_and_over_several_regions() -> None:
    several = replace(PROBLEM, rules=Rules())
    alone = replace(PROBLEM, rules=Rules(max_regions=1))
    margins = [limited(with_eta(several, eta)).goal.step_margin for eta in (0, 1, 2, 3, 8)]
    assert margins == sorted(margins)
    for eta in (0, 1, 4):
        of = [limited(with_eta(each, eta)).goal.step_margin for each in (alone, several)]
        assert of == sorted(of)
    assert regime_words(with_eta(alone, 1)) == "a staleness bound of 1 to 2 in one region, with a critic"


def test_dollars_have_a_margin_only_where_versions_cross_regions() -> None:
    budget = Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=50.0)
    assert with_margin(replace(PROBLEM, goal=budget)).goal.usd_margin > 0
    alone = with_margin(replace(PROBLEM, goal=budget, rules=Rules(max_regions=1)))
    assert (alone.goal.usd_margin, alone.goal.step_margin) == (0.0, 0.0)


def test_every_margin_covers_what_was_recorded_without_one() -> None:
    """The record's rows, and the problems of their regimes."""
    grpo = problem()
    of_critic = {"yes": problem(algorithm="ppo"), "no": grpo}
    assert Task.CRITIC_TRAINING not in grpo.workload.models
    rows = re.findall(r"^\| (\d+) \| (one|several) \| (yes|no) \| cost \|(.*)\|$", RECORD.read_text(), re.M)
    assert len(rows) > 10
    for eta, regions, critic, cells in rows:
        largest = float(cells.split("|")[3]) / 100
        rules = Rules(max_regions=1) if regions == "one" else Rules()
        asked = limited(with_eta(replace(of_critic[critic], rules=rules), int(eta)))
        assert asked.goal.step_margin >= largest, (eta, regions, critic)


@pytest.mark.parametrize("slower", [1.2, 2.0])
def test_a_plan_under_a_limit_is_predicted_within_its_margin_and_says_so(
    slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve, "method_of", lambda name: quick)
    fast = gpu_plan().evaluation
    assert fast is not None
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=slower * fast.step_s)
    made = committed(solve.plan(replace(PROBLEM, goal=goal), THINKING))
    assert made.evaluation is not None
    assert made.goal is not None
    assert made.goal.max_step_s == goal.max_step_s
    assert made.goal.step_margin > 0
    assert made.evaluation.step_s * (1 + made.goal.step_margin) <= slower * fast.step_s
    assert Plan.from_json(made.to_json()) == made
    text = explain(made)
    assert re.search(r"^limit .* a step, planned within .*: margin .* % for a staleness bound of", text, re.M)
    assert "(planned within " in made.binding


def test_a_placement_that_is_within_the_limit_but_not_within_the_margin_is_none() -> None:
    made = gpu_plan()
    assert made.placement is not None
    assert made.evaluation is not None
    near = limited(PROBLEM, 1.01 * made.evaluation.step_s)
    free = replace(near, goal=replace(near.goal, step_margin=0.0))
    assert isinstance(evaluate(CostTables(free), made.placement), Evaluation)
    refused = evaluate(CostTables(near), made.placement)
    assert isinstance(refused, Violation)
    assert refused.kind == "deadline"


@pytest.mark.slow
def test_an_infeasible_limit_says_what_the_margin_took() -> None:
    asked = problem(goal=Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=0.01))
    with pytest.raises(PlanInfeasible, match=r"at most 0\.01 s a step, planned within 0\.00.* for a margin of \d+ %"):
        committed(solve.plan(asked, THINKING, "exact"))
