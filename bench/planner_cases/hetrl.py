"""Section `hetrl`: HetRL's 64 devices in its four networks, three models, PPO and GRPO, synchronous and not.

For each of 48 cases: the planner's answer and what it proved; the two static families (their pools and stages may be
over the whole fleet too, `Limits.max_train_blocks` raised for them); our HetRL and AReaL-Hex methods with as much time,
compared at `TIMES_S`; and the answer played in the simulator. Ratios are of seconds a step: of the family's best
placement over ours, and over the least that any placement can have (the certified upper bound on that ratio). Both
sides are judged by our oracle; HetRL's ranges beside them are measured on real clusters, and its baselines were not
searched for the best.

A published range is of synchronous runs over verl, of asynchronous runs over StreamRL and over verl. Source: HetRL,
arXiv 2512.12476, ranges by scenario as a public note of the paper's full text has them; multi-continent asynchronous
over verl is left out, as its upper end (10.76) contradicts the abstract's 9.17.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import geometric_mean

from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, most, reached
from bench.planner_cases.fleets.published import HetrlScenario, hetrl_fleet
from bench.planner_cases.fleets.published_workloads import ALGORITHMS, HETRL_MODELS, hetrl_workload
from bench.planner_cases.solving import Solved, solve
from planner.answer.placement import Placement, Sharding
from planner.problem.goal import STUDY, Problem
from planner.problem.workload import TRAINING
from planner.simulate.simulator import simulate

TIMES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
OURS = "auto"
HEURISTICS = ("hetrl", "areal_hex")
FAMILIES = ("verl", "streamrl")
FAMILY_BUDGET_S = 300.0
PUBLISHED: dict[str, dict[str, tuple[float, float] | None]] = {
    "single-region": {"sync_verl": (1.51, 2.05), "async_streamrl": (1.10, 1.31), "async_verl": None},
    "multi-region-hybrid": {"sync_verl": (3.01, 4.99), "async_streamrl": (1.11, 1.27), "async_verl": (4.07, 9.17)},
    "multi-country": {"sync_verl": (1.40, 3.07), "async_streamrl": (1.19, 1.50), "async_verl": (1.71, 4.00)},
    "multi-continent": {"sync_verl": (2.24, 5.46), "async_streamrl": (2.25, 3.72), "async_verl": None},
}
STEPS = 6
MAX_GAP = 0.01
MAX_SIMULATED_ERROR = 0.10


def section() -> Section:
    return Section(name="hetrl", cells=cells, reach=reach)


def problem_of(scenario: str, model: str, algorithm: str, is_async: bool) -> Problem:
    workload = hetrl_workload(model, algorithm, is_async=is_async).workload
    return Problem(fleet=hetrl_fleet(HetrlScenario(scenario)).fleet, workload=workload)


def cells(settings: Settings) -> list[Cell]:
    cases = list(product([str(each) for each in HetrlScenario], HETRL_MODELS, ALGORITHMS, (False, True)))
    if settings.quick:
        cases = [case for case in cases if case[1:] == (HETRL_MODELS[1], "grpo", True)][-1:]
    return [
        Cell(
            name=f"{scenario} {model} {algorithm} {'async' if is_async else 'sync'}",
            run=compare,
            arguments=(scenario, model, algorithm, is_async, TIMES_S[2] if settings.quick else TIMES_S[-1]),
        )
        for scenario, model, algorithm, is_async in cases
    ]


def compare(scenario: str, model: str, algorithm: str, is_async: bool, budget_s: float) -> Row:
    """One case."""
    problem = problem_of(scenario, model, algorithm, is_async)
    times = [seconds for seconds in TIMES_S if seconds <= budget_s]
    ours = solve(problem, OURS, budget_s=budget_s)
    others = {name: solve(problem, name, budget_s=budget_s) for name in HEURISTICS}
    row: Row = {
        "scenario": scenario,
        "model": model,
        "algorithm": algorithm,
        "is_async": is_async,
        "step_s": ours.value,
        "bound_s": ours.bound,
        "gap": ours.gap,
        "first_s": ours.first_s,
        "one_percent_s": ours.close_s,
        "wall_s": ours.wall_s,
        "binding": ours.best.evaluation.binding if ours.best else None,
        "by_time": {each.method: _by_time(each, times) for each in (ours, *others.values())},
        "beaten": sum(other.value_at(s) < ours.value_at(s) * (1 - 1e-9) for other in others.values() for s in times),
    }
    for name in FAMILIES:
        row |= _over(name, problem, ours, scenario, is_async, budget_s)
    return row | _played(problem, ours)


def _by_time(solved: Solved, times: Sequence[float]) -> Row:
    values = {f"{seconds:g}": solved.value_at(seconds) for seconds in times}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _over(name: str, problem: Problem, ours: Solved, scenario: str, is_async: bool, budget_s: float) -> Row:
    """One static family beside ours."""
    whole = replace(problem, limits=replace(STUDY, max_train_blocks=len(problem.fleet.regions) * 3))
    family_budget_s = FAMILY_BUDGET_S if budget_s == TIMES_S[-1] else 5.0
    solved = solve(whole, name, budget_s=family_budget_s)
    published = PUBLISHED[scenario].get(f"{'async' if is_async else 'sync'}_{name}")
    return {
        f"{name}_step_s": solved.value if solved.best else None,
        f"{name}_search_s": solved.wall_s,
        f"{name}_is_whole": solved.wall_s < family_budget_s,
        f"{name}_ratio": solved.value / ours.value if solved.best else None,
        f"{name}_ratio_at_most": solved.value / ours.bound if solved.best and ours.bound else None,
        f"{name}_published": published,
        f"{name}_is_in_space": solved.best is not None and _is_in_space(problem, solved.placement),
        f"{name}_is_cornered": solved.best is not None and _is_cornered(solved.placement),
    }


def _is_in_space(problem: Problem, placement: Placement) -> bool:
    """Whether our answer's bound is a bound for it: it would be none where the raised limit was used."""
    return all(len(group.pools) <= problem.limits.max_train_blocks for group in placement.groups if group.trains)


