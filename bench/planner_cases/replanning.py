"""Section `replan`: how soon a running plan answers a change, how much of it moves, and what staying within that costs.

The fleet of 1,024 accelerators of section `speed`, and five jobs on it: that section's GRPO job, synchronous and not,
whose versions are full copies and whose steps are so short that no other region generates; and AReaL-Hex's three
(eta 4, completions of up to 16,384 tokens), the published jobs here in which generation may outgrow a region, so that
links from the trainer's region carry versions. Each job's plan is that of `auto`, and is kept with its bound. Changes,
each to a planner that was kept ready with that plan:

- *links*: every link from the trainer's region to another region that the plan uses, at a tenth, half and twice its
  rate. `link_s_max` is the worst of all, `version_link_s_max` of those to regions that generate apart from training.
- *fleets*: a tenth of the fleet's machines gone, or a tenth more, drawn by chance: each machine goes, or gets a twin,
  with that chance. The plan's units are packed onto machines in order, the largest first, so it is known which devices
  in use are lost. *Moved* are devices that start what they did not do before, replacements of lost ones included, over
  all that the running plan uses (`planner.replan.moves`).
- *contingency*: the trainer's region gone, for which an answer was prepared in `FRESH_S` seconds.

Seconds are of the answer alone, the median of `REPEATED` planners asked one after the other. Each answer is judged
again by an oracle that has seen nothing. Beside it stands what a search of `FRESH_S` seconds finds on the changed
fleet, free to move everything: `over_fresh` is the answer's step over that one's.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, most, reached
from bench.planner_cases.solving import Solved, solve
from bench.planner_cases.speed import problem_of
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables
from planner.files.importers.published_workloads import AREAL_HEX_MODELS, areal_hex_workload
from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.fleet import Fleet, Machines, Region
from planner.problem.goal import Problem
from planner.problem.workload import Task
from planner.replan.moves import Lost, Use, use_of
from planner.replan.replanner import Replan, Replanner

NUM_GPUS = 1024
CHANGED = 0.1
FACTORS = (0.1, 0.5, 2.0)
"""Of a link's rate."""
MAX_LINK_S = 0.1
MAX_INVENTORY_S = 1.0
MAX_MOVED = 0.10
BUDGET_S, FRESH_S = 20.0, 5.0
REPEATED = 3
FLEETS = 6
"""Changes of inventory, half of them losses."""
JOBS = ("async", "sync", *AREAL_HEX_MODELS)


def section() -> Section:
    return Section(name="replan", cells=cells, reach=reach)


def cells(settings: Settings) -> list[Cell]:
    budget_s, jobs = (3.0, JOBS[:1]) if settings.quick else (BUDGET_S, JOBS)
    return [Cell(name=job, run=measure, arguments=(settings.data, settings.seed, job, budget_s)) for job in jobs]


def problem(data: Path, seed: int, job: str) -> Problem:
    found = problem_of(data, seed, NUM_GPUS, "grpo", job != "sync")
    return replace(found, workload=areal_hex_workload(job).workload) if job in AREAL_HEX_MODELS else found


