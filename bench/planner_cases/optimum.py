"""Section `bruteforce`: the exact method's answer is the best of all placements, on 300 small problems.

Half have up to 7 devices, each placed by itself; 25 have up to 4 and five or six tasks; 25 have machines of three and
six devices; one third have up to 24 devices, in counts. What is compared is the objective's value, within 1e-6; that
there is no plan counts as an answer. Problems with more than `MOST` placements are passed over, and so are those
without a plan once they are more than `INFEASIBLE` of a kind. Cases in dollars get a limit around what the best plan
for throughput takes.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from bench.planner_cases import brute_force, small
from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, reached
from bench.planner_cases.solving import run
from planner.methods.exact.method import search
from planner.problem.goal import Goal, Objective, Problem

MOST = 30_000
MOST_QUICK = 2_000
TOLERANCE = 1e-6
INFEASIBLE = 0.15
KINDS = {
    "devices": (small.DEVICES, 150),
    "many tasks": (small.MANY_TASK_DEVICES, 25),
    "odd machines": (small.ODD_CLASSES, 25),
    "synchronous classes": (small.SYNCHRONOUS_CLASSES, 50),
    "asynchronous classes": (small.ASYNCHRONOUS_CLASSES, 50),
}
PER_CELL = 25
BUDGET_S = 60.0


def section() -> Section:
    return Section(name="bruteforce", cells=cells, reach=reach)


def cells(settings: Settings) -> list[Cell]:
    made = []
    for kind, (_, count) in KINDS.items():
        wanted = 2 if settings.quick else count
        for first in range(0, wanted, PER_CELL):
            num = min(PER_CELL, wanted - first)
            made.append(Cell(name=f"{kind} {first}", run=compare, arguments=(kind, first, num, settings.quick)))
    return made


def compare(kind: str, first: int, num: int, quick: bool) -> Row:
    """So many cases; cells take their problems from ranges of numbers of their own."""
    size, _ = KINDS[kind]
    most = MOST_QUICK if quick else MOST
    worst, compared, infeasible, placements = 0.0, 0, 0, 0
    wrong: list[Row] = []
    for number, problem in _problems(size, 1000 * first, most):
        best = brute_force.best(problem, most=most, is_reduced=not size.has_dollars)
        if best is None or (best.value is None and infeasible + 1 > max(1.0, INFEASIBLE * num)):
            continue
        infeasible += best.value is None
        compared += 1
        placements += best.num_placements
        solved = run(problem, "exact", partial(search, gap=0.0), budget_s=BUDGET_S)
        off = _off(best.value, solved.value if solved.best else None, solved.is_infeasible)
        if solved.bound is not None and best.value is not None:
            off = max(off, solved.bound / best.value - 1)
        worst = max(worst, off)
        if off > TOLERANCE:
            found = solved.value if solved.best else None
            wrong.append({"number": number, "best": best.value, "exact": found, "bound": solved.bound, "off": off})
        if compared == num:
            break
    return {
        "cases": compared,
        "infeasible": infeasible,
        "placements": placements,
        "mismatches": len(wrong),
        "worst": worst,
        "wrong": wrong,
    }


def _problems(size: small.Size, first: int, most: int) -> Iterator[tuple[int, Problem]]:
    """By number; those in dollars with their limit."""
    for number in range(first, first + 1000):
        problem = small.problem(number, size)
        if problem.goal.objective is Objective.THROUGHPUT:
            yield number, problem
            continue
        free = replace(problem, goal=Goal())
        best = brute_force.best(free, most=most)
        if best is None:
            continue
        if best.value is None or best.placement is None:
            yield number, free
            continue
        usd = brute_force.usd_per_hour(free, best.placement)
        yield number, small.with_deadline(problem, best.value, usd, np.random.default_rng([number, 1]))


def _off(best: float | None, found: float | None, is_infeasible: bool) -> float:
    """Relative difference; 1 where one of the two has a plan and the other has none."""
    if best is None or found is None:
        return 0.0 if best is None and found is None and is_infeasible else 1.0
    return abs(found / best - 1) if best > 0 else abs(found - best)


def reach(rows: Rows) -> list[Row]:
    done = measured(rows)
    if not done:
        return []
    mismatches = sum(row["mismatches"] for row in done)
    return [reached("bruteforce_mismatches", mismatches, "cases", "==", 0)]
