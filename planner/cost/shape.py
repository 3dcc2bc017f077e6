"""Whether a placement is in the plan space at all: shapes, limits of the runtime, the operator's rules, inventory."""

from collections.abc import Iterator
from itertools import pairwise

from planner.answer.evaluation import Violation
from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.classes import DeviceClass, fits
from planner.cost.cuts import BATCH, DATA, MICRO_BATCH, PIPELINE, TENSOR
from planner.cost.pools import Prices
from planner.question.workload import TRAINING, Task

__all__ = ["BATCH", "DATA", "MICRO_BATCH", "PIPELINE", "TENSOR", "violation"]


def violation(prices: Prices, placement: Placement) -> Violation | None:
    """The first reason why this is no placement of the problem, memory and times apart."""
    tasks = [task for group in placement.groups for task in group.tasks]
    if sorted(tasks) != sorted(prices.problem.workload.tasks):
        return Violation(kind="shape", what=f"the groups have {', '.join(tasks)}: not each of the job's tasks once")
    for group in placement.groups:
        if found := next(of_group(prices, group), None):
            return found
    return _inventory(prices, placement) or _regions(prices, placement)


def of_group(prices: Prices, group: Group) -> Iterator[Violation]:
    """Why this is no group of a placement, inventory and memory apart."""
    limits, rules, names = prices.problem.limits, prices.problem.rules, "+".join(group.tasks)
    if not group.pools:
        yield Violation(kind="shape", what=f"{names} has no devices")
    roles = limits.roles_on_trainer & set(prices.problem.workload.tasks)
    if not limits.colocates and len(set(group.tasks) - roles) > 1:
        yield Violation(kind="limits", what=f"the runtime does not run {names} by turns on one device")
    if roles & set(group.tasks) and Task.ACTOR_TRAINING not in group.tasks:
        yield Violation(kind="limits", what=f"the trainer itself does {'+'.join(sorted(roles))}, {names} is apart")
    for pool in group.pools:
        at = prices.classes.get(pool.device_class)
        if at is None:
            yield Violation(kind="inventory", what=f"the fleet has no {pool.device_class}")
            continue
        for task in group.tasks:
            if not rules.allows(task, at.region.name, at.is_spot):
                yield Violation(kind="rules", what=f"{task} is not allowed on {at.key}")
        yield from _of_pool(prices, group, pool, at)
    if group.trains and len(group.pools) > 1:
        yield from _of_mesh(prices, group)


def _of_mesh(prices: Prices, group: Group) -> Iterator[Violation]:
    """Of several pools."""
    keys = [pool.device_class for pool in group.pools]
    if len(keys) > prices.problem.limits.max_train_blocks:
        yield Violation(kind="limits", what=f"{len(keys)} kinds of devices in one training mesh")
    if len(set(keys)) < len(keys):
        yield Violation(kind="shape", what=f"a mesh has two pools of {max(keys, key=keys.count)}")
    if any(layout.sharding is Sharding.FULL for pool in group.pools for _, layout in pool.layouts):
        yield Violation(kind="shape", what="a mesh of several pools cannot shard its parameters fully")
    regions = [prices.classes[key].region.name for key in keys]
    for a, b in pairwise((*regions, regions[0])):
        if not prices.network.joins(a, b):
            yield Violation(kind="link", what=f"no route between {a} and {b}, which train together")
    if len(set(regions)) > 1 and Task.GENERATION in group.tasks and Task.ACTOR_TRAINING not in group.tasks:
        yield Violation(kind="shape", what="generation takes turns with the critic's training in two regions")


