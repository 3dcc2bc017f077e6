"""What is worth choosing among: pools for groups without training, meshes for groups with it.

Everything that the plan space allows and memory permits, less what is dominated: an option goes only if another one, on
devices that fit wherever its fit, is no worse in every number that the oracle uses. So the best placement made of
columns is a best placement of the plan space.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from planner.answer.placement import Group, Layout, Pool
from planner.classes import DeviceClass
from planner.cost import cuts, memory
from planner.cost.meshes import Found, Pairing, Side, alone, side
from planner.cost.options import Options, options
from planner.cost.phases import PhaseTable
from planner.cost.pools import Kind, Prices, host_violation
from planner.cost.ways import home
from planner.question.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitColumn:
    """One unit of a group without training; a placement has any number of them."""

    unit: Pool
    """`num_units` is 1."""
    region: str
    rates: Mapping[Task, float]
    phase: PhaseTable | None
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshColumn:
    """A whole group with training."""

    group: Group
    regions: tuple[str, ...]
    """Of its pools; the first is where versions are published, if the actor is trained here."""
    times: Mapping[Task, float]
    """Seconds a step of each of the group's tasks."""
    usd_per_hour: float
    usd_per_step: float = 0.0
    """Egress of the gradients between its regions."""

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.group.pools)


def unit_columns(prices: Prices, tasks: tuple[Task, ...]) -> tuple[UnitColumn, ...]:
    """For a group of `tasks`, none of which trains. Sorted by class."""
    return prices.known(("units", tasks), lambda: tuple(_unit_columns(prices, tasks)))


def mesh_columns(
    prices: Prices,
    tasks: tuple[Task, ...],
    max_s: float = np.inf,
    *,
    blocks: int | None = None,
    home: str | None = None,
) -> tuple[MeshColumn, ...]:
    """For a group of `tasks`, at least one of which trains: meshes that take at most `max_s` a step together.

    `blocks`: of one pool only (1), of two only (2), or all that the limits allow (None). `home`: of those of two pools
    only what has the first in that region. Sorted by classes and devices.
    Meshes of two regions are slow to list for a fleet of thousands of devices without `max_s`.
    """
    found: tuple[MeshColumn, ...] = ()
    if blocks != 2:
        found += prices.known(("mesh", tasks, max_s), lambda: tuple(_of_one_class(prices, tasks, max_s)))
    if blocks != 1 and prices.problem.limits.max_train_blocks > 1:
        key = ("meshes", tasks, max_s, home)
        found += prices.known(key, lambda: tuple(_of_two_classes(prices, tasks, max_s, home)))
    return found


def _unit_columns(prices: Prices, tasks: tuple[Task, ...]) -> Iterator[UnitColumn]:
    if not may_group(prices, tasks):
        return
    for at in usable_classes(prices, tasks):
        if Task.GENERATION in tasks and host_violation(prices, at):
            continue
        kind = prices.kind(at)
        for each in prices.known(("units", tasks, kind), partial(_undominated_units, prices, tasks, at), lasts=True):
            pool = Pool(device_class=at.key, unit_gpus=each.unit_gpus, num_units=1, layouts=each.layouts)
            yield UnitColumn(
                unit=pool, region=at.region.name, rates=each.rates, phase=each.phase,
                usd_per_hour=pool.num_gpus * (at.usd_per_gpu_hour or 0.0),
            )  # fmt: skip


def may_group(prices: Prices, tasks: tuple[Task, ...]) -> bool:
    """Whether the runtime lets these tasks be a group, and no others of the trainer's process are left out of it."""
    limits, asked = prices.problem.limits, set(prices.problem.workload.tasks)
    roles = limits.roles_on_trainer & asked
    if roles and (set(tasks) & (roles | {Task.ACTOR_TRAINING})) and not (roles | {Task.ACTOR_TRAINING}) <= set(tasks):
        return False
    return limits.colocates or len(set(tasks) - roles) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Of a kind of machines."""

    unit_gpus: int
    layouts: tuple[tuple[Task, Layout], ...]
    rates: Mapping[Task, float]
    phase: PhaseTable | None


def _units(prices: Prices, tasks: tuple[Task, ...], at: DeviceClass) -> Iterator[_Unit]:
    """In memory's limits."""
    workload = prices.problem.workload
    scored = [task for task in tasks if task is not Task.GENERATION]
    held = [task for task in scored if task not in prices.without_memory_of]
    usable = memory.usable_bytes(at.gpu)
    for unit in (size for size in cuts.TENSOR if size <= min(at.gpus_per_machine, prices.problem.limits.max_tensor)):
        resident = sum(memory.served_bytes(workload, task, unit) for task in held)
        transient = max((memory.scoring_bytes(workload, task, unit) for task in held), default=0.0)
        rates: dict[Task, float] = {task: 1 / prices.scoring_s(task, at.gpu, unit) for task in scored}
        if Task.GENERATION not in tasks:
            if resident + transient <= usable:
                layouts = tuple((task, Layout(tensor=unit)) for task in tasks)
                yield _Unit(unit_gpus=unit, layouts=layouts, rates=rates, phase=None)
            continue
        for tensor in (size for size in cuts.TENSOR if unit % size == 0):
            stays = resident
            if Task.GENERATION not in prices.without_memory_of:
                stays += memory.served_bytes(workload, Task.GENERATION, tensor)
            most = int(prices.replica(at.gpu, tensor).slots(np.array([usable - stays]))[0])
            if most >= 0 and stays + transient <= usable:
                yield _generating(prices, tasks, at, unit, tensor, most, rates)


