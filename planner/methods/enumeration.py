"""Enumeration: small problems are solved by evaluating all placements that may be best, which proves the best one.

For each grouping, each candidate mesh is combined with each number of each candidate unit (`planner.cost.candidates`
lists what no other mesh or unit dominates), and `planner.cost.batched` evaluates all of them. Nothing here needs a
solver. Problems with meshes of several pools, with too many placements (`MOST_ENTRIES`), or with least dollars an hour
and no limit on seconds, are not small.

Two rules leave out placements that cannot be better. Both hold only where dollars do not count and each class has one
candidate unit, which only generates. Under a limit on dollars, or if dollars are minimised, every number is tried.

1. A class has all of its free units or none. Take any placement and keep the pools that the oracle lets generate (all
   of them if the operator demands regions), each with all free units of its class. Samples by any step time do not
   decrease, so the least step that the windows need does not increase. Versions go to the same regions or to fewer, so
   links, the uplink and lags are no slower. Training, scoring, and the first sample of a demanded region do not depend
   on numbers of units. Regions in use are a subset, or the same if regions are demanded, so all rules hold.
2. Every class that has a route has all of its free units, if no uplink is limited and no rule counts regions. Lags then
   do not depend on who else receives versions, so more pools make no fewer samples. A region that is added may only
   lengthen the step by its own link. Then the oracle tries the regions in the order of their links, and one of these
   prefixes has all regions of the placement that is to be beaten and no slower link than that placement's step. The
   oracle keeps a prefix that is better by a part in 1e9, so values are exact up to that.

Units that shorten no step are given back afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent
from planner.answer.placement import Group, Placement, Pool
from planner.cost.batched.evaluate_many import PlacementVerdict, batch_tables_of, evaluate_rows
from planner.cost.candidates.columns import UnitColumn, mesh_list, unit_columns
from planner.cost.candidates.mesh_lists import MeshColumn
from planner.cost.candidates.meshes import MeshTimeLimits
from planner.cost.oracle import evaluate
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.layer_cuts import IntArray
from planner.problem.device_classes import fits
from planner.problem.goal import IMPOSSIBLE_STEP_S, Objective
from planner.problem.groupings import Grouping, groupings
from planner.problem.workload import TRAINING, Task

MOST_ENTRIES = 200_000
"""Placements, times candidate units, times regions, up to which a problem is small. Chosen by hand: the batched oracle
takes half a second for them (bench/results/2026-11-26-small-problems.md)."""
_CHUNK = 4096
"""Placements that are evaluated at once; the clock is read between them. Chosen by hand."""
_EQUAL = 1e-10
"""Relative tolerance within which two values are equal. The batched oracle equals the oracle within 1e-12."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnumeratedGrouping:
    """The placements of one grouping that may be best."""

    grouping: Grouping
    units: tuple[tuple[int, UnitColumn], ...]
    """(Index of the group, candidate unit) of all groups without training."""
    meshes: tuple[tuple[int, Sequence[MeshColumn]], ...]
    """(Index of the group, candidate meshes) of all groups with training."""
    most: tuple[int, ...]
    """Largest number of each candidate unit."""
    is_whole: bool
    """Whether a class has all of its free units or none (rule 1)."""
    is_full: bool
    """Whether every class that has a route has all of its free units (rule 2)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of choices for each candidate unit, then for each group with training."""
        counts = (1 if self.is_full else 2 if self.is_whole else most + 1 for most in self.most)
        return (*counts, *(len(meshes) for _, meshes in self.meshes))


def small_space(cost_tables: CostTables) -> tuple[EnumeratedGrouping, ...] | None:
    """Return the placements to enumerate; None if the problem is not small."""
    goal = cost_tables.problem.goal
    # Dollars an hour without a limit on seconds fall with longer steps, so a dominated mesh may be the best one.
    if goal.objective is Objective.COST_AT_THROUGHPUT and goal.max_step_s is None:
        return None
    if cost_tables.problem.limits.max_train_blocks > 1:
        return None
    found, num_entries = [], 0
    num_regions = len(cost_tables.problem.fleet.regions)
    for grouping in groupings(cost_tables.problem):
        one = _without_meshes(cost_tables, grouping)
        if one is None:
            continue
        # Meshes are listed only if the numbers of units alone leave the problem small.
        width = max(1, len(one.units)) * num_regions
        if num_entries + prod(one.sizes) * width > MOST_ENTRIES:
            return None
        meshes = tuple(
            (i, mesh_list(cost_tables, tasks, MeshTimeLimits(), blocks=1))
            for i, tasks in enumerate(grouping)
            if _trains(tasks)
        )
        found.append(replace(one, meshes=meshes))
        num_entries += prod(found[-1].sizes) * width
        if num_entries > MOST_ENTRIES:
            return None
    return tuple(found)