def _of_pool(prices: Prices, group: Group, pool: Pool, at: DeviceClass) -> Iterator[Violation]:
    limits = prices.problem.limits
    if tuple(task for task, _ in pool.layouts) != group.tasks:
        yield Violation(kind="shape", what=f"{at.key}: not one layout for each of {'+'.join(group.tasks)}")
    if pool.num_units < 1 or pool.unit_gpus not in TENSOR or pool.unit_gpus > at.gpus_per_machine:
        yield Violation(kind="shape", what=f"{at.key}: {pool.num_units} units of {pool.unit_gpus} devices")
    if prices.problem.goal.needs_prices and at.usd_per_gpu_hour is None:
        yield Violation(kind="rules", what=f"{at.key} has no price, and the objective is in dollars")
    if len({layout for task, layout in pool.layouts if task in TRAINING}) > 1:
        yield Violation(kind="shape", what=f"{at.key}: tasks that train on the same devices have different layouts")
    for task, layout in pool.layouts:
        if not _is_listed(prices, task, layout, pool):
            yield Violation(kind="shape", what=f"{at.key}: {task} cannot be laid out as {layout}")
        elif layout.batch and (task is not Task.GENERATION or prices.problem.workload.eta == 0 or group.trains):
            yield Violation(kind="shape", what=f"{at.key}: {task} takes no batch")
        elif layout.tensor > limits.max_tensor or layout.pipeline > limits.max_pipeline:
            yield Violation(kind="limits", what=f"tensor {layout.tensor}, pipeline {layout.pipeline} on {at.key}")
        elif task in TRAINING and pool.num_units // layout.pipeline > limits.max_data:
            yield Violation(kind="limits", what=f"{pool.num_units // layout.pipeline} replicas train on {at.key}")


def _is_listed(prices: Prices, task: Task, layout: Layout, pool: Pool) -> bool:
    """Whether the plan space has that layout on those units."""
    if layout.tensor not in TENSOR or layout.batch not in BATCH:
        return False
    if task is Task.GENERATION:
        return pool.unit_gpus % layout.tensor == 0 and layout == Layout(tensor=layout.tensor, batch=layout.batch)
    if task not in TRAINING:
        return layout == Layout(tensor=pool.unit_gpus, batch=layout.batch)
    data, rest = divmod(pool.num_units, layout.pipeline)
    return (
        layout.tensor == pool.unit_gpus
        and layout.pipeline in PIPELINE
        and layout.micro_batch in MICRO_BATCH
        and layout.pipeline <= prices.problem.workload.models[task].num_layers
        and not rest
        and data in DATA
        and (layout.sharding is Sharding.NONE or data > 1)
        and (layout.sharding is not Sharding.FULL or layout.pipeline == 1)
    )


def _inventory(prices: Prices, placement: Placement) -> Violation | None:
    held: dict[str, dict[int, int]] = {}
    for pool in (pool for group in placement.groups for pool in group.pools):
        units = held.setdefault(pool.device_class, {})
        units[pool.unit_gpus] = units.get(pool.unit_gpus, 0) + pool.num_units
    for key in sorted(held):
        if not fits(prices.classes[key], held[key]):
            asked = ", ".join(f"{num} x {size}" for size, num in sorted(held[key].items()))
            at = prices.classes[key]
            has = f"{at.num_machines} machines of {at.gpus_per_machine}"
            return Violation(kind="inventory", what=f"{key}: units {asked} do not fit into {has}")
    return None


def _regions(prices: Prices, placement: Placement) -> Violation | None:
    rules = prices.problem.rules
    used = {(group.tasks, prices.classes[pool.device_class].region.name)
            for group in placement.groups for pool in group.pools}  # fmt: skip
    names = {region for _, region in used}
    generating = {region for tasks, region in used if Task.GENERATION in tasks}
    if rules.max_regions is not None and len(names) > rules.max_regions:
        return Violation(kind="rules", what=f"{len(names)} regions, {rules.max_regions} are allowed")
    if len(names) < rules.min_regions:
        return Violation(kind="rules", what=f"{len(names)} regions, at least {rules.min_regions} are asked for")
    for name in sorted(rules.generating - generating):
        return Violation(kind="rules", what=f"generation does not run in {name}")
    return None
