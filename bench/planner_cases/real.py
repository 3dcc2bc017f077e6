"""Section `real`: twenty fleets of measured links and listed prices, 3 to 20 regions of three clouds.

Numbers of machines are drawn (`fleets.drawn.benchmark_fleets`), everything else is from the tables.
Three questions each, for an asynchronous GRPO job of 8B with deltas of one percent of the weights at 6.9 bits a change
(`bench/results/2026-11-21-weights.md`): the best throughput; the best throughput of one region alone; the least dollars
at three quarters of that one region's throughput, in one region and anywhere. *Saved* is the difference of the latter.
`real_s_max` is the longest time until an answer is proved within one percent, over the two questions without a limit of
regions; it is not reached if one of them was not proved.
"""

from dataclasses import replace
from pathlib import Path

from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, most, reached
from bench.planner_cases.fleets.drawn import benchmark_fleets, load_tables
from bench.planner_cases.fleets.published_workloads import hetrl_workload
from bench.planner_cases.solving import Solved, solve
from planner.problem.goal import Goal, Objective, Problem, Rules
from planner.problem.workload import WeightTransfer

METHOD = "auto"
NUM_FLEETS = 20
BUDGET_S = 30.0
MAX_GAP = 0.01
MAX_S = 5.0
ETA = 2
DELTA = WeightTransfer(bytes_per_param=0.0101 * 6.91 / 8, is_delta=True)
SLOWER = 4 / 3
"""Seconds a step that the questions in dollars allow, over those of the best single region."""


def section() -> Section:
    return Section(name="real", cells=cells, reach=reach)


def cells(settings: Settings) -> list[Cell]:
    chosen = (0,) if settings.quick else range(NUM_FLEETS)
    budget_s = 2.0 if settings.quick else BUDGET_S
    return [Cell(name=f"fleet {i:02d}", run=measure, arguments=(settings.data, i, budget_s)) for i in chosen]


def measure(data: Path, index: int, budget_s: float) -> Row:
    fleet = benchmark_fleets(load_tables(data))[index].fleet
    job = replace(hetrl_workload("Qwen3-8B", "grpo", is_async=True).workload, eta=ETA, weights=DELTA)
    problem = Problem(fleet=fleet, workload=job)
    alone = Rules(max_regions=1)
    fast = solve(problem, METHOD, budget_s=budget_s)
    fast_alone = solve(replace(problem, rules=alone), METHOD, budget_s=budget_s)
    row: Row = {
        "regions": len(fleet.regions),
        "num_gpus": fleet.num_gpus,
        **_figures("throughput", fast),
        **_figures("throughput_alone", fast_alone),
    }
    if fast_alone.best is None:
        return row
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=fast_alone.value * SLOWER)
    cheap = solve(replace(problem, goal=goal), METHOD, budget_s=budget_s)
    cheap_alone = solve(replace(problem, goal=goal, rules=alone), METHOD, budget_s=budget_s)
    row |= _figures("cost", cheap) | _figures("cost_alone", cheap_alone)
    if cheap.best and cheap_alone.best:
        row["usd_per_hour_saved"] = cheap_alone.value - cheap.value
        row["fraction_saved"] = 1 - cheap.value / cheap_alone.value
    return row | {"speedup": fast_alone.value / fast.value}


def _figures(name: str, solved: Solved) -> Row:
    return {
        f"{name}_value": solved.value if solved.best else None,
        f"{name}_gap": None if solved.is_infeasible else solved.gap,
        f"{name}_s": solved.wall_s if solved.is_infeasible else solved.close_s or solved.wall_s,
    }


def reach(rows: Rows) -> list[Row]:
    done = measured(rows)
    gaps = [gap for name in ("throughput_gap", "cost_gap") if (gap := most(done, name)) is not None]
    times = [s for name in ("throughput_s", "cost_s") if (s := most(done, name)) is not None]
    found = []
    if gaps:
        found.append(reached("real_gap_max", max(gaps), "fraction", "<=", MAX_GAP))
    if times:
        row = reached("real_s_max", max(times), "s", "<=", MAX_S)
        found.append(row | {"ok": row["ok"] and max(gaps, default=1.0) <= MAX_GAP})
    return found