def _generating(
    prices: Prices,
    tasks: tuple[Task, ...],
    at: DeviceClass,
    unit: int,
    tensor: int,
    most: int,
    rates: Mapping[Task, float],
) -> _Unit:
    """With as many sequences as fit: fewer are never better."""
    replica, replicas = prices.replica(at.gpu, tensor), unit // tensor
    made = replicas * prices.shares(at.gpu, tensor, prices.load_s(at, tensor, num_gpus=None))[most]
    generates = Layout(tensor=tensor)
    return _Unit(
        unit_gpus=unit,
        layouts=tuple((task, generates if task is Task.GENERATION else Layout(tensor=unit)) for task in tasks),
        rates={task: rates.get(task, replicas * float(replica.rates[most])) for task in tasks},
        phase=PhaseTable(seconds=prices.phase_seconds, samples=made),
    )  # fmt: skip


def _undominated_units(prices: Prices, tasks: tuple[Task, ...], at: DeviceClass) -> list[_Unit]:
    """A unit of k devices is replaced by n units of k / n devices that together do no worse, and not the other way."""
    kept: list[_Unit] = []
    is_sync = prices.problem.workload.eta == 0
    for each in sorted(_units(prices, tasks, at), key=lambda each: each.unit_gpus):
        if not any(_no_worse(other, each, is_sync) for other in kept):
            kept = [other for other in kept if not _no_worse(each, other, is_sync)]
            kept.append(each)
    return kept


