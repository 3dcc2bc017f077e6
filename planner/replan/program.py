"""Rows and costs that re-planning adds to the integer program: a limit on moves, and the cost of moving.

Moves are defined in `planner.replan.moves`: for each class and use, the devices beyond those that already have it. They
are linear in the program's integer variables: a unit counts with its devices, and a mesh with a constant. The cost of
moving (`planner.replan.migration`) is the sum over units that start and stop, as shares of the running plan's rates.
"""

from collections.abc import Iterator, Mapping

from planner.answer.outcome import objective_value
from planner.answer.placement import Group, Pool
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.problem.goal import Objective
from planner.problem.groupings import Tasks
from planner.problem.workload import Task
from planner.replan.migration import group_rate, restart_s, unit_rate, unit_start_s, unit_stop_s
from planner.replan.moves import Use, use_of
from planner.replan.replan_start import ReplanStart


def add_moves(change: ReplanStart, built: Relaxation, trainer_region: str, most_moved: float | None) -> None:
    """Add the rows and the costs of moving to a program. Costs are in units of the program's objective.

    `most_moved` None means that any number of devices may move.
    """
    is_cost = change.goal.objective is Objective.COST_AT_THROUGHPUT
    cost = objective_value(change.goal, change.last) / (1.0 if is_cost else built.scale_s) / change.policy.horizon_s
    most = INFINITE if most_moved is None else float(int(most_moved))
    moved = [*_add_units(change, built, trainer_region, cost, most), *_add_meshes(change, built, cost, most)]
    if moved and most < INFINITE:
        built.model.row(moved, high=most)


def _add_units(
    change: ReplanStart, built: Relaxation, trainer_region: str, cost: float, most: float
) -> Iterator[tuple[int, float]]:
    """Add variables for devices of units that move, and yield each with its coefficient in the limit on moves."""
    model, cost_tables, makes = built.model, change.cost_tables, Task.GENERATION
    pools: dict[tuple[str, Use], Pool] = {}
    held: dict[tuple[str, Use], list[tuple[int, float]]] = {}
    for tasks, x, unit in built.unit_choices():
        key = (unit.device_class, use_of(tasks, unit))
        pools.setdefault(key, unit)
        held.setdefault(key, []).append((x, float(unit.unit_gpus)))
    rates = {key: unit_rate(cost_tables, key[1].tasks, pool) / pool.unit_gpus for key, pool in pools.items()}
    whole = {group.tasks: _whole_rate(cost_tables, group, rates) for group in change.running.groups if not group.trains}
    reload_s: dict[Tasks, list[tuple[int, float]]] = {}
    for (name, use), pool in pools.items():
        had = float(change.stays.get(name, {}).get(use, 0))
        share = rates[name, use] / whole[use.tasks]
        for x, gpus in held[name, use]:
            # A class cannot hold more units than already run and may move.
            model.high[x] = min(model.high[x], (had + most) // gpus)
        # Row: new devices of this use >= devices in the plan - devices that had the use.
        new = model.variable(high=most)
        model.row([(new, 1.0), *((x, -gpus) for x, gpus in held[name, use])], low=-had)
        start_s = unit_start_s(cost_tables, use.tasks, pool, trainer_region, change.policy)
        reload_s.setdefault(use.tasks, []).append((new, start_s * share))
        if had and makes in use.tasks:
            # Row: devices that stop generating >= devices that had the use - devices in the plan.
            gone = model.variable(cost=cost * unit_stop_s(cost_tables, use.tasks, pool) * share)
            model.row([(gone, 1.0), *held[name, use]], low=had)
        yield new, 1.0
    # The reload of the slowest group counts: longest >= each group's sum.
    longest = model.variable(cost=cost)
    for terms in reload_s.values():
        model.row([(longest, 1.0), *((new, -seconds) for new, seconds in terms)], low=0.0)


def _whole_rate(cost_tables: CostTables, group: Group, rates: Mapping[tuple[str, Use], float]) -> float:
    """Return the rate of a running group.

    If all its classes are gone, it is the rate of as many of the best devices that there are.
    """
    best = max((rate for (_, use), rate in rates.items() if use.tasks == group.tasks), default=1.0)
    return group_rate(cost_tables, group) or best * sum(pool.num_gpus for pool in group.pools)


def _add_meshes(change: ReplanStart, built: Relaxation, cost: float, most: float) -> Iterator[tuple[int, float]]:
    """Forbid meshes that move too many devices, and add the cost of restarts. Yield (variable, devices that move)."""
    restart_of: dict[Tasks, list[tuple[int, float]]] = {}
    for x, group in built.mesh_choices():
        seconds = restart_s(change.cost_tables, change.running, change.stays, group, change.policy)
        restart_of.setdefault(group.tasks, []).append((x, -seconds))
        # Devices of the mesh beyond those that have this use already.
        new = sum(
            max(0, pool.num_gpus - change.stays.get(pool.device_class, {}).get(use_of(group.tasks, pool), 0))
            for pool in group.pools
        )
        # The limit on moves rules this mesh out by itself, which an upper bound of 0 says more tightly than a row.
        if new > most:
            built.model.high[x] = 0.0
        elif new:
            yield x, float(new)
    # Meshes restart side by side: `longest` is at least the restart of each group's chosen mesh, and its cost is
    # minimised.
    longest = built.model.variable(cost=cost)
    for terms in restart_of.values():
        built.model.row([(longest, 1.0), *terms], low=0.0)
