"""Meshes that a re-plan chooses among, for a group with training: those for which few devices change their use.

- *Repairs* of the running mesh have its classes and its cuts, with any number of pipelines. The cuts (unit size,
  tensor, pipeline) define what a device does (`planner.replan.moves`). Micro-batches, recomputation and sharding are
  chosen again, because fewer devices may lack the memory for the running ones; they change in place.
- *Others* have one pool of any class and cuts, with so few devices that all of them may move.
- *Pairs* have two pools, each with the running mesh's cuts or with so few devices.

Every mesh of one or two pools that may run within a limit on moves is one of these, or one of these is at least as good
and moves no more devices. For this, pools are only compared with pools of the same cuts, or with pools all of whose
devices may move.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np

from planner.answer.placement import Group, Pool
from planner.cost.candidates.columns import mesh_candidates, mesh_pairs, ordered_pairs, part
from planner.cost.candidates.mesh_lists import ClassMeshes, MeshColumn
from planner.cost.candidates.meshes import MeshSet, MeshTimeLimits, PairablePools, pairable_pools, single_pool_meshes
from planner.cost.candidates.pool_layouts import PoolOptions
from planner.cost.step.generation_window import makes
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tables.transfers import trainer_transfers
from planner.cost.tables.validity import of_group
from planner.cost.tasks.phase_tables import end_s
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import SCORING, TRAINING, Task

_ANY = MeshTimeLimits()
"""No limit on the seconds of a mesh."""


def repairs(cost_tables: CostTables, group: Group) -> tuple[MeshColumn, ...]:
    """Return the running mesh of a group with training, if it still fits memory, and then its repairs."""
    at = tuple(cost_tables.classes.get(pool.device_class) for pool in group.pools)
    if len({each.region.name for each in at if each is not None}) != 1 or None in at:
        return _repairs(cost_tables, group)
    key = (
        "repairs",
        group,
        at,
        cost_tables.problem.rules,
        cost_tables.problem.goal,
    )  # all pools are in one region: no link matters
    return cost_tables.known(key, lambda: _repairs(cost_tables, group), lasts=True)


def _repairs(cost_tables: CostTables, group: Group) -> tuple[MeshColumn, ...]:
    tasks, running = group.tasks, _mesh(cost_tables, group)
    classes = [at for at in mesh_candidates(cost_tables, tasks).usable if _pool(group, at)]
    parts = [part(cost_tables, tasks, _single_pool_set(cost_tables, group, at), (at,), _ANY) for at in classes]
    if len(classes) > 1 and cost_tables.problem.limits.max_train_blocks > 1:
        sides = {at.key: _sides(cost_tables, group, at, 0) for at in classes}
        parts += _paired(cost_tables, tasks, ordered_pairs(cost_tables, tasks, classes, np.inf), sides, _ANY)
    return _columns(parts, () if running is None else (running,))


def small_single_pool_meshes(
    cost_tables: CostTables, group: Group, trainer_regions: Iterable[str], most_gpus: int
) -> tuple[MeshColumn, ...]:
    """Return meshes of one pool with at most `most_gpus` devices.

    A group that trains the actor has them only in the regions `trainer_regions`.
    """
    tasks, candidates = group.tasks, mesh_candidates(cost_tables, group.tasks)
    at = tuple(
        each for each in candidates.usable if Task.ACTOR_TRAINING not in tasks or each.region.name in trainer_regions
    )

    def found() -> tuple[MeshColumn, ...]:
        whole = {each: candidates.alone(each) for each in at}
        few = {each: on.take(np.flatnonzero(on.num_gpus <= most_gpus)) for each, on in whole.items()}
        return _columns((part(cost_tables, tasks, on, (each,), _ANY) for each, on in few.items()), ())

    # The same classes and number give the same meshes, so the answer lasts beyond one change of the fleet.
    return cost_tables.known(("others", tasks, at, most_gpus), found, lasts=True)


def two_pool_meshes(
    cost_tables: CostTables, group: Group, trainer_regions: Iterable[str], most_gpus: int, max_s: float
) -> tuple[MeshColumn, ...]:
    """Return meshes of two pools that take at most `max_s` seconds.

    Each pool has at most `most_gpus` devices, or the cuts of the running mesh.
    """
    tasks, time_limits = group.tasks, MeshTimeLimits(busy_s=max_s)
    if cost_tables.problem.limits.max_train_blocks < 2:
        return ()
    usable = mesh_candidates(cost_tables, tasks).usable
    # Pools that may be half of a pair, by class. Classes without any are left out before pairs are formed.
    sides = {at.key: _sides(cost_tables, group, at, most_gpus) for at in usable}
    classes = [at for at in usable if sides[at.key]]
    class_pairs = (
        (a, b)
        for a, b in ordered_pairs(cost_tables, tasks, classes, max_s)
        if Task.ACTOR_TRAINING not in tasks or a.region.name in trainer_regions
    )
    return _columns(_paired(cost_tables, tasks, class_pairs, sides, time_limits), ())


def merged(known: Sequence[MeshColumn], more: Iterable[MeshColumn]) -> tuple[MeshColumn, ...]:
    """Return both lists, with each group once."""
    had = {each.group for each in known}
    return (*known, *(each for each in more if each.group not in had))


def _columns(parts: Iterable[ClassMeshes], first: Sequence[MeshColumn]) -> tuple[MeshColumn, ...]:
    return merged(first, (each.column(row) for each in parts for row in range(len(each))))


# ---- pools of the running mesh's cuts, and others --------------------------------------------------------------------


def _pool(group: Group, at: DeviceClass) -> Pool | None:
    """Return the running mesh's pool of that class, or None."""
    return next((pool for pool in group.pools if pool.device_class == at.key), None)


