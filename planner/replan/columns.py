"""What a re-plan chooses among, for the groups of the plan that runs: few columns, so that its program is small.

- Groups without training: every unit that is worth choosing, and the running plan's own, whoever beats them.
- Groups with training: the running mesh, and *repairs* of it: the same layouts with fewer or more pipelines in each of
  its pools, or with one pool left out. A repaired mesh keeps most devices at what they do, so moves are few; meshes of
  any other shape move all of theirs and are left to re-plans without a limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from planner.answer.placement import Group, Layout, Pool, Sharding
from planner.cost.columns import UnitColumn, unit_columns
from planner.cost.cuts import DATA
from planner.cost.listed import MeshColumn
from planner.cost.phases import end_s
from planner.cost.pools import PoolPrice, Prices
from planner.cost.shape import of_group
from planner.cost.ways import home
from planner.question.workload import SCORING, TRAINING, Task

_FEWEST = 4
"""A repaired pool keeps at least one in so many of its pipelines, or is left out."""


def units_for(prices: Prices, group: Group) -> tuple[UnitColumn, ...]:
    """Of a group without training, sorted by class."""
    listed = unit_columns(prices, group.tasks)
    known = {(each.unit.device_class, each.unit.unit_gpus, each.unit.layouts) for each in listed}
    own = [pool for pool in group.pools if (pool.device_class, pool.unit_gpus, pool.layouts) not in known]
    found = (*listed, *(column for pool in own if (column := _unit(prices, group, pool)) is not None))
    return tuple(sorted(found, key=lambda column: column.unit.device_class))


def _unit(prices: Prices, group: Group, pool: Pool) -> UnitColumn | None:
    at, one = prices.classes.get(pool.device_class), replace(pool, num_units=1)
    if at is None or any(of_group(prices, replace(group, pools=(one,)))):
        return None
    price = prices.pool(group.tasks, one)
    if not isinstance(price, PoolPrice):
        return None
    return UnitColumn(
        unit=one, region=at.region.name, rates=price.rates, phase=price.phase,
        usd_per_hour=one.num_gpus * (at.usd_per_gpu_hour or 0.0),
    )  # fmt: skip


def repairs(prices: Prices, group: Group) -> tuple[MeshColumn, ...]:
    """Of a group with training: itself first, if it still fits."""
    at = tuple(prices.classes.get(pool.device_class) for pool in group.pools)
    if len({each.region.name for each in at if each is not None}) != 1 or None in at:
        return _repairs(prices, group)
    key = ("repairs", group, at, prices.problem.rules, prices.problem.goal)  # no link matters inside a region
    return prices.known(key, lambda: _repairs(prices, group), lasts=True)


def _repairs(prices: Prices, group: Group) -> tuple[MeshColumn, ...]:
    found = {}
    for pools in product(*(_pools(prices, pool) for pool in group.pools)):
        kept = Group(tasks=group.tasks, pools=tuple(pool for pool in pools if pool is not None))
        if kept.pools and kept not in found:
            found[kept] = _mesh(prices, kept)
    return tuple(column for column in found.values() if column is not None)


def _pools(prices: Prices, pool: Pool) -> Iterator[Pool | None]:
    """The pool, others with more or fewer pipelines, none."""
    at = prices.classes.get(pool.device_class)
    if at is not None:
        pipeline = next(layout.pipeline for task, layout in pool.layouts if task in TRAINING)
        data = pool.num_units // pipeline
        most = at.num_units(pool.unit_gpus) // pipeline
        few = [each for each in DATA if data <= _FEWEST * each and each <= min(most, 2 * data)]
        for num in sorted(few, key=lambda each: (each != data, -each)):
            if num == data:
                yield pool
            layouts = tuple((task, _shared(task, layout, num)) for task, layout in pool.layouts)
            yield replace(pool, num_units=num * pipeline, layouts=layouts)
            again = tuple((t, replace(of, recompute=True) if t in TRAINING else of) for t, of in layouts)
            yield replace(pool, num_units=num * pipeline, layouts=again)
    yield None


def _shared(task: Task, layout: Layout, data: int) -> Layout:
    """With its optimizer's state over as many replicas as there are."""
    if task not in TRAINING or (layout.sharding is Sharding.FULL and data > 1):
        return layout
    return replace(layout, sharding=Sharding.OPTIMIZER if data > 1 else Sharding.NONE)


def _mesh(prices: Prices, group: Group) -> MeshColumn | None:
    """None if the fleet, the rules or memory do not allow it."""
    if any(of_group(prices, group)):
        return None
    priced = [prices.pool(group.tasks, pool) for pool in group.pools]
    fitting = [each for each in priced if isinstance(each, PoolPrice)]
    if len(fitting) < len(priced):
        return None
    at = [prices.classes[pool.device_class] for pool in group.pools]
    regions = tuple(each.region.name for each in at)
    way = home(prices, regions[0]).ways.get(regions[-1])
    if way is None:
        return None
    key = ("repair", group, tuple(map(prices.kind, at)), tuple(prices.edges(at)), way.samples_per_s)
    times = prices.known(key, partial(_times, prices, group, fitting, regions), lasts=True)
    usd_per_step = prices.ring_usd_per_gbyte(regions) * prices.gradient_bytes(group.tasks) / 1e9
    return MeshColumn(
        group=group, regions=regions, times=times, usd_per_step=usd_per_step,
        usd_per_hour=sum(p.num_gpus * (c.usd_per_gpu_hour or 0.0) for p, c in zip(group.pools, at, strict=True)),
    )  # fmt: skip


def _times(prices: Prices, group: Group, priced: Sequence[PoolPrice], regions: Sequence[str]) -> dict[Task, float]:
    """Seconds a step of each task."""
    samples = float(prices.problem.workload.samples_per_step)
    found = {task: each.total_s for task, each in prices.mesh(group.tasks, group.pools).times.items()}
    for task in (task for task in group.tasks if task in SCORING):
        rate = sum(pool.num_units * price.rates[task] for pool, price in zip(group.pools, priced, strict=True))
        found[task] = samples / rate
    if Task.GENERATION in group.tasks:
        start, seconds = home(prices, regions[0]), prices.phase_seconds
        made = np.zeros(len(seconds))
        for pool, price, region in zip(group.pools, priced, regions, strict=True):
            assert price.phase is not None
            own = pool.num_units * price.phase.samples
            is_away = region != start.name
            carried = min(start.ways[region].samples_per_s, start.samples_per_s) if is_away else np.inf
            made = made + np.minimum(own, seconds * carried)
        found[Task.GENERATION] = end_s(seconds, made, samples)
    return {task: found[task] for task in group.tasks}