def _no_worse(a: _Unit, b: _Unit, is_sync: bool) -> bool:
    """Whether `a`, as often as fits into a unit of `b`, is at least as good in everything; full rates of generation
    say nothing at eta 0."""
    times, rest = divmod(b.unit_gpus, a.unit_gpus)
    if rest:
        return False
    counted = [task for task in b.rates if not (is_sync and task is Task.GENERATION)]
    if any(times * a.rates[task] < b.rates[task] * (1 - 1e-12) for task in counted):
        return False
    if a.phase is None or b.phase is None:
        return True
    return bool((times * a.phase.samples >= b.phase.samples * (1 - 1e-12)).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meshes:
    """Of one group: classes that may hold it, and of their kinds of machines what they offer and how many there are."""

    usable: Sequence[DeviceClass]
    options: Mapping[Kind, Options]
    alone: Mapping[Kind, Found]
    most: Mapping[Kind, int]

    def side(self, prices: Prices, tasks: tuple[Task, ...], at: DeviceClass) -> Side:
        """Of two pools."""
        kind = prices.kind(at)
        key = ("side", tasks, kind, self.most[kind])
        return prices.known(key, partial(side, prices, at, self.options[kind]), lasts=True)


def _meshes(prices: Prices, tasks: tuple[Task, ...]) -> _Meshes:
    usable = usable_classes(prices, tasks) if may_group(prices, tasks) else []
    if Task.GENERATION in tasks:
        usable = [at for at in usable if not host_violation(prices, at)]
    most: dict[Kind, int] = {}
    for at in usable:
        most[prices.kind(at)] = max(most.get(prices.kind(at), 0), at.num_machines)
    found, best = {}, {}
    for at in usable:
        kind = prices.kind(at)
        if kind not in found:
            key = (tasks, kind, most[kind])
            found[kind] = prices.known(("options", *key), partial(options, prices, tasks, at, most[kind]), lasts=True)
            best[kind] = prices.known(("alone", *key), partial(alone, prices, tasks, at, found[kind]), lasts=True)
    return _Meshes(usable=usable, options=found, alone=best, most=most)


def _of_one_class(prices: Prices, tasks: tuple[Task, ...], max_s: float) -> Iterator[MeshColumn]:
    meshes = prices.known(("found", tasks), lambda: _meshes(prices, tasks))
    pools = _Pools()
    for at in meshes.usable:
        yield from _columns(prices, tasks, pools, meshes.alone[prices.kind(at)], (at,), max_s)


def _of_two_classes(prices: Prices, tasks: tuple[Task, ...], max_s: float, region: str | None) -> Iterator[MeshColumn]:
    """In one region or in two."""
    meshes = prices.known(("found", tasks), lambda: _meshes(prices, tasks))
    rules, pools = prices.problem.rules, _Pools()
    for a, b in _ordered_pairs(prices, tasks, meshes.usable, max_s):
        if region not in (None, a.region.name):
            continue
        kinds, edges = (prices.kind(a), prices.kind(b)), tuple(prices.edges((a, b)))
        sides = [meshes.side(prices, tasks, each) for each in (a, b)]
        is_near = a.region.name == b.region.name
        has_a = is_near or (rules.min_regions <= 1 and not rules.generating)
        has_b = is_near or (has_a and Task.ACTOR_TRAINING not in tasks)
        beside = (meshes.alone[kinds[0]] if has_a else None, meshes.alone[kinds[1]] if has_b else None)
        way = None
        if not is_near and Task.GENERATION in tasks:
            way = home(prices, a.region.name).ways[b.region.name]
        pairing = Pairing(prices=prices, tasks=tasks, a=sides[0], b=sides[1], edges=edges, way=way, beside=beside)
        machines = [meshes.most[kind] for kind in kinds]
        key = ("pairs", tasks, *kinds, *machines, edges, has_a, has_b, way and way.samples_per_s, max_s)
        found = prices.known(key, partial(pairing.found, max_s), lasts=True)
        yield from _columns(prices, tasks, pools, found, (a, b), max_s)


def _ordered_pairs(
    prices: Prices, tasks: tuple[Task, ...], usable: Sequence[DeviceClass], max_s: float
) -> Iterator[tuple[DeviceClass, DeviceClass]]:
    """Of classes that may train together; the first one's region publishes versions."""
    trains_actor = Task.ACTOR_TRAINING in tasks
    joined: dict[tuple[str, str], bool] = {}
    for a, b in combinations(usable, 2):
        ends = (a.region.name, b.region.name)
        if ends[0] == ends[1]:
            yield a, b
            continue
        if ends not in joined:
            joined[ends] = (trains_actor or Task.GENERATION not in tasks) and prices.network.joins(*ends)
            if joined[ends]:
                # gradients alone take so long
                joined[ends] = prices.gradient_bytes(tasks) / 2 / prices.edges((a, b))[0].bytes_per_s <= max_s
        if joined[ends]:
            yield a, b
            if trains_actor:
                yield b, a


class _Pools:
    """Each pool is made once, however many meshes have it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int], Pool] = {}

    def pool(self, of: Options, at: DeviceClass, row: int) -> Pool:
        key = (at.key, id(of), row)
        if key not in self._made:
            self._made[key] = of.pool(at, row)
        return self._made[key]


def _columns(
    prices: Prices, tasks: tuple[Task, ...], pools: _Pools, found: Found, at: tuple[DeviceClass, ...], max_s: float
) -> Iterator[MeshColumn]:
    """What of `found` these classes have machines for."""
    sides = [(found.a, found.rows_a, at[0])] + ([(found.b, found.rows_b, at[1])] if found.b is not None else [])
    fits = found.total_s <= max_s
    for of, rows, each in sides:
        fits &= of.num_units[rows] * of.unit[rows] <= of.held[rows] * each.num_machines
    regions = tuple(each.region.name for each in at)
    usd_per_step = _gradients_usd(prices, tasks, at)
    times = {task: found.times[task].tolist() for task in tasks}
    for i in np.flatnonzero(fits).tolist():
        group = Group(tasks=tasks, pools=tuple(pools.pool(of, each, int(rows[i])) for of, rows, each in sides))
        yield MeshColumn(
            group=group, regions=regions, times={task: times[task][i] for task in tasks},
            usd_per_hour=sum(p.num_gpus * (c.usd_per_gpu_hour or 0.0) for p, c in zip(group.pools, at, strict=True)),
            usd_per_step=usd_per_step,
        )  # fmt: skip


def _gradients_usd(prices: Prices, tasks: tuple[Task, ...], at: Sequence[DeviceClass]) -> float:
    return prices.ring_usd_per_gbyte([each.region.name for each in at]) * prices.gradient_bytes(tasks) / 1e9


def usable_classes(prices: Prices, tasks: tuple[Task, ...]) -> list[DeviceClass]:
    """Where a group of these tasks may be, sorted by key."""
    rules, priced = prices.problem.rules, prices.problem.goal.needs_prices
    return [
        at for _, at in sorted(prices.classes.items())
        if (at.usd_per_gpu_hour is not None or not priced)
        and all(rules.allows(task, at.region.name, at.is_spot) for task in tasks)
    ]  # fmt: skip