def measure(data: Path, seed: int, job: str, budget_s: float) -> Row:
    asked = problem(data, seed, job)
    solved = solve(asked, "auto", budget_s=budget_s)
    fresh_s = min(FRESH_S, budget_s)
    links = [_link(solved, ends, factor) for ends in _used_links(asked, solved.placement) for factor in FACTORS]
    fleets = [_inventory(solved, seed + i, sign, fresh_s) for i in range(FLEETS // 2) for sign in (-1, 1)]
    contingency = _trainer_region_lost(solved, fresh_s)
    return {
        "step_s": solved.value,
        "gap": solved.gap,
        "gpus_used": solved.placement.num_gpus,
        "link_s_max": most(links, "seconds"),
        "version_link_s_max": most((row for row in links if row["carries_versions"]), "seconds"),
        "inventory_s_max": most(fleets, "seconds"),
        "moved_max": most([*links, *fleets], "moved"),
        "beyond_limit": sum(not row["is_within_limit"] for row in (*links, *fleets)),
        "over_fresh_max": most(fleets, "over_fresh"),
        "contingency_s": contingency["seconds"],
        "links": links,
        "fleets": fleets,
        "contingency": contingency,
    }


def _link(solved: Solved, ends: tuple[str, str], factor: float) -> Row:
    link = next(each for each in solved.problem.fleet.links if (each.src_region, each.dst_region) == ends)
    changed = replace(link, bytes_per_s=link.bytes_per_s * factor)
    row, _ = _changed(solved, lambda planner: planner.links_changed({ends: changed}))
    at = {each.key: each for each in classes_of(solved.problem.fleet)}
    makes = solved.placement.group_of(Task.GENERATION)
    generating = set() if makes.trains else {at[pool.device_class].region.name for pool in makes.pools}
    return {"link": ">".join(ends), "factor": factor, "carries_versions": ends[1] in generating} | row


def _inventory(solved: Solved, seed: int, sign: int, fresh_s: float) -> Row:
    fleet, lost = _redrawn(solved.problem.fleet, solved.placement, np.random.default_rng([seed, 1]), sign)
    row, after = _changed(solved, lambda planner: planner.fleet_changed(fleet, lost))
    fresh = solve(after, "auto", budget_s=fresh_s)
    return {
        "machines": "less" if sign < 0 else "more",
        "lost": sum(num for of_class in lost.values() for num in of_class.values()) / solved.placement.num_gpus,
        "over_fresh": row["step_s"] / fresh.value,
    } | row


def _trainer_region_lost(solved: Solved, prepare_s: float) -> Row:
    """The trainer's region goes, for which an answer was prepared in so many seconds."""
    fleet, trainer_region = solved.problem.fleet, trainer_region_of(CostTables(solved.problem), solved.placement)
    rest = replace(
        fleet,
        regions=tuple(region for region in fleet.regions if region.name != trainer_region),
        links=tuple(link for link in fleet.links if trainer_region not in (link.src_region, link.dst_region)),
    )
    row, _ = _changed(solved, lambda planner: planner.fleet_changed(rest), prepare_s)
    return {"region": trainer_region} | row


def _changed(
    solved: Solved, change: Callable[[Replanner], Replan], prepare_s: float | None = None
) -> tuple[Row, Problem]:
    """What a planner answers that was kept ready, and the problem that it answers."""
    seconds = []
    for _ in range(REPEATED):
        planner = Replanner(CostTables(solved.problem), solved.placement, now_s=time.monotonic, bound=solved.bound)
        if prepare_s is not None:
            planner.prepare(budget_s=prepare_s)
        began_s = time.perf_counter()
        answer = change(planner)
        seconds.append(time.perf_counter() - began_s)
    again = evaluate(CostTables(planner.problem), answer.placement)
    assert isinstance(again, Evaluation), f"a re-plan that the oracle refuses: {again}"
    row = {
        "seconds": median(seconds),
        "slowest_s": max(seconds),
        "is_kept": answer.is_kept,
        "moved": answer.num_moved / solved.placement.num_gpus,
        "is_within_limit": answer.is_within_limit,
        "step_s": again.step_s,
        "bound": answer.bound,
        "gain": answer.gain if answer.gain < np.inf else None,
        "migration_s": answer.migration.total_s,
    }
    return row, planner.problem


def _used_links(problem: Problem, plan: Placement) -> list[tuple[str, str]]:
    """From the trainer's region."""
    cost_tables = CostTables(problem)
    trainer_region = trainer_region_of(cost_tables, plan)
    pools = [pool for group in plan.groups for pool in group.pools]
    regions = sorted({cost_tables.classes[pool.device_class].region.name for pool in pools} - {trainer_region})
    return [(trainer_region, region) for region in regions]


# ---- machines that go or come ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Machine:
    """One machine, and the devices of a plan on it."""

    of: tuple[str, Machines]
    free: int
    held: dict[Use, int] = field(default_factory=dict)


def _redrawn(fleet: Fleet, plan: Placement, rng: np.random.Generator, sign: int) -> tuple[Fleet, Lost]:
    """The changed fleet, and what of the plan is lost."""
    change: dict[tuple[str, Machines], int] = {}
    lost: dict[str, dict[Use, int]] = {}
    for at in classes_of(fleet):
        machines = list(_machines(fleet, at))
        _pack(machines, _units(plan, at.key))
        for machine, is_drawn in zip(machines, rng.random(len(machines)) < CHANGED, strict=True):
            if not is_drawn:
                continue
            change[machine.of] = change.get(machine.of, 0) + sign
            for use, num in machine.held.items() if sign < 0 else ():
                of_class = lost.setdefault(at.key, {})
                of_class[use] = of_class.get(use, 0) + num
    regions = (replace(region, machines=tuple(_with_changes(region, change))) for region in fleet.regions)
    return replace(fleet, regions=tuple(regions)), lost


def _with_changes(region: Region, change: dict[tuple[str, Machines], int]) -> Iterator[Machines]:
    for each in region.machines:
        if num := each.num_machines + change.get((region.name, each), 0):
            yield replace(each, num_machines=num)


def _machines(fleet: Fleet, at: DeviceClass) -> Iterator[_Machine]:
    """Of one class."""
    region = fleet.region(at.region.name)
    assert region is not None
    for each in region.machines:
        same = (each.gpu, each.gpus_per_machine, each.is_spot, each.fabric, each.usd_per_gpu_hour)
        if same == (at.gpu.name, at.gpus_per_machine, at.is_spot, at.fabric, at.usd_per_gpu_hour):
            yield from (_Machine(of=(region.name, each), free=each.gpus_per_machine) for _ in range(each.num_machines))


def _units(plan: Placement, key: str) -> Iterator[Use]:
    """One entry a unit of that class."""
    for group in plan.groups:
        for pool in (pool for pool in group.pools if pool.device_class == key):
            yield from [use_of(group.tasks, pool)] * pool.num_units


def _pack(machines: Sequence[_Machine], units: Iterator[Use]) -> None:
    for use in sorted(units, key=lambda use: (-use.unit_gpus, use)):
        machine = next(each for each in machines if each.free >= use.unit_gpus)
        machine.free -= use.unit_gpus
        machine.held[use] = machine.held.get(use, 0) + use.unit_gpus


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
