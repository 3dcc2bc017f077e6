"""Section `oracle`: placements a second that the batched oracle judges, on one core.

Random placements of one grouping, that which comes up most, on the fleets of section `speed`; their parts are numbered
once (`planner.cost.batched.batch_tables`), as a search does, and `ROWS` of them are judged at a time. Before it is
timed, every answer is held against the oracle's. Beside the rate of numbered rows stand that of placements, numbering
included, and that of the oracle itself, one after the other.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from bench.planner_cases.baselines.sampling import drawn
from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, reached
from bench.planner_cases.speed import problem_of
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.cost.batched.batch_tables import BatchTables
from planner.cost.batched.evaluate_many import batch_tables_of, evaluate_many, evaluate_rows
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.layer_cuts import IntArray
from planner.problem.workload import Task

TARGETS = {64: 20_000, 1024: 2_000}
ROWS = 4096
PASSES = 5
DRAWS = 1000


def section() -> Section:
    return Section(name="oracle", cells=cells, reach=reach)


def cells(settings: Settings) -> list[Cell]:
    return [
        Cell(
            name=f"{num_gpus} {mode}",
            run=measure,
            arguments=(settings.data, settings.seed, num_gpus, mode == "async"),
        )
        for num_gpus in TARGETS
        for mode in ("async", "sync")
        if not settings.quick or (num_gpus, mode) == (64, "async")
    ]


def measure(data: Path, seed: int, num_gpus: int, is_async: bool) -> Row:
    cost_tables = CostTables(problem_of(data, seed, num_gpus, "grpo", is_async))
    placements = _of_one_grouping(cost_tables)
    batch_tables = batch_tables_of(cost_tables, tuple(group.tasks for group in placements[0].groups))
    _check(cost_tables, batch_tables, placements)
    many = [placements[i % len(placements)] for i in range(ROWS)]
    rows = _numbered(batch_tables, many)
    one_s = _seconds(lambda: [evaluate(cost_tables, placement) for placement in placements])
    return {
        "num_gpus": num_gpus,
        "is_async": is_async,
        "distinct": len(placements),
        "pools": float(np.mean([sum(len(group.pools) for group in each.groups) for each in placements])),
        "rows_per_s": ROWS / _seconds(lambda: evaluate_rows(batch_tables, *rows)),
        "placements_per_s": ROWS / _seconds(lambda: evaluate_many(cost_tables, many)),
        "one_by_one_per_s": len(placements) / one_s,
    }


def _of_one_grouping(cost_tables: CostTables) -> list[Placement]:
    found: dict[tuple[tuple[Task, ...], ...], list[Placement]] = defaultdict(list)
    for placement, _ in drawn(cost_tables, np.random.default_rng(0), DRAWS):
        ordered = Placement(groups=tuple(sorted(placement.groups, key=lambda group: group.tasks)))
        found[tuple(group.tasks for group in ordered.groups)].append(ordered)
    return max(found.values(), key=len)


def _numbered(batch_tables: BatchTables, placements: list[Placement]) -> tuple[IntArray, IntArray, IntArray]:
    numbers = [batch_tables.numbers(placement) for placement in placements]
    most = max(len(units) for units, _, _ in numbers)
    units = np.array([units + [-1] * (most - len(units)) for units, _, _ in numbers], dtype=np.int64)
    counts = np.array([counts + [0] * (most - len(counts)) for _, counts, _ in numbers], dtype=np.int64)
    return units, counts, np.array([meshes for _, _, meshes in numbers], dtype=np.int64)


def _check(cost_tables: CostTables, batch_tables: BatchTables, placements: list[Placement]) -> None:
    found = evaluate_rows(batch_tables, *_numbered(batch_tables, placements))
    for placement, step_s, verdict in zip(placements, found.step_s, found.verdict, strict=True):
        estimate = evaluate(cost_tables, placement)
        assert isinstance(estimate, Evaluation)
        assert verdict == 0
        assert abs(step_s / estimate.step_s - 1) < 1e-9, f"{step_s} s in a batch, {estimate.step_s} s alone"


def _seconds(work: Callable[[], object]) -> float:
    """The median of several passes, after one that fills caches."""
    times = []
    for _ in range(PASSES + 1):
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return median(times[1:])


def reach(rows: Rows) -> list[Row]:
    """The slower of both kinds counts."""
    found = []
    for num_gpus, target in TARGETS.items():
        rates = [row["rows_per_s"] for row in measured(rows) if row["num_gpus"] == num_gpus]
        if rates:
            found.append(reached(f"oracle_evals_per_s_{num_gpus}", min(rates), "placements/s", ">=", target))
    return found
