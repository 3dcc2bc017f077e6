"""Section `speed`: how soon there is a plan, how soon it is proved within one percent, and with how much memory.

Fleets of measured links and listed prices (`fleets.drawn.scaled_fleet`): 64 accelerators in 4
regions, 1,024 in 16, 10,000 in 32; HetRL's 8B jobs, PPO and GRPO, synchronous and not, full copies of weights. Times
are of the method `auto`, from before the first price is computed, each case in a process of its own; the worst of four
counts. Memory is the largest resident size of that process, interpreter and solver included.
"""

from itertools import product
from pathlib import Path

from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, most, reached
from bench.planner_cases.fleets.drawn import load_tables, scaled_fleet
from bench.planner_cases.fleets.published_workloads import hetrl_workload
from bench.planner_cases.solving import solve
from planner.problem.goal import Problem

SIZES = {64: 2.0, 1024: 5.0, 10000: 15.0}
"""Accelerators, and seconds within which the plan is to be proved within one percent."""
MAX_FIRST_S = 0.2
MAX_GIB = 2.0
MODEL = "Qwen3-8B"
BUDGET_S = 60.0


def section() -> Section:
    return Section(name="speed", cells=cells, reach=reach)


def cells(settings: Settings) -> list[Cell]:
    cases = list(product(SIZES, ("grpo", "ppo"), (True, False)))
    if settings.quick:
        cases = [case for case in cases if case == (min(SIZES), "grpo", True)]
    budget_s = 5.0 if settings.quick else BUDGET_S
    return [
        Cell(
            name=f"{num_gpus} {algorithm} {'async' if is_async else 'sync'}",
            run=measure,
            arguments=(settings.data, settings.seed, num_gpus, algorithm, is_async, budget_s),
        )
        for num_gpus, algorithm, is_async in cases
    ]


def problem_of(data: Path, seed: int, num_gpus: int, algorithm: str, is_async: bool) -> Problem:
    fleet = scaled_fleet(load_tables(data), num_gpus, seed=seed).fleet
    return Problem(fleet=fleet, workload=hetrl_workload(MODEL, algorithm, is_async=is_async).workload)


def measure(data: Path, seed: int, num_gpus: int, algorithm: str, is_async: bool, budget_s: float) -> Row:
    problem = problem_of(data, seed, num_gpus, algorithm, is_async)
    solved = solve(problem, "auto", budget_s=budget_s)
    return {
        "num_gpus": num_gpus,
        "regions": len(problem.fleet.regions),
        "algorithm": algorithm,
        "is_async": is_async,
        "first_s": solved.first_s,
        "one_percent_s": solved.close_s,
        "wall_s": solved.wall_s,
        "step_s": solved.value if solved.best else None,
        "gap": solved.gap,
        "gpus_used": solved.placement.num_gpus if solved.best else None,
        "trace": solved.trace,
    }


def reach(rows: Rows) -> list[Row]:
    """A case that was not proved within one percent in its time counts with all of that time."""
    found = []
    for num_gpus, target in SIZES.items():
        done = [row for row in measured(rows) if row["num_gpus"] == num_gpus]
        if not done:
            continue
        close = [row["wall_s"] if row["one_percent_s"] is None else row["one_percent_s"] for row in done]
        found.append(reached(f"one_percent_s_{num_gpus}", max(close), "s", "<=", target))
    small = [row for row in measured(rows) if row["num_gpus"] == min(SIZES)]
    if (first := most(small, "first_s")) is not None:
        found.insert(0, reached("first_feasible_s", first, "s", "<=", MAX_FIRST_S))
    large = [row for row in measured(rows) if row["num_gpus"] == max(SIZES)]
    if (peak := most(large, "peak_gib")) is not None:
        found.append(reached("peak_gib", peak, "GiB", "<=", MAX_GIB))
    return found