def _pools_with_running_cuts(cost_tables: CostTables, group: Group, at: DeviceClass) -> PoolOptions:
    """Return pools of that class whose devices do what the running mesh's devices do."""
    pool, found = _pool(group, at), mesh_candidates(cost_tables, group.tasks).options(at)
    if pool is None:
        return found.take(np.zeros(0, dtype=np.int64))
    train = next(layout for task, layout in pool.layouts if task in TRAINING)
    rows = np.flatnonzero(found.unit == pool.unit_gpus)
    if len(rows):
        # Micro-batch, sharding, recomputation and the number of pipelines stay open.
        rows = rows[found.cuts[pool.unit_gpus].pipeline[found.row[rows]] == train.pipeline]
    if found.generating is not None:
        rows = rows[found.generating.tensor[rows] == pool.layout(Task.GENERATION).tensor]
    return found.take(rows)


def _single_pool_set(cost_tables: CostTables, group: Group, at: DeviceClass) -> MeshSet:
    key = ("own alone", *_key(cost_tables, group, at))
    return cost_tables.known(
        key,
        lambda: single_pool_meshes(cost_tables, group.tasks, at, _pools_with_running_cuts(cost_tables, group, at)),
        lasts=True,
    )


def _sides(cost_tables: CostTables, group: Group, at: DeviceClass, most_gpus: int) -> list[PairablePools]:
    """Return the pools of one class for meshes of two pools: with the running cuts, and with few devices."""
    key = ("own sides", *_key(cost_tables, group, at), most_gpus)
    return cost_tables.known(key, lambda: _sides_of(cost_tables, group, at, most_gpus), lasts=True)


def _sides_of(cost_tables: CostTables, group: Group, at: DeviceClass, most_gpus: int) -> list[PairablePools]:
    whole = mesh_candidates(cost_tables, group.tasks).options(at)
    both = (_pools_with_running_cuts(cost_tables, group, at), whole.take(whole.num_gpus <= most_gpus))
    return [pairable_pools(cost_tables, at, each) for each in both if not each.is_full.all()]


def _key(cost_tables: CostTables, group: Group, at: DeviceClass) -> tuple[object, ...]:
    pool, kind = _pool(group, at), cost_tables.kind(at)
    return (
        group.tasks,
        kind,
        mesh_candidates(cost_tables, group.tasks).most[kind],
        pool and (pool.unit_gpus, pool.layouts),
    )


