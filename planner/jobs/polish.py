"""What a job's best placement gets beyond what it needs: every worker that costs no time.

A search stops at the fewest workers that reach its step time. Lengths and speeds are estimates, and hosts that a job
does not use earn nothing, so each region that generates gets all of its workers, and each region that may generate and
is not too far to help joins. The oracle judges each change.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent
from planner.answer.placement import Group, Layout, Placement, Pool
from planner.cost import shape
from planner.cost.oracle import Placed, evaluate, judged, place
from planner.cost.pools import PoolPrice, Prices
from planner.question.workload import Task

_TOLERANCE = 1e-9
"""A step that is longer by less is as long."""


def polished(prices: Prices, found: Incumbent, workers_per_region: int) -> Incumbent:
    """As good or better, with all workers in each region that generates."""
    rules = prices.problem.rules
    for at in sorted(prices.classes.values(), key=lambda at: at.key):
        if not rules.allows(Task.GENERATION, at.region.name, at.is_spot):
            continue
        taken = at.key in {pool.device_class for pool in found.placement.group_of(Task.GENERATION).pools}
        options = []
        for placement, rate in _with_all_workers(prices, found.placement, at.key, workers_per_region):
            evaluation = evaluate(prices, placement)
            if not isinstance(evaluation, Evaluation):
                continue
            idles = needs_s(prices, placement)[at.region.name] > evaluation.step_s * (1 + _TOLERANCE)
            if taken or not idles:
                options.append(((float(f"{evaluation.step_s:.9g}"), idles, -rate), placement, evaluation))
        if options:
            _, placement, evaluation = min(options, key=lambda option: option[0])
            if evaluation.step_s <= found.evaluation.step_s * (1 + _TOLERANCE):
                found = replace(found, placement=placement, evaluation=evaluation)
    return found


def needs_s(prices: Prices, placement: Placement) -> Mapping[str, float]:
    """Of each region that generates: the least seconds a step at which its samples come in time. Above them it
    idles."""
    placed = place(prices, placement)
    assert isinstance(placed, Placed), placed
    found: dict[str, float] = {}
    for making in placed.making:
        alone = judged(prices, placed, (making,)).needs
        own = [need_s for what, need_s in alone if what.startswith(("path:", "link:", "up:"))]
        found[making.region] = max([*own, found.get(making.region, 0.0)])
    return found


def _with_all_workers(
    prices: Prices, placement: Placement, key: str, num_workers: int
) -> Iterator[tuple[Placement, float]]:
    """The placement with so many workers of one class, for each layout that they may have, and one worker's rate."""
    group = placement.group_of(Task.GENERATION)
    others = tuple(pool for pool in group.pools if pool.device_class != key)
    continuous = prices.problem.workload.eta > 0 and not group.trains
    for batch in shape.BATCH if continuous else (0,):
        layouts = ((Task.GENERATION, Layout(tensor=1, batch=batch)),)
        pool = Pool(device_class=key, unit_gpus=1, num_units=num_workers, layouts=layouts)
        price = prices.pool(group.tasks, pool)
        pools = tuple(sorted((*others, pool), key=lambda each: each.device_class))
        changed = Group(tasks=group.tasks, pools=pools)
        if isinstance(price, PoolPrice):
            groups = tuple(changed if each is group else each for each in placement.groups)
            yield Placement(groups=groups), price.rates[Task.GENERATION]
