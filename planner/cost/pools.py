"""One pool or mesh, priced: which samples a second its units make, how long a step's tasks take on it, whether it fits.

Prices depend on the class, the units' size, the layouts and the group's tasks, never on what other groups do: so each
is computed once (`Prices`) and every method adds up the same numbers. Most do not even depend on the region: classes of
the same machines and fabric share a *kind*.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import numpy as np

from planner.answer.evaluation import Violation
from planner.answer.placement import Layout, Pool
from planner.classes import DeviceClass, classes_of
from planner.cost import cuts, memory, network, scoring, training
from planner.cost.cuts import FloatArray
from planner.cost.generation import SLOTS, Replica
from planner.cost.network import Network
from planner.cost.overlap import Overlap
from planner.cost.phases import KNOT, PhaseTable, grid, phase_end_s, table
from planner.question.goal import Problem
from planner.question.hardware import GpuType
from planner.question.workload import SCORING, TRAINING, Task

__all__ = ["Kind", "MeshPrice", "PhaseTable", "PoolPrice", "Prices", "host_violation", "phase_end_s"]

T = TypeVar("T")

_PoolKey = tuple[tuple[Task, ...], str, int, tuple[tuple[Task, Layout], ...], int]


@dataclass(frozen=True, slots=True)
class Kind:
    """What prices depend on of a class."""

    gpu: GpuType
    gpus_per_machine: int
    fabric_bytes_per_s: float
    fabric_latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPrice:
    """One unit of a pool, for the group's tasks that do not train."""

    rates: Mapping[Task, float]
    """Samples a second of one unit; generation: with all slots full, or fewer where that is faster."""
    batch: int
    """Sequences that a replica keeps running; 0 without generation."""
    group_s: float
    """From a version's arrival in the region: loading it, and the 99th percentile of a group."""
    phase: PhaseTable | None
    """Of generation: what a unit makes from a version's arrival on; loading is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPrice:
    """A group with training: seconds a step of each task that trains, by term."""

    times: Mapping[Task, training.MeshTime]


@dataclass(slots=True, eq=False)
class Prices:
    """Of everything that one problem's placements are made of; a cache over pure functions."""

    problem: Problem
    without_memory_of: frozenset[Task] = frozenset()
    """Tasks that are taken to need no memory: to say whose memory it is that no plan has."""
    classes: Mapping[str, DeviceClass] = field(init=False)
    network: Network = field(init=False)
    _known: dict[object, object] = field(init=False, default_factory=dict)
    _lasting: dict[object, object] = field(init=False, default_factory=dict)
    _pools: dict[_PoolKey, PoolPrice | Violation] = field(init=False, default_factory=dict)
    _meshes: dict[object, MeshPrice] = field(init=False, default_factory=dict)
    _replicas: dict[tuple[GpuType, int], Replica] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = {each.key: each for each in classes_of(self.problem.fleet)}
        self.network = Network(self.problem.fleet)

    def pool(self, tasks: tuple[Task, ...], pool: Pool) -> PoolPrice | Violation:
        """The price of a unit, or why the group's tasks do not fit on it."""
        trains = any(task in TRAINING for task in tasks)
        key = (tasks, pool.device_class, pool.unit_gpus, pool.layouts, pool.num_units if trains else 0)
        if key not in self._pools:
            self._pools[key] = self._price(tasks, pool)
        return self._pools[key]

    def mesh(self, tasks: tuple[Task, ...], pools: tuple[Pool, ...]) -> MeshPrice:
        """Of pools that fit (`pool`), for the tasks that train."""
        key = (tasks, pools)
        if key not in self._meshes:
            workload = self.problem.workload
            placed = [(self.classes[pool.device_class], pool) for pool in pools]
            edges = self.edges([at for at, _ in placed])
            times = {}
            for task in (task for task in tasks if task in TRAINING):
                blocks = [
                    training.blocks(workload, task, at, cuts.of_layout(pool.layout(task), pool.num_units))
                    for at, pool in placed
                ]
                times[task] = training.mesh_times(workload, blocks, edges).at(0)
            self._meshes[key] = MeshPrice(times=times)
        return self._meshes[key]

    def known(self, key: object, find: Callable[[], T], *, lasts: bool = False) -> T:
        """What `find` gives, found once; `key` names it among everything that is kept here.

        `lasts`: it depends on the workload, the limits and kinds of machines only, not on the fleet.
        """
        kept = self._lasting if lasts else self._known
        if key not in kept:
            kept[key] = find()
        return cast(T, kept[key])

    def moved_to(self, problem: Problem) -> "Prices":
        """Of another problem; what does not change is not priced again."""
        moved = Prices(problem, self.without_memory_of)
        if (problem.workload, problem.limits) != (self.problem.workload, self.problem.limits):
            return moved
        moved._replicas = self._replicas
        if moved._kinds != self._kinds and moved._firsts() != self._firsts():
            return moved
        moved._lasting = self._lasting
        same = {key for key, at in moved.classes.items() if key in self.classes and self._is_alike(at, key)}
        moved._pools = {key: price for key, price in self._pools.items() if key[1] in same}
        return moved

    def edges(self, ring: Sequence[DeviceClass]) -> list[training.Edge]:
        """Between neighbours of a ring of pools."""
        if len(ring) < 2:
            return []
        found = [self._edge(a, b) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]
        return list(dict.fromkeys(found))

    def scoring_s(self, task: Task, gpu: GpuType, tensor: int) -> float:
        """A sample."""
        key = ("scoring", task, gpu, tensor)
        return self.known(key, lambda: scoring.sample_s(self.problem.workload, task, gpu, tensor), lasts=True)

    def ring_usd_per_gbyte(self, regions: Sequence[str]) -> float:
        """Egress price of what a ring over pools in these regions sends over each of its edges."""
        ring = zip(regions, (*regions[1:], regions[0]), strict=True)
        routes = [self.network.route(a, b) for a, b in ring if a != b]
        return sum(route.usd_per_gbyte for route in routes if route is not None)

    def gradient_bytes(self, tasks: tuple[Task, ...]) -> float:
        """That a step of a mesh sends over each edge of its ring, at most."""
        return sum(training.crossing_bytes(self.problem.workload, task) for task in tasks if task in TRAINING)

    def kind(self, at: DeviceClass) -> Kind:
        return Kind(at.gpu, at.gpus_per_machine, at.fabric_bytes_per_s, at.region.fabric_latency_s)

    def replica(self, gpu: GpuType, tensor: int) -> Replica:
        """Of the generating model."""
        if (gpu, tensor) not in self._replicas:
            self._replicas[gpu, tensor] = Replica(self.problem.workload, gpu, tensor)
        return self._replicas[gpu, tensor]

    @property
    def phase_seconds(self) -> FloatArray:
        """The grid that all tables of phases are on."""
        return self.known("phase seconds", lambda: grid(self._firsts()), lasts=True)

    def shares(self, gpu: GpuType, tensor: int, load_s: float) -> FloatArray:
        """[slots, knots]: samples of one replica in phases that begin with so long a loading."""
        return self.known(("shares", gpu, tensor, load_s), lambda: self._shares(gpu, tensor, load_s), lasts=True)

    def overlap(self, gpu: GpuType, tensor: int, load_s: float) -> Overlap:
        """What windows of one replica that overlap take longer."""
        one = self.replica(gpu, tensor).overlap
        return replace(one, load_s=load_s, first_s=load_s + one.first_s)

    def load_s(self, at: DeviceClass, tensor: int, *, num_gpus: int | None) -> float:
        """From a version's arrival in the region until a replica has it; `num_gpus`: of the mesh that it turns into.

        Each device takes its part over the fabric, or inside a machine that holds the whole mesh; deltas then pass over
        the weights once.
        """
        workload = self.problem.workload
        size = network.local_payload_bytes(workload) / tensor
        is_near = num_gpus is not None and num_gpus <= at.gpus_per_machine
        rate = at.gpu.link_bytes_per_s * at.gpu.efficiency.link_fraction if is_near else at.fabric_bytes_per_s
        held = 2.0 * workload.models[Task.GENERATION].num_params / tensor
        passes = 2 * held / (at.gpu.memory_bytes_per_s * at.gpu.efficiency.memory_fraction)
        return size / rate + (passes if workload.weights.is_delta else 0.0)

    @property
    def _kinds(self) -> set[Kind]:
        return {self.kind(each) for each in self.classes.values()}

    def _firsts(self) -> set[float]:
        """When any replica that a plan may have is done with its first sample."""
        firsts: set[float] = set()
        for at in {self.kind(each): each for each in self.classes.values()}.values():
            for tensor in (size for size in cuts.TENSOR if size <= at.gpus_per_machine):
                first_s = self.replica(at.gpu, tensor).first_s
                meshes = (None, at.gpus_per_machine, at.gpus_per_machine + 1)
                loads = [self.load_s(at, tensor, num_gpus=num) for num in meshes]
                firsts |= {load_s + first_s for load_s in loads}
        return firsts

    def _shares(self, gpu: GpuType, tensor: int, load_s: float) -> FloatArray:
        replica = self.replica(gpu, tensor)

        def shares(seconds: FloatArray) -> FloatArray:
            # a little later, so that rounding does not put the first sample behind its knot
            return replica.shares((seconds - load_s) * (1 + KNOT))

        return table(self.phase_seconds, load_s + replica.first_s, shares)

    def _is_alike(self, at: DeviceClass, key: str) -> bool:
        known = self.classes[key]
        return self.kind(at) == self.kind(known) and at.region.memory_bytes == known.region.memory_bytes

    def _price(self, tasks: tuple[Task, ...], pool: Pool) -> PoolPrice | Violation:
        at = self.classes[pool.device_class]
        resident, transient = self._bytes(pool, at)
        usable = memory.usable_bytes(at.gpu)
        if resident + transient > usable:
            need = (resident + transient) / 1e9
            what = f"{'+'.join(tasks)} needs {need:.1f} GB a device of {at.key}, {usable / 1e9:.1f} GB are usable"
            return Violation(kind="memory", what=what)
        rates: dict[Task, float] = {
            task: 1 / self.scoring_s(task, at.gpu, layout.tensor) for task, layout in pool.layouts if task in SCORING
        }
        if Task.GENERATION not in tasks:
            return PoolPrice(rates=rates, batch=0, group_s=0.0, phase=None)
        return self._generating(tasks, pool, at, rates, usable - resident)

    def _bytes(self, pool: Pool, at: DeviceClass) -> tuple[float, float]:
        """On one device: what stays, and the most that comes and goes."""
        workload = self.problem.workload
        resident, transient = 0.0, 0.0
        for task, layout in pool.layouts:
            if task in self.without_memory_of:
                continue
            if task in TRAINING:
                one = cuts.of_layout(layout, pool.num_units)
                resident += float(memory.trained_bytes(workload, task, one)[0])
                transient = max(transient, float(memory.training_bytes(workload, task, one)[0]))
            else:
                resident += memory.served_bytes(workload, task, layout.tensor)
                if task is not Task.GENERATION:
                    transient = max(transient, memory.scoring_bytes(workload, task, layout.tensor))
        return resident, transient

    def _generating(
        self, tasks: tuple[Task, ...], pool: Pool, at: DeviceClass, rates: dict[Task, float], free_bytes: float
    ) -> PoolPrice | Violation:
        layout = pool.layout(Task.GENERATION)
        replica = self.replica(at.gpu, layout.tensor)
        if (host := host_violation(self, at)) is not None:
            return host
        place = int(replica.slots(np.array([free_bytes]))[0])
        if place < 0 or SLOTS[place] < layout.batch:
            what = f"{SLOTS[place] if place >= 0 else 0} sequences fit beside the weights on {at.key}"
            return Violation(kind="memory", what=f"{what}, {max(1, layout.batch)} are asked for")
        if layout.batch:
            place = SLOTS.index(layout.batch)
        replicas = pool.unit_gpus // layout.tensor
        trains = any(task in TRAINING for task in tasks)
        load_s = self.load_s(at, layout.tensor, num_gpus=pool.num_gpus if trains else None)
        made = replicas * self.shares(at.gpu, layout.tensor, load_s)[place]
        return PoolPrice(
            rates=rates | {Task.GENERATION: replicas * float(replica.rates[place])}, batch=SLOTS[place],
            group_s=load_s + float(replica.group_s[place]),
            phase=PhaseTable(self.phase_seconds, made, self.overlap(at.gpu, layout.tensor, load_s)),
        )  # fmt: skip

    def _edge(self, a: DeviceClass, b: DeviceClass) -> training.Edge:
        if a.region.name == b.region.name:
            rate = min(a.fabric_bytes_per_s, b.fabric_bytes_per_s)
            if a.fabric != b.fabric and a.region.cross_fabric_bytes_per_s:
                rate = min(rate, a.region.cross_fabric_bytes_per_s)
            return training.Edge(bytes_per_s=rate, latency_s=a.region.fabric_latency_s, is_shared=False)
        there = self.network.route(a.region.name, b.region.name)
        back = self.network.route(b.region.name, a.region.name)
        if there is None or back is None:
            return training.Edge(bytes_per_s=1e-9, latency_s=0.0, is_shared=True)
        return training.Edge(
            bytes_per_s=min(there.bytes_per_s, back.bytes_per_s), latency_s=max(there.rtt_s, back.rtt_s) / 2,
            is_shared=True,
        )  # fmt: skip


def host_violation(prices: Prices, at: DeviceClass) -> Violation | None:
    """Whether the region's host has no room for the versions that generation there is given."""
    needed = memory.host_bytes(prices.problem.workload)
    if not at.region.memory_bytes or at.gpu.is_cpu or needed <= at.region.memory_bytes:
        return None
    what = f"{at.region.name}'s host has {at.region.memory_bytes / 1e9:.1f} GB, its versions take {needed / 1e9:.1f} GB"
    return Violation(kind="memory", what=what)
