"""Candidates (columns of the integer program): units for groups without training, meshes for groups with training.

The candidates are everything that the plan space and memory allow, without dominated ones. A candidate is dropped only
if another one, on devices that fit wherever its devices fit, is no worse in every number that the oracle uses. So the
best placement made of candidates is a best placement of the whole plan space; tests compare with full enumeration on
small fleets.

Classes with equal machines share their candidates, and `CostTables.known` keeps all lists, so each is made once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TypeVar

import numpy as np

from planner.answer.placement import Layout, Pool
from planner.cost.candidates.mesh_lists import ClassMeshes, MeshColumn, MeshList
from planner.cost.candidates.meshes import (
    MeshPairs,
    MeshSet,
    MeshTimeLimits,
    PairablePools,
    pairable_pools,
    single_pool_meshes,
)
from planner.cost.candidates.pool_layouts import PoolOptions, options
from planner.cost.tables.cost_tables import CostTables, MachineKind, host_violation
from planner.cost.tables.transfers import trainer_transfers
from planner.cost.tasks import layer_cuts, memory
from planner.cost.tasks.phase_tables import PhaseTable
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitColumn:
    """Candidate unit of a group without training; a placement has any whole number of each."""

    unit: Pool
    """A pool with `num_units` 1."""
    region: str
    rates: Mapping[Task, float]
    """Samples per second of one unit, by task."""
    phase: PhaseTable | None
    """Phase table of generation, or None."""
    usd_per_hour: float
    """Rent of one unit."""


def unit_columns(cost_tables: CostTables, tasks: tuple[Task, ...]) -> tuple[UnitColumn, ...]:
    """Return the candidate units for a group of `tasks`, none of which trains, sorted by class."""
    return cost_tables.known(("units", tasks), lambda: tuple(_unit_columns(cost_tables, tasks)))


def mesh_columns(
    cost_tables: CostTables,
    tasks: tuple[Task, ...],
    max_s: float = np.inf,
    *,
    blocks: int | None = None,
    first_region: str | None = None,
) -> tuple[MeshColumn, ...]:
    """Return the candidate meshes that take at most `max_s` seconds per step, as objects (see `mesh_list`)."""
    return tuple(mesh_list(cost_tables, tasks, MeshTimeLimits(busy_s=max_s), blocks=blocks, first_region=first_region))


MayPair = Callable[[str, str], bool]
"""Test on the keys of two classes (or twice the same one): whether a mesh on them may be within the time limits. False
saves the work of listing them."""


def any_pair(_a: str, _b: str) -> bool:
    """Return True: no pair of classes is excluded."""
    return True


def mesh_list(
    cost_tables: CostTables,
    tasks: tuple[Task, ...],
    time_limits: MeshTimeLimits,
    *,
    blocks: int | None = None,
    first_region: str | None = None,
    may_pair: MayPair = any_pair,
) -> MeshList:
    """Return the candidate meshes within the time limits for a group of `tasks`, at least one of which trains.

    They are sorted by class and number of devices. `blocks` is 1 for meshes of one pool, 2 for meshes of two pools,
    None for all that the limits allow. With `first_region` only meshes whose first pool is in that region are listed.
    Without time limits, listing pairs of regions is slow for fleets of thousands of devices.
    """
    found = MeshList(())
    if blocks != 2:
        # `may_pair` is not part of the keys: callers derive it from the limits, and it only leaves out what the limits
        # exclude.
        one = ("mesh", tasks, time_limits, first_region)
        found += cost_tables.known(
            one, lambda: MeshList(list(_of_one_class(cost_tables, tasks, time_limits, first_region, may_pair)))
        )
    if blocks != 1 and cost_tables.problem.limits.max_train_blocks > 1:
        two = ("meshes", tasks, time_limits, first_region)
        found += cost_tables.known(
            two, lambda: MeshList(list(_of_two_classes(cost_tables, tasks, time_limits, first_region, may_pair)))
        )
    return found


def _unit_columns(cost_tables: CostTables, tasks: tuple[Task, ...]) -> Iterator[UnitColumn]:
    if not may_group(cost_tables, tasks):
        return
    for at in usable_classes(cost_tables, tasks):
        if Task.GENERATION in tasks and host_violation(cost_tables, at):
            continue
        # Classes with equal machines share the undominated units. Only name, region and rent are the class's own.
        kind = cost_tables.kind(at)
        for each in cost_tables.known(("units", tasks, kind), partial(_undominated_units, cost_tables, tasks, at)):
            pool = Pool(device_class=at.key, unit_gpus=each.unit_gpus, num_units=1, layouts=each.layouts)
            yield UnitColumn(
                unit=pool,
                region=at.region.name,
                rates=each.rates,
                phase=each.phase,
                usd_per_hour=pool.num_gpus * (at.usd_per_gpu_hour or 0.0),
            )


def may_group(cost_tables: CostTables, tasks: tuple[Task, ...]) -> bool:
    """Return whether the runtime can run exactly these tasks as one group.

    Tasks that the trainer's process does itself must all be in actor training's group.
    """
    limits, of_workload = cost_tables.problem.limits, set(cost_tables.problem.workload.tasks)
    roles = limits.roles_on_trainer & of_workload
    if roles and (set(tasks) & (roles | {Task.ACTOR_TRAINING})) and not (roles | {Task.ACTOR_TRAINING}) <= set(tasks):
        return False
    return limits.allows_group(tasks, cost_tables.problem.workload.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Candidate unit on a kind of machines, before it is assigned to a class."""

    unit_gpus: int
    layouts: tuple[tuple[Task, Layout], ...]
    rates: Mapping[Task, float]
    phase: PhaseTable | None


