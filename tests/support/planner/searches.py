"""Small problems for searches, and a clock that stands still."""

from dataclasses import replace

from bench.planner_cases.fleets.published import HetrlScenario, hetrl_fleet
from bench.planner_cases.fleets.published_workloads import hetrl_workload
from planner.problem.fleet import Fleet
from planner.problem.goal import STUDY, Goal, Limits, Problem, Rules

PLAIN = Goal()
FREE = Rules()


def problem(
    scenario: HetrlScenario = HetrlScenario.MULTI_REGION_HYBRID,
    *,
    model: str = "Qwen3-4B",
    algorithm: str = "grpo",
    is_async: bool = True,
    goal: Goal = PLAIN,
    rules: Rules = FREE,
    limits: Limits = STUDY,
) -> Problem:
    """HetRL's fleet and workload."""
    workload = hetrl_workload(model, algorithm, is_async=is_async).workload
    return Problem(fleet=priced(hetrl_fleet(scenario).fleet), workload=workload, goal=goal, rules=rules, limits=limits)


def priced(fleet: Fleet) -> Fleet:
    """With made-up prices, so that goals in dollars can be asked."""
    usd = {"A100-40GB-SXM": 2.0, "L40S": 1.0, "L4": 0.5}
    return replace(
        fleet,
        regions=tuple(
            replace(r, machines=tuple(replace(m, usd_per_gpu_hour=usd[m.gpu]) for m in r.machines))
            for r in fleet.regions
        ),
    )


def still() -> float:
    """Searches with a budget of evaluations need no clock."""
    return 0.0
