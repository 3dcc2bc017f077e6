"""Section `limits`: whether plans under a limit keep it when they are simulated.

The twenty fleets of section `real` and the fleets of `examples/fleets` that have accelerators; on each of them three of
the workloads below in turn, so that every staleness bound meets every kind of fleet. Fleets without prices get one
dollar for each device and hour, since a goal in dollars cannot use devices that nobody priced. First the fastest
placement is searched; then three plans under limits: least dollars at 1.3 and at 2 times its seconds a step, and the
fastest placement for 1.3 times the dollars an hour of the second of them. All are planned within the limit less the
margin of `planner.problem.margins`, as `periplus plan` does, and played for forty steps.

`limit_missed_in_simulation` counts plans whose simulated mean of seconds a step is above the operator's limit, whose
dollars are above the operator's budget, or which come to a stand. Dollars are the rent and the simulated egress at the
simulated pace; where the budget's egress is what binds a plan, at the plan's pace, which the operator has to keep.
`limit_error_max` is the largest simulated over predicted seconds a step, less one: what a margin has to cover.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, reached
from bench.planner_cases.fleets.drawn import benchmark_fleets, load_tables
from bench.planner_cases.fleets.published_workloads import areal_hex_workload, hetrl_workload
from bench.planner_cases.real import DELTA, NUM_FLEETS
from bench.planner_cases.solving import Solved, solve
from planner.answer.placement import Placement
from planner.cost.oracle import rent_usd_per_hour
from planner.cost.tables.cost_tables import CostTables
from planner.files.loaders import load_fleet, load_workload
from planner.problem import margins
from planner.problem.fleet import Fleet
from planner.problem.goal import Goal, Objective, Problem
from planner.problem.workload import Workload
from planner.simulate.run_record import Simulated
from planner.simulate.simulator import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
METHOD = "auto"
BUDGET_S = 4.0
NUM_STEPS = 40
SLOWER = (1.3, 2.0)
"""Seconds a step that are allowed, over those of the fastest placement."""
RICHER = 1.3
"""Dollars an hour that are allowed, over those of the cheapest placement within the second of these limits."""
WORKLOADS_EACH = 3
ROOMS = "two-rooms"
"""The example without accelerators: no language model of these workloads fits on it."""


def section() -> Section:
    return Section(name="limits", cells=cells, reach=reach)


def workloads() -> Mapping[str, Workload]:
    """By name, in an order in which neighbours differ in their staleness bound."""

    def published(model: str, algorithm: str, eta: int, *, is_delta: bool) -> Workload:
        job = replace(hetrl_workload(model, algorithm, is_async=True).workload, eta=eta)
        return replace(job, weights=DELTA) if is_delta else job

    examples = {path.stem: load_workload(path) for path in sorted((EXAMPLES / "workloads").glob("*.yaml"))}
    return {
        "grpo-8b eta 0": published("Qwen3-8B", "grpo", 0, is_delta=True),
        "grpo-8b eta 1": published("Qwen3-8B", "grpo", 1, is_delta=False),
        "grpo-8b eta 4": published("Qwen3-8B", "grpo", 4, is_delta=True),
        "ppo-4b eta 2": published("Qwen3-4B", "ppo", 2, is_delta=True),
        "areal-7b eta 4": areal_hex_workload("DeepSeek-R1-Distill-Qwen-7B").workload,
        "ppo-4b eta 0": published("Qwen3-4B", "ppo", 0, is_delta=True),
        "grpo-4b eta 2": published("Qwen3-4B", "grpo", 2, is_delta=True),
        "ppo-8b eta 4": published("Qwen3-8B", "ppo", 4, is_delta=False),
        "ppo-4b eta 1": published("Qwen3-4B", "ppo", 1, is_delta=False),
        "grpo-4b eta 8": published("Qwen3-4B", "grpo", 8, is_delta=False),
        **examples,
    }


def cells(settings: Settings) -> list[Cell]:
    examples = [path.stem for path in sorted((EXAMPLES / "fleets").glob("*.yaml")) if path.stem != ROOMS]
    fleets = [*(f"fleet {i:02d}" for i in range(NUM_FLEETS)), *examples]
    names, found = list(workloads()), []
    for i, fleet in enumerate(fleets):
        chosen = [names[(WORKLOADS_EACH * i + k) % len(names)] for k in range(WORKLOADS_EACH)]
        found += [Cell(name=f"{fleet}, {job}", run=measure, arguments=(settings.data, fleet, job)) for job in chosen]
    return found[::26] if settings.quick else found


def measure(data: Path, fleet: str, job: str) -> Row:
    """One workload on one fleet: three plans under limits."""
    problem = Problem(fleet=_priced(_fleet(data, fleet)), workload=workloads()[job])
    fast = solve(problem, METHOD, budget_s=BUDGET_S)
    row: Row = {"eta": problem.workload.eta, "algorithm": problem.workload.algorithm, "fastest_s": None, "plans": []}
    if fast.best is None:
        return row
    plans: list[Row] = []
    goals = [Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=fast.value * slower) for slower in SLOWER]
    for goal in goals:
        solved = _within(problem, goal)
        plans.append(_played(solved, goal))
    if solved.best is not None:
        usd = solved.best.evaluation.usd_per_hour * RICHER
        goal = Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=usd)
        plans.append(_played(_within(problem, goal), goal))
    return row | {
        "fastest_s": fast.value,
        "plans": plans,
        "missed": sum(plan.get("missed", 0) for plan in plans),
        "error_max": max((plan["error"] for plan in plans if plan.get("error") is not None), default=None),
    }


def _within(problem: Problem, goal: Goal) -> Solved:
    return solve(margins.with_margin(replace(problem, goal=goal)), METHOD, budget_s=BUDGET_S)


def _played(solved: Solved, goal: Goal) -> Row:
    """What the simulator makes of a plan, beside the operator's limit."""
    row: Row = {"objective": goal.objective.value, "limit_s": goal.max_step_s, "limit_usd": goal.max_usd_per_hour}
    row["margin"] = solved.problem.goal.step_margin or solved.problem.goal.usd_margin
    if solved.best is None:
        return row | {"answer": "infeasible" if solved.is_infeasible else "none in time"}
    estimate = solved.best.evaluation
    seen = simulate(
        solved.problem,
        solved.placement,
        seed=0,
        num_steps=NUM_STEPS,
        idle=frozenset(estimate.idle),
        at_most=estimate.limited,
    )
    usd = _usd_per_hour(
        solved.problem, solved.placement, seen, at_least_s=estimate.step_s * (estimate.binding == "budget")
    )
    too_slow = goal.max_step_s is not None and seen.step_s > goal.max_step_s
    too_dear = goal.max_usd_per_hour is not None and usd > goal.max_usd_per_hour
    return row | {
        "regions": len({key.partition("/")[0] for key in _classes(solved.placement)}),
        "predicted_s": estimate.step_s,
        "simulated_s": seen.step_s if math.isfinite(seen.step_s) else None,
        "error": seen.step_s / estimate.step_s - 1 if math.isfinite(seen.step_s) else None,
        "predicted_usd": estimate.usd_per_hour,
        "simulated_usd": usd,
        "binding": estimate.binding,
        "lag_fraction": max((r.weights_s + r.trajectories_s for r in estimate.regions), default=0.0) / estimate.step_s,
        "missed": int(too_slow or too_dear or not math.isfinite(seen.step_s)),
    }


