from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.answer import outcome
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Fact, Found, Infeasible
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.explain.counterfactuals import Change, effect, lifts, unused_regions
from planner.explain.effects import effects_text, effects_tree
from planner.question.goal import Goal, Objective, Problem
from tests.support.gpu_plan import FLEET, PLACEMENT, PROBLEM, judged

BASE = judged()[1].evaluation.step_s


def nothing(_: Problem) -> outcome.Outcome:
    return outcome.BudgetExhausted(best=None, bound=None)


def same(problem: Problem) -> outcome.Outcome:
    """A search that finds the plan again, where it still holds."""
    evaluation = evaluate(Prices(problem), PLACEMENT)
    if not isinstance(evaluation, Evaluation):
        return Infeasible(conflict=(Fact(kind="rules", name="x", what=evaluation.what),))
    best = outcome.Incumbent(placement=PLACEMENT, evaluation=evaluation, bound=None, elapsed_s=0.0)
    return Found(best=best, trace=(best,))


def half(problem: Problem) -> outcome.Outcome:
    """A search that finds something twice as good."""
    found = judged()[1]
    better = replace(found, evaluation=replace(found.evaluation, step_s=BASE / 2, usd_per_hour=1.0))
    return Found(best=better, trace=(better,))


def of(kind: str, problem: Problem = PROBLEM) -> dict[str, Change]:
    return {change.subject: change for change in lifts(problem, PLACEMENT) if change.kind == kind}


def test_each_class_link_and_bound_is_tried_those_in_use_first() -> None:
    machines = list(of("machine"))
    assert machines == ["eu/L40S/4/spot", "us/A100-80GB-SXM/8", "ap/L40S/4"]
    assert set(of("link")) == {"us>eu", "eu>us"}
    assert set(of("eta")) == {"2"}


def test_a_change_adds_what_it_says() -> None:
    more = of("machine")["us/A100-80GB-SXM/8"].problem.fleet
    assert more.num_gpus == FLEET.num_gpus + 8
    faster = of("link")["us>eu"].problem.fleet.links
    assert sum(link.bytes_per_s for link in faster) == sum(link.bytes_per_s for link in FLEET.links) + 5e8
    assert of("eta")["2"].problem.workload.eta == 2


def test_an_uplinks_cap_and_the_goals_number_are_tried() -> None:
    capped = tuple(replace(r, wan_up_bytes_per_s=1e8 if r.name == "us" else None) for r in FLEET.regions)
    assert "us>" in of("link", replace(PROBLEM, fleet=replace(FLEET, regions=capped)))
    slow = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=100.0)
    assert of("limit", replace(PROBLEM, goal=slow))["max_step_s"].problem.goal.max_step_s == pytest.approx(110)
    rich = Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=100.0)
    assert of("limit", replace(PROBLEM, goal=rich))["max_usd_per_hour"].what == "110.00 dollars an hour allowed"


@pytest.mark.parametrize("solve", [nothing, same])
def test_a_resource_more_never_costs_anything_however_little_the_search_finds(
    solve: Callable[[Problem], outcome.Outcome],
) -> None:
    for change in lifts(PROBLEM, PLACEMENT):
        found = effect(change, PLACEMENT, BASE, solve)
        assert found.value is not None
        assert found.gain is not None
        assert found.gain >= -1e-9
    link = effect(of("link")["us>eu"], PLACEMENT, BASE, solve)
    assert link.gain is not None
    assert link.gain > 0.1, "weights to eu are most of the path"


def test_what_a_search_finds_is_the_gain() -> None:
    assert effect(of("machine")["ap/L40S/4"], PLACEMENT, BASE, half).gain == pytest.approx(0.5)


def test_each_unused_region_is_made_to_generate_or_says_why_not() -> None:
    (change,) = unused_regions(PROBLEM, PLACEMENT)
    assert change.subject == "ap"
    assert "ap" in change.problem.rules.generating
    assert effect(change, PLACEMENT, BASE, nothing).why == "no placement was found in time"
    assert effect(change, PLACEMENT, BASE, half).value == BASE / 2
    forbidden = replace(PROBLEM, rules=replace(PROBLEM.rules, forbidden_regions=frozenset({"ap"})))
    (change,) = unused_regions(forbidden, PLACEMENT)
    assert effect(change, PLACEMENT, BASE, half).why == "generation is not allowed there"


def test_effects_are_told_largest_first() -> None:
    changes = [effect(change, PLACEMENT, BASE, nothing) for change in lifts(PROBLEM, PLACEMENT)]
    regions = [effect(change, PLACEMENT, BASE, half) for change in unused_regions(PROBLEM, PLACEMENT)]
    lines = effects_text(changes, regions, PROBLEM.goal, 0.05).splitlines()
    assert lines[0] == "what would lift it:"
    gains = [float(line.split()[0]) for line in lines if " s a step)  " in line]
    assert gains == sorted(gains)
    assert "  no gain: " in "\n".join(lines)
    assert lines[-2] == "why regions are not used:"
    assert lines[-1].startswith("  ap: it would gain nothing (")
    assert effects_text([], [], PROBLEM.goal) == "nothing that was tried would lift it"
    tree = effects_tree(changes, regions)
    assert [each["subject"] for each in tree["unused_regions"]] == ["ap"]
    assert len(tree["lifts"]) == len(changes)
