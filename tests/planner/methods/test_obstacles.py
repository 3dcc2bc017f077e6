from dataclasses import replace

import pytest

from planner.answer.outcome import Fact, Infeasible
from planner.cost.tables.cost_tables import CostTables
from planner.devices.catalogue import architecture
from planner.methods.obstacles import obstacle
from planner.problem.goal import Goal, Objective, Problem, Rules
from planner.problem.workload import TASKS, Task
from planner.solve import Thinking, plan
from tests.support.planner.gpu_plan import FLEET, PROBLEM, WORKLOAD

FREE = Problem(fleet=FLEET, workload=WORKLOAD)


def facts(problem: Problem) -> list[str]:
    found = obstacle(CostTables(problem))
    return [fact.what for fact in found.facts] if found else []


def ruled(**changes: object) -> Problem:
    return replace(FREE, rules=replace(Rules(), **changes))  # type: ignore[arg-type]


def test_what_has_a_placement_has_no_obstacle() -> None:
    assert facts(FREE) == facts(PROBLEM) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"pins": ((Task.REWARD, frozenset({"eu"})),)},
            ["reward has no devices that it may use", "reward is pinned to eu", "spot machines may only generate"],
        ),
        (
            {
                "pins": ((Task.REWARD, frozenset({"us"})), (Task.REFERENCE, frozenset({"ap"}))),
                "forbidden": ((Task.REWARD, frozenset({"us"})), (Task.REWARD, frozenset({"ap"}))),
            },
            ["reward has no devices that it may use", "reward is pinned to us", "reward is forbidden in us"],
        ),
        (
            {"forbidden_regions": frozenset({"us", "ap", "eu"})},
            ["generation has no devices that it may use", "nothing may run in ap, eu, us"],
        ),
    ],
)
def test_a_task_that_the_rules_leave_nothing_is_named_with_the_fewest_rules(
    changes: dict[str, object], expected: list[str]
) -> None:
    assert facts(ruled(**changes)) == expected


def test_devices_without_a_price_are_none_for_a_goal_in_dollars() -> None:
    free = tuple(
        replace(r, machines=tuple(replace(m, usd_per_gpu_hour=None) for m in r.machines)) for r in FLEET.regions
    )
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=100.0)
    problem = replace(FREE, fleet=replace(FLEET, regions=free), goal=goal)
    assert facts(problem) == [
        "generation has no devices that it may use",
        "ap/L40S/4 has no price (add usd_per_gpu_hour)",
        "eu/L40S/4/spot has no price (add usd_per_gpu_hour)",
        "us/A100-80GB-SXM/8 has no price (add usd_per_gpu_hour)",
    ]
    assert facts(replace(problem, goal=Goal())) == []


def test_a_missing_price_is_named_where_a_model_needs_those_devices() -> None:
    free = tuple(
        replace(r, machines=tuple(replace(m, usd_per_gpu_hour=None) for m in r.machines)) if r.name == "us" else r
        for r in FLEET.regions
    )
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=100.0)
    models = dict.fromkeys(TASKS, architecture("Qwen3-14B"))
    problem = replace(FREE, fleet=replace(FLEET, regions=free), goal=goal, workload=replace(WORKLOAD, models=models))
    assert facts(problem)[1:] == ["us/A100-80GB-SXM/8 has no price (add usd_per_gpu_hour)"]
    pinned = ruled(pins=((Task.REWARD, frozenset({"us"})),))
    assert facts(replace(pinned, fleet=problem.fleet, goal=goal)) == [
        "reward has no devices that it may use",
        "reward is pinned to us",
        "us/A100-80GB-SXM/8 has no price (add usd_per_gpu_hour)",
    ]


def test_regions_that_cannot_reach_each_other_are_named_with_the_pins_that_need_them() -> None:
    apart = replace(FLEET, links=())
    assert facts(replace(FREE, fleet=apart)) == [], "everything fits into one region"
    pins = ((Task.GENERATION, frozenset({"ap"})), (Task.ACTOR_TRAINING, frozenset({"us"})))
    assert facts(replace(ruled(pins=pins), fleet=apart)) == [
        "no link was measured from us to ap",
        "generation is pinned to ap",
        "actor training is pinned to us",
    ]
    must = replace(ruled(generating=frozenset({"us", "ap"})), fleet=apart)
    assert facts(must)[1:] == ["generation must run in ap, us"]


def test_a_model_that_fits_nowhere_is_named_with_the_largest_devices() -> None:
    small = ruled(pins=((Task.CRITIC_TRAINING, frozenset({"ap"})),))
    large = replace(small, workload=replace(WORKLOAD, models=dict.fromkeys(TASKS, architecture("Qwen3-14B"))))
    found = facts(large)
    assert found[0].startswith("critic training of Qwen3-14B (14.8 B parameters) fits on no devices that it may use")
    assert "the most memory is in ap: 4 L40S of 48 GB" in found[0]
    assert found[1] == "critic training is pinned to ap"


def test_tasks_that_do_not_fit_together_are_the_fewest_and_largest() -> None:
    huge = replace(FREE, workload=replace(WORKLOAD, models=dict.fromkeys(TASKS, architecture("Llama-2-70B"))))
    found = facts(huge)
    assert found[0].startswith("actor training of Llama-2-70B ")
    assert found[-1].startswith("the fleet's 28 devices have ")


def test_a_plan_is_refused_before_any_search() -> None:
    made = plan(ruled(forbidden_regions=frozenset({"us", "ap", "eu"})), Thinking(budget_s=1, now_s=lambda: 0.0))
    assert isinstance(made, Infeasible)
    assert made.conflict == "generation has no devices that it may use; and nothing may run in ap, eu, us"
    assert all(isinstance(fact, Fact) for fact in made.facts)
