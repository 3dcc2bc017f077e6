"""A re-plan chooses among meshes that include each one for which few devices move, or one that is as good."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.cost.candidates.mesh_lists import MeshColumn
from planner.cost.candidates.meshes import dominance_sums
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tables.validity import DATA, MICRO_BATCH, PIPELINE, TENSOR, of_group
from planner.problem.fleet import Machines
from planner.problem.goal import STUDY
from planner.problem.workload import TRAINING, Task
from planner.replan.meshes import repairs, small_single_pool_meshes, two_pool_meshes
from planner.replan.moves import num_moved
from tests.support.cases.examples import examples
from tests.support.planner.replanning import problem

GROUPS = (
    (Task.ACTOR_TRAINING,),
    (Task.REFERENCE, Task.ACTOR_TRAINING),
    (Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING),
)
TRIES = 300
ROUNDING = 1 + 1e-9


@cache
def prices_of(eta: int) -> CostTables:
    """Two kinds of machines in the east, one in the south."""
    case = problem(num_a100=3, num_l40s=0, num_l4=3, eta=eta)
    east, south = case.fleet.regions
    east = replace(east, machines=(*east.machines, Machines(gpu="L40S", gpus_per_machine=8, num_machines=2)))
    return CostTables(replace(case, fleet=replace(case.fleet, regions=(east, south)), limits=STUDY))


def layouts(rng: np.random.Generator, most_gpus: int) -> Iterator[tuple[int, int, Layout]]:
    """(devices of a unit, units, layout), drawn."""
    while True:
        unit, pipeline = int(rng.choice(TENSOR)), int(rng.choice(PIPELINE))
        data = [each for each in DATA if each * pipeline * unit <= most_gpus]
        if data:
            yield (
                unit,
                int(rng.choice(data)) * pipeline,
                Layout(
                    tensor=unit,
                    pipeline=pipeline,
                    sharding=list(Sharding)[rng.integers(3)],
                    recompute=bool(rng.random() < 0.7),
                    micro_batch=int(rng.choice(MICRO_BATCH)),
                ),
            )


def drawn(
    cost_tables: CostTables, rng: np.random.Generator, tasks: tuple[Task, ...], like: Group | None
) -> Group | None:
    """A mesh that fits, with the cuts of `like` where it has devices of that class and chance will have it."""
    for _ in range(TRIES):
        pools = []
        for key in rng.permutation(sorted(cost_tables.classes))[: 1 + rng.integers(2)].tolist():
            unit, num, train = next(layouts(rng, cost_tables.classes[key].num_gpus))
            generates = Layout(tensor=int(rng.choice([size for size in TENSOR if size <= unit])))
            of = next((pool for pool in like.pools if pool.device_class == key), None) if like else None
            if of is not None and rng.random() < 0.7:
                pipeline = of.layout(Task.ACTOR_TRAINING).pipeline
                unit, num = of.unit_gpus, int(rng.choice(DATA[:6])) * pipeline
                train = replace(train, tensor=unit, pipeline=pipeline)
                generates = of.layout(Task.GENERATION) if Task.GENERATION in tasks else generates
            others = {Task.GENERATION: generates, Task.REFERENCE: Layout(tensor=unit)}
            cut = tuple((task, train if task in TRAINING else others[task]) for task in tasks)
            pools.append(Pool(device_class=key, unit_gpus=unit, num_units=num, layouts=cut))
        group = Group(tasks=tasks, pools=tuple(pools))
        fits = all(pool.num_gpus <= cost_tables.classes[pool.device_class].num_gpus for pool in pools)
        fits = fits and not any(of_group(cost_tables, group))
        if fits and all(isinstance(cost_tables.pool(tasks, pool), UnitCost) for pool in pools):
            return group
    return None


def gpus(group: Group) -> dict[str, int]:
    return {pool.device_class: pool.num_gpus for pool in group.pools}


def beats(cost_tables: CostTables, running: Group, a: MeshColumn, b: MeshColumn) -> bool:
    """Whether `a` is at least as good as `b`, on no more devices of any class, and moves no more."""
    was, before = Placement(groups=(running,)), gpus(b.group)
    if a.regions[0] != b.regions[0] or any(num > before.get(key, 0) for key, num in gpus(a.group).items()):
        return False
    new = [num_moved(was, Placement(groups=(each.group,))) for each in (a, b)]
    numbers = [
        dominance_sums(cost_tables, running.tasks, {task: np.array([s]) for task, s in each.times.items()})
        for each in (a, b)
    ]
    return new[0] <= new[1] and all(x[0] <= y[0] * ROUNDING for x, y in zip(*numbers, strict=True))


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(st.integers(0, 1 << 20), st.sampled_from([0, 1]), st.sampled_from(GROUPS))
def test_every_mesh_that_few_devices_move_for_is_listed_or_beaten(seed: int, eta: int, tasks: tuple[Task, ...]) -> None:
    cost_tables, rng = prices_of(eta), np.random.default_rng(seed)
    running = drawn(cost_tables, rng, tasks, None)
    assume(running is not None)
    assert running is not None
    mesh = drawn(cost_tables, rng, tasks, running)
    assume(mesh is not None)
    assert mesh is not None
    column = repairs(cost_tables, mesh)[0]
    assert column.group == mesh
    most = num_moved(Placement(groups=(running,)), Placement(groups=(mesh,)))
    trainer_regions = column.regions[:1]
    listed = (
        *repairs(cost_tables, running),
        *small_single_pool_meshes(cost_tables, running, trainer_regions, most),
        *two_pool_meshes(cost_tables, running, trainer_regions, most, np.inf),
    )
    assert any(beats(cost_tables, running, each, column) for each in listed)