def _is_cornered(placement: Placement) -> bool:
    """Whether memory left only the smallest way to train: full sharding, one sample a micro-batch."""
    layouts = [
        layout
        for group in placement.groups
        for pool in group.pools
        for task, layout in pool.layouts
        if task in TRAINING
    ]
    return any(layout.sharding is Sharding.FULL and layout.micro_batch == 1 for layout in layouts)


def _played(problem: Problem, ours: Solved) -> Row:
    if ours.best is None:
        return {"simulated_step_s": None, "simulated_error": None}
    seen = simulate(
        problem,
        ours.placement,
        seed=1,
        num_steps=STEPS,
        idle=frozenset(ours.best.evaluation.idle),
        at_most=ours.best.evaluation.limited,
    )
    return {"simulated_step_s": seen.step_s, "simulated_error": abs(ours.value / seen.step_s - 1)}


def reach(rows: Rows) -> list[Row]:
    done = measured(rows)
    if not done:
        return []
    gap, error = most(done, "gap"), most(done, "simulated_error")
    found = [reached("beaten_by_heuristics", sum(row["beaten"] for row in done), "times", "==", 0)]
    if gap is not None:
        found.append(reached("gap_max", gap, "fraction", "<=", MAX_GAP))
    if error is not None:
        found.append(reached("hetrl_simulated_error_max", error, "fraction", "<=", MAX_SIMULATED_ERROR))
    return found


def summary(rows: Rows) -> Row:
    """Ratios by scenario beside the published ranges: least, geometric mean, largest, and the largest bound."""
    table: Row = {}
    for scenario, key in product(PUBLISHED, ("sync_verl", "async_verl", "async_streamrl", "sync_streamrl")):
        timing, name = key.split("_")
        chosen = [
            row
            for row in measured(rows)
            if row["scenario"] == scenario and row["is_async"] == (timing == "async") and row[f"{name}_ratio"]
        ]
        if chosen:
            ratios = [row[f"{name}_ratio"] for row in chosen]
            table[f"{scenario} {timing} over {name}"] = {
                "cases": len(ratios),
                "least": min(ratios),
                "mean": geometric_mean(ratios),
                "largest": max(ratios),
                "certified_at_most": most(chosen, f"{name}_ratio_at_most"),
                "published": PUBLISHED[scenario].get(key),
            }
    return table