def _without_meshes(cost_tables: CostTables, grouping: Grouping) -> EnumeratedGrouping | None:
    """Return the units of a grouping; None if a group without training has no candidate, so that there is none."""
    apart = [i for i, tasks in enumerate(grouping) if not _trains(tasks)]
    units = tuple((i, each) for i in apart for each in unit_columns(cost_tables, grouping[i]))
    if {i for i, _ in units} != set(apart):
        return None
    classes = [cost_tables.classes[each.unit.device_class] for _, each in units]
    goal, rules = cost_tables.problem.goal, cost_tables.problem.rules
    is_whole = (
        not goal.counts_usd
        and len(grouping) == 2
        and (Task.GENERATION,) in grouping
        and len({at.key for at in classes}) == len(classes)
    )
    has_uplinks = any(region.wan_up_bytes_per_s for region in cost_tables.problem.fleet.regions)
    return EnumeratedGrouping(
        grouping=grouping,
        units=units,
        meshes=(),
        most=tuple(at.num_units(each.unit.unit_gpus) for at, (_, each) in zip(classes, units, strict=True)),
        is_whole=is_whole,
        is_full=is_whole and not has_uplinks and not rules.demands_regions and rules.max_regions is None,
    )


def search_all(
    cost_tables: CostTables, space: Sequence[EnumeratedGrouping], is_over: Callable[[], bool]
) -> tuple[Incumbent | None, bool, int]:
    """Return (best placement, whether all placements were evaluated, number of placements that were).

    The placement's value is its bound if all were evaluated. Without any valid placement it is None. `is_over` is asked
    after each chunk of placements.
    """
    goal, num_rows, is_complete = cost_tables.problem.goal, 0, True
    # One column for each valid placement: value, what decides between equal values, number of devices, grouping, row.
    valid = [np.zeros((5, 0))]
    for which, one in enumerate(space):
        for start in range(0, prod(one.sizes), _CHUNK):
            if num_rows and is_over():
                is_complete = False
                break
            rows = np.arange(start, min(start + _CHUNK, prod(one.sizes)))
            units, counts, meshes, devices = _numbers(cost_tables, one, rows)
            found = evaluate_rows(batch_tables_of(cost_tables, one.grouping), units, counts, meshes)
            good = (found.verdict == PlacementVerdict.VALID) & (found.step_s <= IMPOSSIBLE_STEP_S)
            both = (found.step_s, found.usd_per_hour)
            value, other = both[::-1] if goal.objective is Objective.COST_AT_THROUGHPUT else both
            valid.append(np.stack([value, other, devices, np.full(len(rows), which), rows])[:, good])
            num_rows += len(rows)
    value, other, devices, which_of, row_of = np.concatenate(valid, axis=1)
    near = np.flatnonzero(value <= value.min(initial=np.inf) * (1 + _EQUAL))
    # Of equally good placements the one with fewest devices. The oracle has the last word on each.
    parts = np.round(other[near] / max(other[near].min(initial=np.inf), 1e-12), 9)
    for at in near[np.lexsort((devices[near], parts))]:
        one = space[int(which_of[at])]
        placement = _placement(cost_tables, one, int(row_of[at]))
        evaluation = evaluate(cost_tables, placement)
        if isinstance(evaluation, Evaluation):
            best = Incumbent(placement=placement, evaluation=evaluation, bound=None, elapsed_s=0.0)
            best = _with_fewest_units(cost_tables, best) if one.is_whole else best
            return replace(best, bound=best.value(goal) if is_complete else None), is_complete, num_rows
    return None, is_complete, num_rows