def _units(cost_tables: CostTables, tasks: tuple[Task, ...], at: DeviceClass) -> Iterator[_Unit]:
    """Yield every unit of the plan space that fits into memory on a class like `at`."""
    workload = cost_tables.problem.workload
    scored = [task for task in tasks if task is not Task.GENERATION]
    held = [task for task in scored if task not in cost_tables.without_memory_of]
    usable = memory.usable_bytes(at.gpu)
    # Scoring uses the whole unit as one replica; generation may divide it into several replicas of `tensor` devices.
    limits = cost_tables.problem.limits
    for unit in (size for size in layer_cuts.TENSOR if size <= at.gpus_per_machine):
        if not all(limits.allows_tensor(task, unit, at.gpu) for task in scored or tasks):
            continue
        resident = sum(memory.served_bytes(workload, task, unit) for task in held)
        transient = max((memory.scoring_bytes(workload, task, unit) for task in held), default=0.0)
        rates: dict[Task, float] = {task: 1 / cost_tables.scoring_s(task, at.gpu, unit) for task in scored}
        if Task.GENERATION not in tasks:
            if resident + transient <= usable:
                layouts = tuple((task, Layout(tensor=unit)) for task in tasks)
                yield _Unit(unit_gpus=unit, layouts=layouts, rates=rates, phase=None)
            continue
        for tensor in (size for size in layer_cuts.TENSOR if unit % size == 0):
            if not limits.allows_tensor(Task.GENERATION, tensor, at.gpu):
                continue
            stays = resident
            if Task.GENERATION not in cost_tables.without_memory_of:
                stays += memory.served_bytes(workload, Task.GENERATION, tensor)
            # Index in `SLOTS` of the most sequences that fit beside what stays resident; -1 if not even one fits.
            most = int(cost_tables.replica(at.gpu, tensor).slots(np.array([usable - stays]))[0])
            if most >= 0 and stays + transient <= usable:
                yield _generating(cost_tables, tasks, at, unit, tensor, most, rates)


def _generating(
    cost_tables: CostTables,
    tasks: tuple[Task, ...],
    at: DeviceClass,
    unit: int,
    tensor: int,
    most: int,
    rates: Mapping[Task, float],
) -> _Unit:
    """Return a unit that generates with as many sequences as fit into memory; fewer are never better."""
    replica, replicas = cost_tables.replica(at.gpu, tensor), unit // tensor
    load_s = cost_tables.load_s(at, tensor, num_gpus=None)
    # Samples of all replicas by each knot of the time grid, [num_knots].
    made = replicas * cost_tables.shares(at.gpu, tensor, load_s)[most]
    generates = Layout(tensor=tensor)
    return _Unit(
        unit_gpus=unit,
        layouts=tuple((task, generates if task is Task.GENERATION else Layout(tensor=unit)) for task in tasks),
        rates={task: rates.get(task, replicas * float(replica.rates[most])) for task in tasks},
        phase=PhaseTable(cost_tables.phase_seconds, made, cost_tables.overlap(at.gpu, tensor, load_s)),
    )


def _undominated_units(cost_tables: CostTables, tasks: tuple[Task, ...], at: DeviceClass) -> list[_Unit]:
    """Return the units that no other unit dominates.

    A unit of k devices is dominated by k / n units of n devices if these together do no worse. A larger unit never
    replaces smaller ones, since it needs all its devices in one machine.
    """
    kept: list[_Unit] = []
    is_sync = cost_tables.problem.workload.eta == 0
    # Small units first, since a unit may replace others of its size and larger ones, never smaller ones.
    for each in sorted(_units(cost_tables, tasks, at), key=lambda each: each.unit_gpus):
        if not any(_no_worse(other, each, is_sync) for other in kept):
            kept = [other for other in kept if not _no_worse(each, other, is_sync)]
            kept.append(each)
    return kept


