"""Validity of a placement: shapes, limits of the runtime, rules of the operator, and inventory.

The checks say whether a placement is in the plan space that `docs/planner-model.md` describes. Memory and times are
checked elsewhere (`planner.cost.step.fixed_terms`). Each violated constraint is a `Violation` with a sentence for the
user.
"""

from collections.abc import Iterator
from itertools import pairwise

from planner.answer.evaluation import Violation
from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.layer_cuts import BATCH, DATA, MICRO_BATCH, PIPELINE, TENSOR, shardings
from planner.problem.device_classes import DeviceClass, fits
from planner.problem.workload import TRAINING, Task

__all__ = ["BATCH", "DATA", "MICRO_BATCH", "PIPELINE", "TENSOR", "violation"]


def violation(cost_tables: CostTables, placement: Placement) -> Violation | None:
    """Return the first constraint that the placement violates, or None. Memory and times are not checked."""
    tasks = [task for group in placement.groups for task in group.tasks]
    if sorted(tasks) != sorted(cost_tables.problem.workload.tasks):
        return Violation(
            kind="shape",
            what=f"the groups have the tasks {', '.join(tasks)}, but each task of the job must appear exactly once",
        )
    for group in placement.groups:
        if found := next(of_group(cost_tables, group), None):
            return found
    return _inventory(cost_tables, placement) or _regions(cost_tables, placement)


def of_group(cost_tables: CostTables, group: Group) -> Iterator[Violation]:
    """Yield the constraints that a group violates by itself; inventory and memory are not checked."""
    limits, rules, names = cost_tables.problem.limits, cost_tables.problem.rules, "+".join(group.tasks)
    if not group.pools:
        yield Violation(kind="shape", what=f"{names} has no devices")
    # Roles that the runtime has in the trainer's process share its devices, with each other alone.
    roles = limits.roles_on_trainer & set(cost_tables.problem.workload.tasks)
    if not limits.allows_group(group.tasks, cost_tables.problem.workload.tasks):
        yield Violation(kind="limits", what=f"the runtime cannot run {names} by turns on the same devices")
    if roles & set(group.tasks) and Task.ACTOR_TRAINING not in group.tasks:
        yield Violation(
            kind="limits",
            what=f"{'+'.join(sorted(roles))} must be in actor training's group, not in {names}",
        )
    for pool in group.pools:
        at = cost_tables.classes.get(pool.device_class)
        # Without a class the remaining checks of this pool have nothing to compare with.
        if at is None:
            yield Violation(kind="inventory", what=f"the fleet has no device class {pool.device_class}")
            continue
        for task in group.tasks:
            if not rules.allows(task, at.region.name, at.is_spot):
                yield Violation(kind="rules", what=f"{task} is not allowed on {at.key}")
        if not limits.allows_turns(group.tasks, at.gpu):
            yield Violation(kind="limits", what=f"the runtime cannot generate and train by turns on {at.key}")
        yield from _of_pool(cost_tables, group, pool, at)
    if group.trains and len(group.pools) > 1:
        yield from _of_mesh(cost_tables, group)


def _of_mesh(cost_tables: CostTables, group: Group) -> Iterator[Violation]:
    """Yield the constraints that a mesh of several pools violates."""
    keys = [pool.device_class for pool in group.pools]
    if len(keys) > cost_tables.problem.limits.max_train_blocks:
        yield Violation(kind="limits", what=f"a training mesh has {len(keys)} pools, more than the runtime can join")
    if len(set(keys)) < len(keys):
        yield Violation(kind="shape", what=f"a mesh has two pools of {max(keys, key=keys.count)}")
    if any(layout.sharding is Sharding.FULL for pool in group.pools for _, layout in pool.layouts):
        yield Violation(kind="shape", what="a mesh of several pools cannot shard its parameters fully")
    regions = [cost_tables.classes[key].region.name for key in keys]
    # Gradients go around a ring, so the last pool needs a route to the first one, too.
    for a, b in pairwise((*regions, regions[0])):
        if not cost_tables.network.joins(a, b):
            yield Violation(kind="link", what=f"no route between {a} and {b}, which train together")
    if len(set(regions)) > 1 and Task.GENERATION in group.tasks and Task.ACTOR_TRAINING not in group.tasks:
        yield Violation(
            kind="shape", what="generation cannot take turns with the critic's training in a mesh of two regions"
        )


