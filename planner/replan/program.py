"""What moving adds to the exact method's program: at most so many devices that move, and what it costs.

Moves are those of `planner.replan.moves`: of each class and use, devices beyond those that have it. They are linear in
the program's whole numbers: a unit's devices, and for a mesh a constant. What moving costs (`planner.replan.migration`)
is taken for the sum over units that start and stop, in parts of the running plan's rates.
"""

from collections.abc import Iterator, Mapping

from planner.answer.outcome import objective_value
from planner.answer.placement import Group, Pool
from planner.cost.pools import Prices
from planner.exact.linear import INFINITE
from planner.exact.model import Relaxation
from planner.groupings import Tasks
from planner.question.goal import Objective
from planner.question.workload import Task
from planner.replan.change import Change
from planner.replan.migration import group_rate, restart_s, unit_rate, unit_start_s, unit_stop_s
from planner.replan.moves import Use, use_of


def add_moves(change: Change, built: Relaxation, home: str, most_moved: float | None) -> None:
    """Rows, and costs in parts of the objective."""
    is_cost = change.goal.objective is Objective.COST_AT_THROUGHPUT
    cost = objective_value(change.goal, change.last) / (1.0 if is_cost else built.scale_s) / change.policy.horizon_s
    most = INFINITE if most_moved is None else float(int(most_moved))
    moved = [*_add_units(change, built, home, cost, most), *_add_meshes(change, built, cost, most)]
    if moved and most < INFINITE:
        built.model.row(moved, high=most)


def _add_units(change: Change, built: Relaxation, home: str, cost: float, most: float) -> Iterator[tuple[int, float]]:
    """Variables of devices that move, with what each counts."""
    model, prices, makes = built.model, change.prices, Task.GENERATION
    pools: dict[tuple[str, Use], Pool] = {}
    held: dict[tuple[str, Use], list[tuple[int, float]]] = {}
    for tasks, x, unit in built.unit_choices():
        key = (unit.device_class, use_of(tasks, unit))
        pools.setdefault(key, unit)
        held.setdefault(key, []).append((x, float(unit.unit_gpus)))
    rates = {key: unit_rate(prices, key[1].tasks, pool) / pool.unit_gpus for key, pool in pools.items()}
    whole = {group.tasks: _whole_rate(prices, group, rates) for group in change.running.groups if not group.trains}
    reload_s: dict[Tasks, list[tuple[int, float]]] = {}
    for (name, use), pool in pools.items():
        had = float(change.stays.get(name, {}).get(use, 0))
        share = rates[name, use] / whole[use.tasks]
        for x, gpus in held[name, use]:
            model.high[x] = min(model.high[x], (had + most) // gpus)
        new = model.variable(high=most)
        model.row([(new, 1.0), *((x, -gpus) for x, gpus in held[name, use])], low=-had)
        start_s = unit_start_s(prices, use.tasks, pool, home, change.policy)
        reload_s.setdefault(use.tasks, []).append((new, start_s * share))
        if had and makes in use.tasks:
            gone = model.variable(cost=cost * unit_stop_s(prices, use.tasks, pool) * share)
            model.row([(gone, 1.0), *held[name, use]], low=had)
        yield new, 1.0
    longest = model.variable(cost=cost)
    for terms in reload_s.values():
        model.row([(longest, 1.0), *((new, -seconds) for new, seconds in terms)], low=0.0)


def _whole_rate(prices: Prices, group: Group, rates: Mapping[tuple[str, Use], float]) -> float:
    """Of a running group; where all of its classes are gone, of as many of the best devices that there are."""
    best = max((rate for (_, use), rate in rates.items() if use.tasks == group.tasks), default=1.0)
    return group_rate(prices, group) or best * sum(pool.num_gpus for pool in group.pools)


def _add_meshes(change: Change, built: Relaxation, cost: float, most: float) -> Iterator[tuple[int, float]]:
    """The same for meshes."""
    restart_of: dict[Tasks, list[tuple[int, float]]] = {}
    for x, group in built.mesh_choices():
        seconds = restart_s(change.prices, change.running, change.stays, group, change.policy)
        restart_of.setdefault(group.tasks, []).append((x, -seconds))
        new = sum(
            max(0, pool.num_gpus - change.stays.get(pool.device_class, {}).get(use_of(group.tasks, pool), 0))
            for pool in group.pools
        )
        if new > most:
            built.model.high[x] = 0.0
        elif new:
            yield x, float(new)
    longest = built.model.variable(cost=cost)
    for terms in restart_of.values():
        built.model.row([(longest, 1.0), *terms], low=0.0)
