"""Small problems for the cost model: made-up devices with round numbers, a few regions, and all that a plan may be."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.cost.candidates.columns import UnitColumn, mesh_columns, unit_columns
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.layer_cuts import BATCH, DATA, MICRO_BATCH, PIPELINE, TENSOR
from planner.problem.architecture import Architecture
from planner.problem.device_classes import DeviceClass, fits
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.goal import Goal, Problem, Rules
from planner.problem.hardware import Efficiency, GpuType
from planner.problem.workload import TRAINING, Lengths, Task, Workload

SIMPLE = Efficiency(
    matmul_fraction=0.5,
    saturation_tokens=0.0,
    memory_fraction=0.5,
    link_fraction=0.5,
    layer_overhead_s=0.0,
    collective_latency_s=0.0,
    attention_fraction=0.5,
    attention_saturation_tokens=0.0,
    attention_overhead_s=0.0,
)
"""Half of everything, and no fixed times."""
GPU = GpuType(
    name="simple",
    memory_bytes=80 * 10**9,
    memory_bytes_per_s=2e12,
    matmul_flop_per_s=200e12,
    link_bytes_per_s=200e9,
    efficiency=SIMPLE,
)
MODEL = Architecture(
    name="small",
    hidden_size=1024,
    num_layers=6,
    num_heads=8,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=4096,
    vocab_size=32_000,
    tied_embeddings=False,
)
GRPO = (Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING)


def workload(tasks: Sequence[Task] = GRPO, *, eta: int = 1, lengths: Sequence[int] = (100, 200, 300, 600)) -> Workload:
    return Workload(
        algorithm="grpo",
        models=dict.fromkeys(tasks, MODEL),
        eta=eta,
        prompts_per_step=16,
        group_size=4,
        prompt_tokens=Lengths(quantiles=(100.0,)),
        completion_tokens=Lengths(quantiles=tuple(map(float, sorted(lengths)))),
    )


def machines(gpu: GpuType = GPU, *, per_machine: int = 2, num: int = 1, usd: float | None = 1.0) -> Machines:
    return Machines(gpu=gpu.name, gpus_per_machine=per_machine, num_machines=num, usd_per_gpu_hour=usd)


def region(name: str, *inside: Machines, fabric_bytes_per_s: float = 10e9) -> Region:
    return Region(name=name, machines=inside, fabric_bytes_per_s=fabric_bytes_per_s, fabric_latency_s=0.0)


def fleet(*regions: Region, types: Sequence[GpuType] = (GPU,), bytes_per_s: float = 1e9, rtt_s: float = 0.1) -> Fleet:
    """All regions joined by equal links."""
    names = [each.name for each in regions]
    links = tuple(
        Link(src_region=a, dst_region=b, rtt_s=rtt_s, bytes_per_s=bytes_per_s, usd_per_gbyte=0.05)
        for a, b in product(names, names)
        if a != b
    )
    return Fleet(regions=regions, links=links, gpu_types={each.name: each for each in types})


def problem(on: Fleet, of: Workload, *, goal: Goal | None = None, rules: Rules | None = None) -> Problem:
    return Problem(fleet=on, workload=of, goal=goal or Goal(), rules=rules or Rules())


def slower(gpu: GpuType, name: str, *, factor: float, memory: float = 1.0) -> GpuType:
    return replace(
        gpu,
        name=name,
        matmul_flop_per_s=gpu.matmul_flop_per_s * factor,
        memory_bytes=int(gpu.memory_bytes * memory),
        memory_bytes_per_s=gpu.memory_bytes_per_s * factor,
    )


def placements(cost_tables: CostTables, *, batches: Sequence[int] = BATCH) -> Iterator[Placement]:
    """Every placement of a small problem whose pools of a group have distinct shapes."""
    asked = cost_tables.problem.workload.tasks
    for grouping in partitions(list(asked)):
        yield from _placements(cost_tables, [tuple(t for t in asked if t in tasks) for tasks in grouping], [], batches)


def partitions(tasks: list[Task]) -> Iterator[list[list[Task]]]:
    if not tasks:
        yield []
        return
    first, *rest = tasks
    for found in partitions(rest):
        yield [[first], *found]
        for i, part in enumerate(found):
            yield [*found[:i], [first, *part], *found[i + 1 :]]


def _placements(
    cost_tables: CostTables, left: list[tuple[Task, ...]], groups: list[Group], batches: Sequence[int]
) -> Iterator[Placement]:
    if not left:
        yield Placement(groups=tuple(groups))
        return
    tasks, *rest = left
    for pools in _groups(cost_tables, tasks, batches):
        if _fit(cost_tables, [*(pool for group in groups for pool in group.pools), *pools]):
            yield from _placements(cost_tables, rest, [*groups, Group(tasks=tasks, pools=pools)], batches)


def _groups(cost_tables: CostTables, tasks: tuple[Task, ...], batches: Sequence[int]) -> Iterator[tuple[Pool, ...]]:
    by_class = [_pools(at, tasks, cost_tables, batches) for _, at in sorted(cost_tables.classes.items())]
    if any(task in TRAINING for task in tasks):
        for pools in by_class:
            yield from ((pool,) for pool in pools)
        for i, j in product(range(len(by_class)), repeat=2):
            if i != j:
                yield from product(by_class[i], by_class[j])
        return
    for chosen in product(*([(), *((pool,) for pool in pools)] for pools in by_class)):
        if some := tuple(pool for each in chosen for pool in each):
            yield some


def _pools(at: DeviceClass, tasks: tuple[Task, ...], cost_tables: CostTables, batches: Sequence[int]) -> list[Pool]:
    trains = any(task in TRAINING for task in tasks)
    found = []
    for unit in (size for size in TENSOR if size <= at.gpus_per_machine):
        for num in range(1, at.num_units(unit) + 1):
            for layouts in product(*(_layouts(task, unit, num, trains, cost_tables, batches) for task in tasks)):
                trained = {layout for task, layout in zip(tasks, layouts, strict=True) if task in TRAINING}
                if len(trained) < 2:
                    pool = Pool(
                        device_class=at.key,
                        unit_gpus=unit,
                        num_units=num,
                        layouts=tuple(zip(tasks, layouts, strict=True)),
                    )
                    found.append(pool)
    return [pool for pool in found if hasattr(cost_tables.pool(tasks, pool), "rates")]


def _layouts(
    task: Task, unit: int, num: int, trains: bool, cost_tables: CostTables, batches: Sequence[int]
) -> list[Layout]:
    if task is Task.GENERATION:
        sizes = [size for size in TENSOR if unit % size == 0]
        some = (0,) if trains or cost_tables.problem.workload.eta == 0 else batches
        return [Layout(tensor=size, batch=batch) for size, batch in product(sizes, some)]
    if task not in TRAINING:
        return [Layout(tensor=unit)]
    return [
        Layout(tensor=unit, pipeline=p, sharding=sharding, recompute=again, micro_batch=size)
        for p, sharding, again, size in product(PIPELINE, Sharding, (False, True), MICRO_BATCH)
        if num % p == 0
        and num // p in DATA
        and p <= MODEL.num_layers
        and not (sharding is not Sharding.NONE and num == p)
        and not (sharding is Sharding.FULL and p > 1)
    ]


def _fit(cost_tables: CostTables, pools: Sequence[Pool]) -> bool:
    held: dict[str, dict[int, int]] = {}
    for pool in pools:
        units = held.setdefault(pool.device_class, {})
        units[pool.unit_gpus] = units.get(pool.unit_gpus, 0) + pool.num_units
    return all(fits(cost_tables.classes[key], units) for key, units in held.items())


def of_columns(cost_tables: CostTables) -> Iterator[Placement]:
    """The same, of columns only."""
    asked = cost_tables.problem.workload.tasks

    def chosen(columns: Sequence[UnitColumn], held: list[Pool]) -> Iterator[tuple[Pool, ...]]:
        yield ()
        for i, column in enumerate(columns):
            at = cost_tables.classes[column.unit.device_class]
            for num in range(1, at.num_units(column.unit.unit_gpus) + 1):
                pool = replace(column.unit, num_units=num)
                if _fit(cost_tables, [*held, pool]):
                    yield from ((pool, *more) for more in chosen(columns[i + 1 :], [*held, pool]))

    def groups(tasks: tuple[Task, ...], held: list[Pool]) -> Iterator[Group]:
        if any(task in TRAINING for task in tasks):
            found = (column.group for column in mesh_columns(cost_tables, tasks))
        else:
            found = (
                Group(tasks=tasks, pools=pools) for pools in chosen(unit_columns(cost_tables, tasks), held) if pools
            )
        yield from (group for group in found if _fit(cost_tables, [*held, *group.pools]))

    def filled(left: list[tuple[Task, ...]], done: list[Group]) -> Iterator[Placement]:
        if not left:
            yield Placement(groups=tuple(done))
            return
        for group in groups(left[0], [pool for each in done for pool in each.pools]):
            yield from filled(left[1:], [*done, group])

    for grouping in partitions(list(asked)):
        yield from filled([tuple(t for t in asked if t in tasks) for tasks in grouping], [])
