"""Cost tables: the cost of each pool and mesh of a problem, computed once and shared by all methods.

The cost of a pool is samples per second of one unit for each task that does not train, its phase table, and whether it
fits into memory. The cost of a mesh is seconds per step of each task that trains. Both depend on the device class, the
unit size, the layouts and the tasks of the group, never on what other groups do. So every search method adds up the
same numbers. Most costs do not even depend on the region: classes with equal machines and fabric share a `MachineKind`.

`CostTables` holds these tables. Most of its entries are seconds, samples per second or bytes; few are dollars.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import numpy as np

from planner.answer.evaluation import Violation
from planner.answer.placement import Layout, Pool
from planner.cost.tables import network
from planner.cost.tables.network import Network
from planner.cost.tasks import layer_cuts, memory, scoring, training
from planner.cost.tasks.generation import SLOTS, Replica
from planner.cost.tasks.layer_cuts import FloatArray
from planner.cost.tasks.phase_tables import JUMP_TOLERANCE, PhaseTable, grid, phase_end_s, table
from planner.cost.tasks.version_overlap import Overlap
from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.goal import Problem
from planner.problem.hardware import GpuType
from planner.problem.workload import SCORING, TRAINING, Task

__all__ = ["CostTables", "MachineKind", "MeshTrainingTimes", "PhaseTable", "UnitCost", "host_violation", "phase_end_s"]

T = TypeVar("T")

_PoolKey = tuple[tuple[Task, ...], str, int, tuple[tuple[Task, Layout], ...], int]


@dataclass(frozen=True, slots=True)
class MachineKind:
    """The properties of a device class that costs depend on; classes of several regions may share one."""

    gpu: GpuType
    gpus_per_machine: int
    fabric_bytes_per_s: float
    fabric_latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """Cost of one unit of a pool for the tasks of its group that do not train."""

    rates: Mapping[Task, float]
    """Samples per second of one unit, by task. Generation counts with all slots in use, or fewer where that is
    faster."""
    batch: int
    """Sequences that a replica keeps running; 0 without generation."""
    group_s: float
    """Seconds from a version's arrival in the region until a group is done: loading, then the group's 99th
    percentile."""
    phase: PhaseTable | None
    """Phase table of generation: samples of one unit from a version's arrival on, loading included. None without
    generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTrainingTimes:
    """Cost of a group with training: seconds per step of each task that trains, by term."""

    times: Mapping[Task, training.MeshTime]