def _paired(
    cost_tables: CostTables,
    tasks: tuple[Task, ...],
    class_pairs: Iterable[tuple[DeviceClass, DeviceClass]],
    sides: Mapping[str, Sequence[PairablePools]],
    time_limits: MeshTimeLimits,
) -> Iterator[ClassMeshes]:
    for at in class_pairs:
        for both in product(sides[at[0].key], sides[at[1].key]):
            # A mesh of one pool may move more devices than the pair, so none competes (None).
            yield part(
                cost_tables,
                tasks,
                mesh_pairs(cost_tables, tasks, at, both, (None, None)).undominated_meshes(time_limits),
                at,
                time_limits,
            )


# ---- the running mesh itself -----------------------------------------------------------------------------------------


def _mesh(cost_tables: CostTables, group: Group) -> MeshColumn | None:
    """Return the running mesh as a column. None if the fleet, the rules or memory do not allow it."""
    if any(of_group(cost_tables, group)):
        return None
    priced = [cost_tables.pool(group.tasks, pool) for pool in group.pools]
    fitting = [each for each in priced if isinstance(each, UnitCost)]
    if len(fitting) < len(priced):
        return None
    at = [cost_tables.classes[pool.device_class] for pool in group.pools]
    regions = tuple(each.region.name for each in at)
    transfer = trainer_transfers(cost_tables, regions[0]).transfers.get(regions[-1])
    if transfer is None:
        return None
    # The seconds depend on the machines' kinds, their connection and the route, not on how many machines there are. So
    # most changes of the fleet reuse them.
    key = ("repair", group, tuple(map(cost_tables.kind, at)), tuple(cost_tables.edges(at)), transfer.samples_per_s)
    times = cost_tables.known(key, partial(_times, cost_tables, group, fitting, regions), lasts=True)
    usd_per_step = cost_tables.ring_usd_per_gbyte(regions) * cost_tables.gradient_bytes(group.tasks) / 1e9
    return MeshColumn(
        group=group,
        regions=regions,
        times=times,
        usd_per_step=usd_per_step,
        idle=_idle(fitting, regions, times),
        usd_per_hour=sum(p.num_gpus * (c.usd_per_gpu_hour or 0.0) for p, c in zip(group.pools, at, strict=True)),
    )


def _idle(priced: Sequence[UnitCost], regions: Sequence[str], times: Mapping[Task, float]) -> frozenset[str]:
    """Return the regions whose pools complete no sample in generation's phase."""
    phase_s = times.get(Task.GENERATION, np.inf)
    made = {
        region
        for region, price in zip(regions, priced, strict=True)
        if price.phase is None or makes(price.phase, phase_s)
    }
    return frozenset(regions) - made


def _times(
    cost_tables: CostTables, group: Group, priced: Sequence[UnitCost], regions: Sequence[str]
) -> dict[Task, float]:
    """Return the seconds per step of each task of the running mesh."""
    samples = float(cost_tables.problem.workload.samples_per_step)
    found = {task: each.total_s for task, each in cost_tables.mesh(group.tasks, group.pools).times.items()}
    for task in (task for task in group.tasks if task in SCORING):
        rate = sum(pool.num_units * price.rates[task] for pool, price in zip(group.pools, priced, strict=True))
        found[task] = samples / rate
    if Task.GENERATION in group.tasks:
        # The phase ends when all pools together have made the step's samples. Remote pools are limited by their route
        # to the trainer's region.
        start, seconds = trainer_transfers(cost_tables, regions[0]), cost_tables.phase_seconds
        made = np.zeros(len(seconds))
        for pool, price, region in zip(group.pools, priced, regions, strict=True):
            assert price.phase is not None
            own = pool.num_units * price.phase.samples
            is_away = region != start.name
            carried = min(start.transfers[region].samples_per_s, start.samples_per_s) if is_away else np.inf
            made = made + np.minimum(own, seconds * carried)
        found[Task.GENERATION] = end_s(seconds, made, samples)
    return {task: found[task] for task in group.tasks}