def _no_worse(a: _Unit, b: _Unit, is_sync: bool) -> bool:
    """Return whether as many units `a` as fit into a unit `b` are at least as good as `b` in every respect."""
    times, rest = divmod(b.unit_gpus, a.unit_gpus)
    if rest:
        return False
    # Compare samples per second of each task, then windows, then the whole phase table.
    counted = [task for task in b.rates if not (is_sync and task is Task.GENERATION)]
    if any(times * a.rates[task] < b.rates[task] * (1 - 1e-12) for task in counted):
        return False
    if a.phase is None or b.phase is None:
        return True
    if not is_sync and not a.phase.overlap.is_no_worse(b.phase.overlap):
        return False
    return bool((times * a.phase.samples >= b.phase.samples * (1 - 1e-12)).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshCandidates:
    """Candidates of one group with training, by class; each list is made at its first use."""

    cost_tables: CostTables
    tasks: tuple[Task, ...]
    usable: Sequence[DeviceClass]
    """Classes on which the group may be."""
    most: Mapping[MachineKind, int]
    """Most machines of any usable class, by kind of machines."""

    def options(self, at: DeviceClass) -> PoolOptions:
        """Return the possible pools on a class like `at`."""
        most = self.most[self.cost_tables.kind(at)]
        return self._known("options", at, lambda: options(self.cost_tables, self.tasks, at, most))

    def alone(self, at: DeviceClass) -> MeshSet:
        """Return the candidate meshes of one pool on a class like `at`."""
        return self._known("alone", at, lambda: single_pool_meshes(self.cost_tables, self.tasks, at, self.options(at)))

    def side(self, at: DeviceClass) -> PairablePools:
        """Return the possible pools of meshes of two pools on a class like `at`."""
        return self._known("side", at, lambda: pairable_pools(self.cost_tables, at, self.options(at)))

    def _known(self, what: str, at: DeviceClass, find: Callable[[], T]) -> T:
        kind = self.cost_tables.kind(at)
        return self.cost_tables.known((what, self.tasks, kind, self.most[kind]), find)


def mesh_candidates(cost_tables: CostTables, tasks: tuple[Task, ...]) -> MeshCandidates:
    """Return the candidates of a group of `tasks`, at least one of which trains."""
    return cost_tables.known(("offers", tasks), lambda: _mesh_candidates(cost_tables, tasks))


def _mesh_candidates(cost_tables: CostTables, tasks: tuple[Task, ...]) -> MeshCandidates:
    usable = usable_classes(cost_tables, tasks) if may_group(cost_tables, tasks) else []
    if Task.GENERATION in tasks:
        usable = [at for at in usable if not host_violation(cost_tables, at)]
    # Most machines of any class of a kind: meshes are listed once for that number, and smaller classes use a part of
    # them.
    most: dict[MachineKind, int] = {}
    for at in usable:
        most[cost_tables.kind(at)] = max(most.get(cost_tables.kind(at), 0), at.num_machines)
    return MeshCandidates(cost_tables=cost_tables, tasks=tasks, usable=usable, most=most)


def _of_one_class(
    cost_tables: CostTables, tasks: tuple[Task, ...], time_limits: MeshTimeLimits, region: str | None, may_pair: MayPair
) -> Iterator[ClassMeshes]:
    """Yield the candidate meshes of one pool, class by class; `region` restricts them to one region."""
    meshes = mesh_candidates(cost_tables, tasks)
    for at in meshes.usable:
        if region in (None, at.region.name) and may_pair(at.key, at.key):
            yield part(cost_tables, tasks, meshes.alone(at), (at,), time_limits)


def _of_two_classes(
    cost_tables: CostTables, tasks: tuple[Task, ...], time_limits: MeshTimeLimits, region: str | None, may_pair: MayPair
) -> Iterator[ClassMeshes]:
    """Yield the candidate meshes of two pools, pair by pair; `region` restricts the first pool's region."""
    meshes = mesh_candidates(cost_tables, tasks)
    rules = cost_tables.problem.rules
    for a, b in ordered_pairs(cost_tables, tasks, meshes.usable, time_limits.busy_s):
        if region not in (None, a.region.name) or not may_pair(a.key, b.key):
            continue
        kinds, edges = (cost_tables.kind(a), cost_tables.kind(b)), tuple(cost_tables.edges((a, b)))
        is_near = a.region.name == b.region.name
        # A pair may be dominated by a mesh of one of its pools only if that mesh is allowed: it must not lose a region
        # that the operator demands, or the region from which versions are published.
        has_a = is_near or (rules.min_regions <= 1 and not rules.generating)
        has_b = is_near or (has_a and not _publishes(cost_tables, tasks))
        has_a, has_b = has_a and may_pair(a.key, a.key), has_b and may_pair(b.key, b.key)
        competitors = (meshes.alone(a) if has_a else None, meshes.alone(b) if has_b else None)
        pairs = mesh_pairs(cost_tables, tasks, (a, b), (meshes.side(a), meshes.side(b)), competitors)
        machines = [meshes.most[kind] for kind in kinds]
        # Pairs of classes with equal kinds, counts and connection have the same candidates.
        key = (
            "pairs",
            tasks,
            *kinds,
            *machines,
            edges,
            has_a,
            has_b,
            pairs.transfer and pairs.transfer.samples_per_s,
            time_limits,
        )
        found = cost_tables.known(key, partial(pairs.undominated_meshes, time_limits))
        yield part(cost_tables, tasks, found, (a, b), time_limits)


def mesh_pairs(
    cost_tables: CostTables,
    tasks: tuple[Task, ...],
    at: tuple[DeviceClass, DeviceClass],
    sides: tuple[PairablePools, PairablePools],
    competitors: tuple[MeshSet | None, MeshSet | None],
) -> MeshPairs:
    """Return the meshes of two pools on two given classes that may train together."""
    a, b = at
    # Only a mesh that generates in another region than it publishes from waits for versions and samples.
    transfer = None
    if a.region.name != b.region.name and Task.GENERATION in tasks:
        transfer = trainer_transfers(cost_tables, a.region.name).transfers[b.region.name]
    return MeshPairs(
        cost_tables=cost_tables,
        tasks=tasks,
        a=sides[0],
        b=sides[1],
        edges=tuple(cost_tables.edges(at)),
        transfer=transfer,
        competitors=competitors,
    )


def ordered_pairs(
    cost_tables: CostTables, tasks: tuple[Task, ...], usable: Sequence[DeviceClass], max_s: float
) -> Iterator[tuple[DeviceClass, DeviceClass]]:
    """Yield the pairs of classes that may train together; if weights are published, both orders.

    The first class is the one whose region publishes. Pairs between regions whose gradients alone take more than
    `max_s` seconds on the link are left out.
    """
    trains_actor = Task.ACTOR_TRAINING in tasks
    joined: dict[tuple[str, str], bool] = {}
    for a, b in combinations(usable, 2):
        ends = (a.region.name, b.region.name)
        if ends[0] == ends[1]:
            yield a, b
            continue
        # A mesh over two regions that generates must train the actor, too (`validity`).
        if ends not in joined:
            joined[ends] = (trains_actor or Task.GENERATION not in tasks) and cost_tables.network.joins(*ends)
            if joined[ends]:
                # The least that a ring of two sends over each edge is half of `gradient_bytes`.
                joined[ends] = cost_tables.gradient_bytes(tasks) / 2 / cost_tables.edges((a, b))[0].bytes_per_s <= max_s
        if joined[ends]:
            yield a, b
            if _publishes(cost_tables, tasks):
                yield b, a


def _publishes(cost_tables: CostTables, tasks: tuple[Task, ...]) -> bool:
    """Return whether the order of the pools matters: weights of actor or critic leave the first one's region."""
    scores_apart = Task.CRITIC_INFERENCE in cost_tables.problem.workload.models and Task.CRITIC_INFERENCE not in tasks
    return Task.ACTOR_TRAINING in tasks or (Task.CRITIC_TRAINING in tasks and scores_apart)


def part(
    cost_tables: CostTables,
    tasks: tuple[Task, ...],
    found: MeshSet,
    at: tuple[DeviceClass, ...],
    time_limits: MeshTimeLimits,
) -> ClassMeshes:
    """Return the meshes of `found` for which these classes have enough machines and that are within the time limits."""
    sides = [(found.a, found.rows_a, at[0])] + ([(found.b, found.rows_b, at[1])] if found.b is not None else [])
    # `found` belongs to a kind of machines. This class may have fewer of them: units of a pool fill whole machines, of
    # which `held` devices are usable.
    fits = time_limits.holds_all(found.times)
    for of, rows, each in sides:
        fits &= of.num_units[rows] * of.unit[rows] <= of.held[rows] * each.num_machines
    few = found.take(np.flatnonzero(fits))
    return ClassMeshes(tasks=tasks, at=at, found=few, usd_per_step=_gradients_usd(cost_tables, tasks, at))


def _gradients_usd(cost_tables: CostTables, tasks: tuple[Task, ...], at: Sequence[DeviceClass]) -> float:
    """Return the egress dollars per step of a mesh's gradients between its regions."""
    return cost_tables.ring_usd_per_gbyte([each.region.name for each in at]) * cost_tables.gradient_bytes(tasks) / 1e9


def usable_classes(cost_tables: CostTables, tasks: tuple[Task, ...]) -> list[DeviceClass]:
    """Return the classes on which a group of these tasks may be, by rules and by prices, sorted by key."""
    return [at for _, at in sorted(cost_tables.classes.items()) if cost_tables.problem.allows(tasks, at)]
