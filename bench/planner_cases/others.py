"""Sections `simulation` and `cost`: figures of the two benchmarks that stand by themselves.

`simulation`: cells of `bench/planner_cases/simulation.py`, one a process; `cost`: all of `bench/planner_cases/cost.py`.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured

ROOT = Path(__file__).parents[2]


def simulation() -> Section:
    return Section(name="simulation", cells=_simulation_cells, reach=_simulation_reach)


def cost() -> Section:
    return Section(name="cost", cells=_cost_cells, reach=_cost_reach)


def _simulation_cells(settings: Settings) -> list[Cell]:
    from bench.planner_cases import simulation

    made = simulation.cells(quick=settings.quick, seed=settings.seed, num_plans=200)
    return [Cell(name=each.name, run=compare, arguments=(each,)) for each in (made[:1] if settings.quick else made)]


def compare(cell: object) -> Row:
    from bench.planner_cases import simulation

    assert isinstance(cell, simulation.Cell)
    return {"compared": [asdict(row) for row in simulation.compare(cell)]}


def _simulation_reach(rows: Rows) -> list[Row]:
    from bench.planner_cases import simulation

    done = [simulation.Compared(**each) for row in measured(rows) for each in row["compared"]]
    return simulation.reach_of(done) if done else []


def _cost_cells(settings: Settings) -> list[Cell]:
    return [Cell(name="held out", run=held_out, arguments=(settings.data, settings.quick))]


def held_out(data: Path, quick: bool) -> Row:
    """The other benchmark's record."""
    command = [sys.executable, "-m", "bench.planner_cases.cost", str(data), *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise RuntimeError(f"bench.planner_cases.cost: {done.stderr.strip().splitlines()[-1:]}")
    record = json.loads(done.stdout.strip().splitlines()[-1])
    return {"results": record["results"], "reach": record["reach"]}


def _cost_reach(rows: Rows) -> list[Row]:
    return [each for row in measured(rows) for each in row["reach"]]
