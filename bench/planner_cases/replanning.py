"""Section `replan`: how soon a running plan answers a change, and how much of it moves.

The fleet of 1,024 accelerators of section `speed` and its plan. Changes, each to a planner that was kept ready with
that plan: every link from the trainer's region to one that generates, a tenth as fast; and a tenth of the fleet's
machines gone, drawn by chance, or a tenth more. Seconds are of the answer alone. *Moved* are devices that do something
afterwards which they did not do before, over all that the new plan uses.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, most, reached
from bench.planner_cases.solving import solve
from bench.planner_cases.speed import problem_of
from planner.answer.placement import Placement
from planner.cost.oracle import trainer_region
from planner.cost.pools import Prices
from planner.question.fleet import Fleet, Machines
from planner.question.goal import Problem
from planner.question.workload import Task
from planner.replan.moves import num_moved
from planner.replan.replanner import Replan, Replanner

NUM_GPUS = 1024
CHANGED = 0.1
SLOWER = 0.1
MAX_LINK_S = 0.1
MAX_INVENTORY_S = 1.0
MAX_MOVED = 0.10
BUDGET_S = 20.0
LINKS, FLEETS = 8, 4
"""Changes of each kind."""


def section() -> Section:
    return Section(name="replan", cells=cells, reach=reach)


def cells(settings: Settings) -> list[Cell]:
    budget_s = 3.0 if settings.quick else BUDGET_S
    modes = ("async",) if settings.quick else ("async", "sync")
    return [
        Cell(name=mode, run=measure, arguments=(settings.data, settings.seed, mode == "async", budget_s))
        for mode in modes
    ]


def measure(data: Path, seed: int, is_async: bool, budget_s: float) -> Row:
    problem = problem_of(data, seed, NUM_GPUS, "grpo", is_async)
    solved = solve(problem, "auto", budget_s=budget_s)
    plan = solved.placement
    links = [_changed(problem, plan, _slower(problem.fleet, link)) for link in _used_links(problem, plan)[:LINKS]]
    fleets = [
        _changed(problem, plan, _with_fleet(_redrawn(problem.fleet, np.random.default_rng([seed, i]), sign)))
        for i in range(FLEETS // 2)
        for sign in (-1, 1)
    ]
    return {
        "step_s": solved.value,
        "gap": solved.gap,
        "gpus_used": plan.num_gpus,
        "link_s_max": most(links, "seconds"),
        "inventory_s_max": most(fleets, "seconds"),
        "moved_max": most(fleets, "moved"),
        "links": links,
        "fleets": fleets,
    }


def _changed(problem: Problem, plan: Placement, change: Callable[[Replanner], Replan]) -> Row:
    planner = Replanner(Prices(problem), plan, now_s=time.monotonic)
    began_s = time.perf_counter()
    answer = change(planner)
    seconds = time.perf_counter() - began_s
    return {
        "seconds": seconds,
        "is_kept": answer.is_kept,
        "moved": num_moved(plan, answer.placement) / answer.placement.num_gpus,
        "step_s": answer.evaluation.step_s,
        "migration_s": answer.migration.total_s,
    }


def _used_links(problem: Problem, plan: Placement) -> list[tuple[str, str]]:
    prices = Prices(problem)
    home = trainer_region(prices, plan)
    pools = plan.group_of(Task.GENERATION).pools
    regions = sorted({prices.classes[pool.device_class].region.name for pool in pools} - {home})
    return [(home, region) for region in regions]


def _slower(fleet: Fleet, ends: tuple[str, str]) -> Callable[[Replanner], Replan]:
    link = next(each for each in fleet.links if (each.src_region, each.dst_region) == ends)
    slow = replace(link, bytes_per_s=link.bytes_per_s * SLOWER)
    return lambda planner: planner.links_changed({ends: slow})


def _with_fleet(fleet: Fleet) -> Callable[[Replanner], Replan]:
    return lambda planner: planner.fleet_changed(fleet)


def _redrawn(fleet: Fleet, rng: np.random.Generator, sign: int) -> Fleet:
    """A tenth of the machines less or more: each machine goes, or gets a twin, with that chance."""

    def changed(machines: Machines) -> Machines:
        num = machines.num_machines
        return replace(machines, num_machines=num + sign * int(rng.binomial(num, CHANGED)))

    return replace(
        fleet,
        regions=tuple(
            replace(region, machines=tuple(m for each in region.machines if (m := changed(each)).num_machines))
            for region in fleet.regions
        ),
    )


def reach(rows: Rows) -> list[Row]:
    done = measured(rows)
    found = []
    for name, figure, unit, target in (
        ("replan_link_s_max", "link_s_max", "s", MAX_LINK_S),
        ("replan_inventory_s_max", "inventory_s_max", "s", MAX_INVENTORY_S),
        ("replan_moved_max", "moved_max", "fraction", MAX_MOVED),
    ):
        if (value := most(done, figure)) is not None:
            found.append(reached(name, value, unit, "<=", target))
    return found