def _of_pool(cost_tables: CostTables, group: Group, pool: Pool, at: DeviceClass) -> Iterator[Violation]:
    """Yield the constraints that one pool of a group violates."""
    limits = cost_tables.problem.limits
    # Layouts are in the order of the group's tasks, so that equal pools are equal values.
    if tuple(task for task, _ in pool.layouts) != group.tasks:
        yield Violation(
            kind="shape", what=f"{at.key}: a pool needs exactly one layout for each of {'+'.join(group.tasks)}"
        )
    if pool.num_units < 1 or pool.unit_gpus not in TENSOR or pool.unit_gpus > at.gpus_per_machine:
        yield Violation(
            kind="shape", what=f"{at.key}: a pool cannot have {pool.num_units} units of {pool.unit_gpus} devices"
        )
    if cost_tables.problem.goal.needs_prices and at.usd_per_gpu_hour is None:
        yield Violation(kind="rules", what=f"{at.key} has no price, and the objective is in dollars")
    # Actor and critic train by turns on one mesh of processes, which has one layout.
    if len({layout for task, layout in pool.layouts if task in TRAINING}) > 1:
        yield Violation(kind="shape", what=f"{at.key}: tasks that train on the same devices have different layouts")
    # At most one violation for each layout: the later checks assume what the earlier ones establish.
    for task, layout in pool.layouts:
        if not _is_listed(cost_tables, task, layout, pool, at):
            yield Violation(kind="shape", what=f"{at.key}: {task} cannot be laid out as {layout}")
        elif layout.batch and (task is not Task.GENERATION or cost_tables.problem.workload.eta == 0 or group.trains):
            yield Violation(
                kind="shape",
                what=f"{at.key}: {task} takes no batch; only generation apart from training with eta >= 1 does",
            )
        elif not limits.allows_tensor(task, layout.tensor, at.gpu) or layout.pipeline > limits.max_pipeline:
            yield Violation(
                kind="limits",
                what=f"tensor {layout.tensor} and pipeline {layout.pipeline} on {at.key} exceed the limits",
            )
        elif task in TRAINING and pool.num_units // layout.pipeline > limits.max_data:
            yield Violation(
                kind="limits",
                what=f"{pool.num_units // layout.pipeline} data-parallel pipelines on {at.key} exceed the limits",
            )


def _is_listed(cost_tables: CostTables, task: Task, layout: Layout, pool: Pool, at: DeviceClass) -> bool:
    """Return whether the plan space has that layout of the task on the pool's units."""
    if layout.tensor not in TENSOR or layout.batch not in BATCH:
        return False
    if task is Task.GENERATION:
        # A unit may hold several replicas. All other fields must have their defaults.
        return pool.unit_gpus % layout.tensor == 0 and layout == Layout(tensor=layout.tensor, batch=layout.batch)
    if task not in TRAINING:
        # Scoring uses the unit as one replica.
        return layout == Layout(tensor=pool.unit_gpus, batch=layout.batch)
    # Training: a unit is one pipeline stage, and units must form whole pipelines.
    data, rest = divmod(pool.num_units, layout.pipeline)
    machine_units = max(1, at.gpus_per_machine // pool.unit_gpus)
    return (
        layout.tensor == pool.unit_gpus
        and layout.pipeline in PIPELINE
        and layout.micro_batch in MICRO_BATCH
        and layout.pipeline <= cost_tables.problem.workload.models[task].num_layers
        and not rest
        and data in DATA
        and (layout.sharding, layout.copies)
        in shardings(layout.pipeline, data, machine_units, cost_tables.problem.limits.fsdp)
    )


def _inventory(cost_tables: CostTables, placement: Placement) -> Violation | None:
    """Return a violation if the pools of some class do not fit into its machines together."""
    # Units by class and size over all groups, since all of them share the class's machines.
    held: dict[str, dict[int, int]] = {}
    for pool in (pool for group in placement.groups for pool in group.pools):
        units = held.setdefault(pool.device_class, {})
        units[pool.unit_gpus] = units.get(pool.unit_gpus, 0) + pool.num_units
    for key in sorted(held):
        if not fits(cost_tables.classes[key], held[key]):
            wanted = ", ".join(f"{num} x {size}" for size, num in sorted(held[key].items()))
            at = cost_tables.classes[key]
            has = f"{at.num_machines} machines of {at.gpus_per_machine}"
            return Violation(kind="inventory", what=f"{key}: units {wanted} do not fit into {has}")
    return None


def _regions(cost_tables: CostTables, placement: Placement) -> Violation | None:
    """Return a violation if the numbers or names of the regions in use break the operator's rules."""
    rules = cost_tables.problem.rules
    used = {
        (group.tasks, cost_tables.classes[pool.device_class].region.name)
        for group in placement.groups
        for pool in group.pools
    }
    # All regions in use, and those that generate.
    names = {region for _, region in used}
    generating = {region for tasks, region in used if Task.GENERATION in tasks}
    if rules.max_regions is not None and len(names) > rules.max_regions:
        return Violation(
            kind="rules", what=f"the placement uses {len(names)} regions, at most {rules.max_regions} are allowed"
        )
    if len(names) < rules.min_regions:
        return Violation(
            kind="rules", what=f"the placement uses {len(names)} regions, at least {rules.min_regions} are demanded"
        )
    for name in sorted(rules.generating - generating):
        return Violation(kind="rules", what=f"generation must run in {name}, but does not")
    return None
