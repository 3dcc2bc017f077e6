from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.answer import outcome
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Fact, Found, Infeasible
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.explain.counterfactuals import WhatIf, effect, lifts, unanswered, unused_regions
from planner.explain.effects import effects_text, effects_tree, percent
from planner.problem.goal import Goal, Objective, Problem
from tests.support.planner.gpu_plan import FLEET, PLACEMENT, PROBLEM, estimate

BASE = estimate()[1].evaluation.step_s


def nothing(_: Problem) -> outcome.Outcome:
    return outcome.BudgetExhausted(best=None, bound=None)


def same(problem: Problem) -> outcome.Outcome:
    """A search that finds the plan again, where it still holds."""
    evaluation = evaluate(CostTables(problem), PLACEMENT)
    if not isinstance(evaluation, Evaluation):
        return Infeasible(facts=(Fact(kind="rules", name="x", what=evaluation.what),))
    best = outcome.Incumbent(placement=PLACEMENT, evaluation=evaluation, bound=None, elapsed_s=0.0)
    return Found(best=best, trace=(best,))


def half(problem: Problem) -> outcome.Outcome:
    """A search that finds something twice as good."""
    found = estimate()[1]
    better = replace(found, evaluation=replace(found.evaluation, step_s=BASE / 2, usd_per_hour=1.0))
    return Found(best=better, trace=(better,))


def of(kind: str, problem: Problem = PROBLEM) -> dict[str, WhatIf]:
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
    gains = [float(line.split()[2]) for line in lines if " s a step)  " in line]
    assert gains
    assert gains == sorted(gains, reverse=True)
    assert all(line.startswith("  at least ") for line in lines if " s a step)  " in line)
    assert lines[-3].endswith("and those below 5.0 % may be none: the plan is proved no closer)")
    assert lines[-2] == "why regions are not used:"
    assert lines[-1].startswith("  ap: a short search found a better plan that generates there too: ")
    assert effects_text([], [], PROBLEM.goal) == "nothing that was tried was found to lift it"
    tree = effects_tree(changes, regions)
    assert [each["subject"] for each in tree["unused_regions"]] == ["ap"]
    assert len(tree["lifts"]) == len(changes)


def proved(share: float) -> Callable[[Problem], outcome.Outcome]:
    """A search that finds the plan again, and proves that nothing is below that share of it."""

    def solve(problem: Problem) -> outcome.Outcome:
        found = replace(estimate()[1], bound=share * BASE)
        return outcome.BudgetExhausted(best=found, bound=found.bound)

    return solve


@pytest.mark.parametrize(
    ("solve", "line"),
    [
        (nothing, "  not settled in the time given: one more machine of 4 devices L40S in ap"),
        (proved(0.8), "  not settled in the time given: one more machine of 4 devices L40S in ap"),
        (proved(0.995), "  no gain above 0.50 %: one more machine of 4 devices L40S in ap"),
        (proved(1.0), "  no gain: one more machine of 4 devices L40S in ap"),
    ],
)
def test_no_gain_is_said_only_where_it_is_proved(solve: Callable[[Problem], outcome.Outcome], line: str) -> None:
    found = effect(of("machine")["ap/L40S/4"], PLACEMENT, BASE, solve)
    text = effects_text([found], [], PROBLEM.goal, 0.0, budget_s=2.0, plan_s=10.0)
    assert line in text.splitlines()
    assert "(gains are of what a short search found: there may be more)" in text
    needed = "(1 questions shared 2 s; `periplus plan explain PLAN --budget-s 10` gives each 10 s)"
    assert (needed in text) == ("not settled" in line)
    assert effects_tree([found], [])["lifts"][0]["settled"] == ("not settled" not in line)


def test_what_nobody_asked_is_not_settled() -> None:
    text = effects_text([unanswered(of("machine")["ap/L40S/4"])], [], PROBLEM.goal, None)
    assert "not settled in the time given: one more machine" in text
    assert "nothing is proved of the plan itself" in text


def test_spot_machines_are_called_so() -> None:
    assert of("machine")["eu/L40S/4/spot"].what == "one more machine of 4 devices L40S spot in eu"


def test_a_region_without_a_way_back_says_which_link_is_missing() -> None:
    one_way = tuple(link for link in FLEET.links if (link.src_region, link.dst_region) != ("ap", "us"))
    problem = replace(PROBLEM, fleet=replace(FLEET, links=one_way))
    (change,) = unused_regions(problem, PLACEMENT)
    assert effect(change, PLACEMENT, BASE, half).why == "no link was measured from ap to us"


def test_a_region_whose_machines_have_no_price_says_so_where_dollars_count() -> None:
    free = tuple(
        replace(r, machines=tuple(replace(m, usd_per_gpu_hour=None) for m in r.machines)) if r.name == "ap" else r
        for r in FLEET.regions
    )
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=1000.0)
    problem = replace(PROBLEM, fleet=replace(FLEET, regions=free), goal=goal)
    (change,) = unused_regions(problem, PLACEMENT)
    assert effect(change, PLACEMENT, BASE, half).why == "its machines have no price (add usd_per_gpu_hour)"


def test_shares_are_never_in_powers_of_ten() -> None:
    shares = [percent(share) for share in (0.0012, 0.0321, 0.0999, 0.321, 0.996)]
    assert shares == ["0.12 %", "3.2 %", "10 %", "32 %", "100 %"]