def _numbers(cost_tables: CostTables, one: EnumeratedGrouping, rows: IntArray) -> tuple[IntArray, ...]:
    """Return the three arrays that `evaluate_rows` takes for some rows of a grouping, and the numbers of devices.

    Devices that train count twice, since devices of generation that shorten no step are given back afterwards.
    """
    tables, num_units = batch_tables_of(cost_tables, one.grouping), len(one.units)
    choices = np.stack(np.unravel_index(rows, one.sizes), axis=1)
    counts = choices[:, :num_units]
    if one.is_whole:
        # There is one group that trains. What its mesh leaves of each class: [num_meshes, num_units].
        free = np.array([_free(cost_tables, one, mesh) for mesh in one.meshes[0][1]]).reshape(-1, num_units)
        counts = np.where(one.is_full, 1, counts) * free[choices[:, num_units]]
    names = np.array([tables.unit(i, each.unit) for i, each in one.units], dtype=np.int64)
    units = np.where(counts > 0, np.where(names < 0, -2, names), -1)
    devices = counts @ np.array([each.unit.unit_gpus for _, each in one.units], dtype=np.int64)
    meshes = np.full((len(rows), len(one.grouping)), -1)
    for place, (i, columns) in enumerate(one.meshes, start=num_units):
        names = np.array([tables.mesh(i, each.group.pools) for each in columns])
        meshes[:, i] = np.where(names < 0, -2, names)[choices[:, place]]
        devices = devices + 2 * np.array([each.num_gpus for each in columns])[choices[:, place]]
    return units, counts, meshes, devices


def _free(cost_tables: CostTables, one: EnumeratedGrouping, mesh: MeshColumn) -> list[int]:
    """Return how many of each candidate unit have room beside a mesh, 0 without a route."""
    (pool,) = mesh.group.pools
    found = []
    for (_, each), most in zip(one.units, one.most, strict=True):
        at, size = cost_tables.classes[each.unit.device_class], each.unit.unit_gpus
        if not cost_tables.network.joins(cost_tables.classes[pool.device_class].region.name, at.region.name):
            most = 0
        while most and at.key == pool.device_class:
            held = {pool.unit_gpus: pool.num_units}
            if fits(at, held | {size: held.get(size, 0) + most}):
                break
            most -= 1
        found.append(most)
    return found


def _placement(cost_tables: CostTables, one: EnumeratedGrouping, row: int) -> Placement:
    """Return one row of a grouping as a placement."""
    _, counts, _, _ = _numbers(cost_tables, one, np.array([row]))
    chosen = np.unravel_index(row, one.sizes)[len(one.units) :]
    pools = {i: columns[int(at)].group.pools for (i, columns), at in zip(one.meshes, chosen, strict=True)}
    for (i, each), count in zip(one.units, counts[0].tolist(), strict=True):
        if count:
            pools[i] = (*pools.get(i, ()), each.unit.resized(count))
    return Placement(groups=tuple(Group(tasks=tasks, pools=pools[i]) for i, tasks in enumerate(one.grouping)))


def _with_fewest_units(cost_tables: CostTables, best: Incumbent) -> Incumbent:
    """Return the placement with so few units of each generating pool that one fewer makes steps longer.

    Pools outside the trainer's region lose units first.
    """
    home = trainer_region_of(cost_tables, best.placement)
    pools = best.placement.group_of(Task.GENERATION).pools
    for pool in sorted(pools, key=lambda pool: cost_tables.classes[pool.device_class].region.name == home):
        fewest, enough = 0, pool.num_units
        while fewest < enough:
            # First without the pool, then by bisection.
            num = (fewest + enough) // 2 if fewest else 0
            found = _with_units(cost_tables, best, pool, num)
            best, enough, fewest = (found, num, fewest) if found is not None else (best, enough, num + 1)
    return best


def _with_units(cost_tables: CostTables, best: Incumbent, pool: Pool, num_units: int) -> Incumbent | None:
    """Return the placement with that many units of a class in generation, or None if it is worse or not valid."""
    group = best.placement.group_of(Task.GENERATION)
    resized = [each.resized(num_units) if each.device_class == pool.device_class else each for each in group.pools]
    fewer = replace(group, pools=tuple(each for each in resized if each.num_units))
    placement = Placement(groups=tuple(fewer if each is group else each for each in best.placement.groups))
    evaluation = evaluate(cost_tables, placement)
    if not isinstance(evaluation, Evaluation) or evaluation.step_s > best.evaluation.step_s:
        return None
    return replace(best, placement=placement, evaluation=evaluation)


def _trains(tasks: tuple[Task, ...]) -> bool:
    return any(task in TRAINING for task in tasks)