def _classes(placement: Placement) -> set[str]:
    return {pool.device_class for group in placement.groups for pool in group.pools}


def _usd_per_hour(problem: Problem, placement: Placement, seen: Simulated, *, at_least_s: float) -> float:
    """Rent, and the simulated egress at the simulated pace or a slower one that the plan keeps."""
    cost_tables = {(link.src_region, link.dst_region): link.usd_per_gbyte for link in problem.fleet.links}
    usd = sum(use.num_bytes / 1e9 * cost_tables.get((use.src_region, use.dst_region), 0.0) for use in seen.links)
    return rent_usd_per_hour(CostTables(problem), placement) + usd * 3600 / max(seen.step_s, at_least_s)


def _fleet(data: Path, name: str) -> Fleet:
    kind, _, number = name.partition(" ")
    if kind == "fleet":
        return benchmark_fleets(load_tables(data))[int(number)].fleet
    return load_fleet(EXAMPLES / "fleets" / f"{name}.yaml")


def _priced(fleet: Fleet) -> Fleet:
    """The fleet, at a dollar for each device and hour where no device has a price."""
    if any(each.usd_per_gpu_hour is not None for region in fleet.regions for each in region.machines):
        return fleet
    regions = tuple(
        replace(region, machines=tuple(replace(each, usd_per_gpu_hour=1.0) for each in region.machines))
        for region in fleet.regions
    )
    return replace(fleet, regions=regions)


def reach(rows: Rows) -> list[Row]:
    plans = [plan for row in measured(rows) for plan in row["plans"] if "missed" in plan]
    if not plans:
        return []
    return [reached("limit_missed_in_simulation", sum(plan["missed"] for plan in plans), "plans", "==", 0)]