@dataclass(slots=True, eq=False)
class CostTables:
    """Cost tables of one problem: a cache over pure functions of the problem.

    All searches of a problem share one object, which grows as they ask for more.
    """

    problem: Problem
    without_memory_of: frozenset[Task] = frozenset()
    """Tasks that are treated as if they needed no memory. Conflict analysis uses this to find whose memory makes a
    problem infeasible."""
    classes: Mapping[str, DeviceClass] = field(init=False)
    """Device classes of the fleet by key."""
    network: Network = field(init=False)
    """Routes between the fleet's regions."""
    _known: dict[object, object] = field(init=False, default_factory=dict)
    _pools: dict[_PoolKey, UnitCost | Violation] = field(init=False, default_factory=dict)
    _meshes: dict[object, MeshTrainingTimes] = field(init=False, default_factory=dict)
    _replicas: dict[tuple[GpuType, int], Replica] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = {each.key: each for each in classes_of(self.problem.fleet)}
        self.network = Network(self.problem.fleet)

    def pool(self, tasks: tuple[Task, ...], pool: Pool) -> UnitCost | Violation:
        """Return the cost of one unit of a pool, or a violation if the group's tasks do not fit into memory."""
        trains = any(task in TRAINING for task in tasks)
        key = (tasks, pool.device_class, pool.unit_gpus, pool.layouts, pool.num_units if trains else 0)
        if key not in self._pools:
            self._pools[key] = self._price(tasks, pool)
        return self._pools[key]

    def mesh(self, tasks: tuple[Task, ...], pools: tuple[Pool, ...]) -> MeshTrainingTimes:
        """Return the training times of a mesh whose pools fit into memory (`pool`)."""
        key = (tasks, pools)
        if key not in self._meshes:
            workload = self.problem.workload
            placed = [(self.classes[pool.device_class], pool) for pool in pools]
            # Distinct connections of the ring that the gradients take.
            edges = self.edges([at for at, _ in placed])
            times = {}
            for task in (task for task in tasks if task in TRAINING):
                blocks = [
                    training.pool_training_terms(
                        workload, task, at, layer_cuts.of_layout(pool.layout(task), pool.num_units)
                    )
                    for at, pool in placed
                ]
                times[task] = training.mesh_times(workload, blocks, edges).at(0)
            self._meshes[key] = MeshTrainingTimes(times=times)
        return self._meshes[key]

    def known(self, key: object, find: Callable[[], T]) -> T:
        """Return what `find()` returns, calling it only for the first use of `key`.

        Keys must be unique among everything that is kept here.
        """
        if key not in self._known:
            self._known[key] = find()
        return cast(T, self._known[key])

    def edges(self, ring: Sequence[DeviceClass]) -> list[training.PoolConnection]:
        """Return the distinct connections between neighbours of a ring over pools of these classes.

        The list is empty for one pool.
        """
        if len(ring) < 2:
            return []
        found = [self._edge(a, b) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]
        return list(dict.fromkeys(found))

    def scoring_s(self, task: Task, gpu: GpuType, tensor: int) -> float:
        """Return the seconds per sample of one scoring replica."""
        key = ("scoring", task, gpu, tensor)
        return self.known(key, lambda: scoring.sample_s(self.problem.workload, task, gpu.for_training, tensor))

    def ring_usd_per_gbyte(self, regions: Sequence[str]) -> float:
        """Return the egress dollars for sending one GB over each edge of a ring over pools in these regions."""
        ring = zip(regions, (*regions[1:], regions[0]), strict=True)
        routes = [self.network.route(a, b) for a, b in ring if a != b]
        return sum(route.usd_per_gbyte for route in routes if route is not None)

    def gradient_bytes(self, tasks: tuple[Task, ...]) -> float:
        """Return the most gradient bytes that a mesh of these tasks sends over each edge of its ring in a step."""
        return sum(training.crossing_bytes(self.problem.workload, task) for task in tasks if task in TRAINING)

    def kind(self, at: DeviceClass) -> MachineKind:
        """Return the properties of the class that costs depend on."""
        return MachineKind(at.gpu, at.gpus_per_machine, at.fabric_bytes_per_s, at.region.fabric_latency_s)

    def replica(self, gpu: GpuType, tensor: int) -> Replica:
        """Return the generation costs of one copy of the model on `tensor` devices."""
        if (gpu, tensor) not in self._replicas:
            self._replicas[gpu, tensor] = Replica(self.problem.workload, gpu, tensor)
        return self._replicas[gpu, tensor]

    @property
    def phase_seconds(self) -> FloatArray:
        """Time grid of all phase tables of the problem, `[num_knots]`."""
        return self.known("phase seconds", lambda: grid(self._firsts()))

    def shares(self, gpu: GpuType, tensor: int, load_s: float) -> FloatArray:
        """Return `[num_slots, num_knots]`: samples of one replica by each knot, after `load_s` seconds of loading."""
        return self.known(("shares", gpu, tensor, load_s), lambda: self._shares(gpu, tensor, load_s))

    def overlap(self, gpu: GpuType, tensor: int, load_s: float) -> Overlap:
        """Return the slow-down of overlapping windows on one replica, with the time to load a version."""
        one = self.replica(gpu, tensor).overlap
        return replace(one, load_s=load_s, first_s=load_s + one.first_s)

    def load_s(self, at: DeviceClass, tensor: int, *, num_gpus: int | None) -> float:
        """Return the seconds from a version's arrival in the region until a replica has loaded it.

        `num_gpus` is the size of the mesh that trains and generates by turns on these devices; None for a pool that
        only generates. Each device receives its shard over the fabric, or over the link inside a machine that holds the
        whole mesh. A delta then needs one pass over the weights. A version that is published is encoded and proved too.
        """
        workload = self.problem.workload
        size = network.local_payload_bytes(workload) / tensor
        is_near = num_gpus is not None and num_gpus <= at.gpus_per_machine
        rate = at.gpu.link_bytes_per_s * at.gpu.efficiency.link_fraction if is_near else at.fabric_bytes_per_s
        # Applying a delta reads and writes each resident weight once.
        held = 2.0 * workload.models[Task.GENERATION].num_params / tensor
        passes = 2 * held / (at.gpu.memory_bytes_per_s * at.gpu.efficiency.memory_fraction)
        overhead_s = at.gpu.efficiency.version_overhead_s if num_gpus is None else 0.0
        return size / rate + (passes if workload.weights.is_delta else 0.0) + overhead_s

    def _firsts(self) -> set[float]:
        """Return the seconds at which replicas of the problem may finish their first sample.

        They are the jumps of the grid.
        """
        firsts: set[float] = set()
        for at in {self.kind(each): each for each in self.classes.values()}.values():
            for tensor in (size for size in layer_cuts.TENSOR if size <= at.gpus_per_machine):
                first_s = self.replica(at.gpu, tensor).first_s
                # The three cases of `load_s`: only generating, a mesh inside one machine, a mesh over several machines.
                meshes = (None, at.gpus_per_machine, at.gpus_per_machine + 1)
                loads = [self.load_s(at, tensor, num_gpus=num) for num in meshes]
                firsts |= {load_s + first_s for load_s in loads}
        return firsts

    def _shares(self, gpu: GpuType, tensor: int, load_s: float) -> FloatArray:
        replica = self.replica(gpu, tensor)

        def shares(seconds: FloatArray) -> FloatArray:
            # The factor keeps rounding from putting the first sample behind its knot.
            return replica.shares((seconds - load_s) * (1 + JUMP_TOLERANCE))

        return table(self.phase_seconds, load_s + replica.first_s, shares)

    def _price(self, tasks: tuple[Task, ...], pool: Pool) -> UnitCost | Violation:
        at = self.classes[pool.device_class]
        resident, transient = self._bytes(pool, at)
        usable = memory.usable_bytes(at.gpu)
        if resident + transient > usable:
            need = (resident + transient) / 1e9
            what = f"{'+'.join(tasks)} needs {need:.1f} GB a device of {at.key}, {usable / 1e9:.1f} GB are usable"
            return Violation(kind="memory", what=what)
        # Scoring has a rate by itself. Generation's depends on the memory that is left for its caches.
        rates: dict[Task, float] = {
            task: 1 / self.scoring_s(task, at.gpu, layout.tensor) for task, layout in pool.layouts if task in SCORING
        }
        if Task.GENERATION not in tasks:
            return UnitCost(rates=rates, batch=0, group_s=0.0, phase=None)
        return self._generating(tasks, pool, at, rates, usable - resident)

    def _bytes(self, pool: Pool, at: DeviceClass) -> tuple[float, float]:
        """Return (resident bytes, largest transient bytes) of a pool's tasks on one device."""
        workload = self.problem.workload
        resident, transient = 0.0, 0.0
        for task, layout in pool.layouts:
            if task in self.without_memory_of:
                continue
            if task in TRAINING:
                one = layer_cuts.of_layout(layout, pool.num_units)
                # Tasks run by turns: states add up, activations do not.
                resident += float(memory.trained_bytes(workload, task, one)[0])
                transient = max(transient, float(memory.training_bytes(workload, task, one)[0]))
            else:
                resident += memory.served_bytes(workload, task, layout.tensor)
                if task is not Task.GENERATION:
                    transient = max(transient, memory.scoring_bytes(workload, task, layout.tensor))
        return resident, transient

    def _generating(
        self, tasks: tuple[Task, ...], pool: Pool, at: DeviceClass, rates: dict[Task, float], free_bytes: float
    ) -> UnitCost | Violation:
        """Return the cost of a unit that generates, or why no sequence fits."""
        layout = pool.layout(Task.GENERATION)
        replica = self.replica(at.gpu, layout.tensor)
        if (host := host_violation(self, at)) is not None:
            return host
        # Sequences that fit beside the resident models; the layout may ask for fewer.
        place = int(replica.slots(np.array([free_bytes]))[0])
        if place < 0 or SLOTS[place] < layout.batch:
            what = f"{SLOTS[place] if place >= 0 else 0} sequences fit beside the weights on {at.key}"
            return Violation(kind="memory", what=f"{what}, {max(1, layout.batch)} are asked for")
        if layout.batch:
            place = SLOTS.index(layout.batch)
        replicas = pool.unit_gpus // layout.tensor
        trains = any(task in TRAINING for task in tasks)
        # A unit holds several replicas, each with its own share of the samples.
        load_s = self.load_s(at, layout.tensor, num_gpus=pool.num_gpus if trains else None)
        made = replicas * self.shares(at.gpu, layout.tensor, load_s)[place]
        return UnitCost(
            rates=rates | {Task.GENERATION: replicas * float(replica.rates[place])},
            batch=SLOTS[place],
            group_s=load_s + float(replica.group_s[place]),
            phase=PhaseTable(self.phase_seconds, made, self.overlap(at.gpu, layout.tensor, load_s)),
        )

    def _edge(self, a: DeviceClass, b: DeviceClass) -> training.PoolConnection:
        """Return the connection of two pools: the fabric within a region, else the slower direction of the link."""
        if a.region.name == b.region.name:
            rate = min(a.fabric_bytes_per_s, b.fabric_bytes_per_s)
            if a.fabric != b.fabric and a.region.cross_fabric_bytes_per_s:
                rate = min(rate, a.region.cross_fabric_bytes_per_s)
            return training.PoolConnection(bytes_per_s=rate, latency_s=a.region.fabric_latency_s, is_shared=False)
        there = self.network.route(a.region.name, b.region.name)
        back = self.network.route(b.region.name, a.region.name)
        # Without a route the rate is practically 0. `shape` rejects such meshes before this matters.
        if there is None or back is None:
            return training.PoolConnection(bytes_per_s=1e-9, latency_s=0.0, is_shared=True)
        return training.PoolConnection(
            bytes_per_s=min(there.bytes_per_s, back.bytes_per_s),
            latency_s=max(there.rtt_s, back.rtt_s) / 2,
            is_shared=True,
        )


def host_violation(cost_tables: CostTables, at: DeviceClass) -> Violation | None:
    """Return a violation if the region's host has too little memory for the versions that generation needs, else None.

    Regions without a stated memory and CPU devices are not checked here.
    """
    needed = memory.host_bytes(cost_tables.problem.workload)
    if not at.region.memory_bytes or at.gpu.is_cpu or needed <= at.region.memory_bytes:
        return None
    what = f"{at.region.name}'s host has {at.region.memory_bytes / 1e9:.1f} GB, its versions take {needed / 1e9:.1f} GB"
    return Violation(kind="memory", what=what)
