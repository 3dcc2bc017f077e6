"""Lists of candidate meshes, stored as arrays and turned into objects one at a time.

`columns` finds tens of thousands of meshes for large fleets, of which few are ever looked at one by one. A
`ClassMeshes` holds those of one class or pair of classes as arrays. A `MeshList` is a sequence over several parts that
builds a `MeshColumn` when it is indexed. A *column* is one candidate (one variable) of the integer program.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import overload

import numpy as np

from planner.answer.placement import Group
from planner.cost.candidates.meshes import MeshSet, MeshTimeLimits, first_s, makes
from planner.cost.candidates.pool_layouts import PoolOptions
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.layer_cuts import BoolArray, FloatArray, IntArray
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshColumn:
    """One candidate for a whole group with training."""

    group: Group
    regions: tuple[str, ...]
    """Region of each pool. The first one publishes versions if the actor trains here."""
    times: Mapping[Task, float]
    """Seconds per step of each task of the group."""
    usd_per_hour: float
    """Rent of the mesh."""
    usd_per_step: float = 0.0
    """Egress dollars per step of the gradients between its regions."""
    idle: frozenset[str] = frozenset()
    """Regions that finish no sample in the phase, for groups that generate in several regions."""

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.group.pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMeshes:
    """Candidate meshes of the same device classes; arrays are `[num_meshes]`."""

    tasks: tuple[Task, ...]
    """Tasks of the group."""
    at: tuple[DeviceClass, ...]
    """Class of each pool: one or two."""
    found: MeshSet
    """The meshes and their times."""
    usd_per_step: float
    """Egress dollars per step of the gradients, the same for all of them."""

    def __len__(self) -> int:
        return len(self.found.rows_a)

    @property
    def pools(self) -> list[tuple[PoolOptions, IntArray]]:
        """Options and rows of each pool."""
        first, second = (self.found.a, self.found.rows_a), self.found.b
        return [first] if second is None else [first, (second, self.found.rows_b)]

    @property
    def usd_per_hour(self) -> FloatArray:
        """Rent of each mesh."""
        usd = np.zeros(len(self))
        for (of, rows), at in zip(self.pools, self.at, strict=True):
            usd = usd + of.num_gpus[rows] * (at.usd_per_gpu_hour or 0.0)
        return usd

    def seconds(self, which: Collection[Task]) -> FloatArray:
        """Return the seconds of those tasks that are in `which`, added up."""
        return sum((each for task, each in self.found.times.items() if task in which), np.zeros(len(self)))

    def generating(self, cost_tables: CostTables) -> BoolArray:
        """Return `[num_meshes, 2]`: whether the first and the last pool finish a sample in generation's phase.

        All entries are True where the group does not generate in two regions.
        """
        active = np.ones((len(self), 2), dtype=bool)
        if Task.GENERATION in self.tasks and len({at.region.name for at in self.at}) > 1:
            phase_s = self.found.times[Task.GENERATION]
            for place, ((of, rows), at) in enumerate(zip(self.pools, self.at, strict=True)):
                active[:, place] = makes(first_s(cost_tables, at, of)[rows], phase_s)
        return active

    def fitting(self, time_limits: MeshTimeLimits) -> "ClassMeshes":
        """Return the meshes that are within the time limits."""
        return replace(self, found=self.found.take(np.flatnonzero(time_limits.holds_all(self.found.times))))

    def column(self, row: int) -> MeshColumn:
        """Return one mesh as an object."""
        pools = tuple(of.pool(at, int(rows[row])) for (of, rows), at in zip(self.pools, self.at, strict=True))
        priced = zip(pools, self.at, strict=True)
        return MeshColumn(
            group=Group(tasks=self.tasks, pools=pools),
            regions=tuple(each.region.name for each in self.at),
            times={task: float(self.found.times[task][row]) for task in self.tasks},
            usd_per_hour=sum(pool.num_gpus * (at.usd_per_gpu_hour or 0.0) for pool, at in priced),
            usd_per_step=self.usd_per_step,
        )


class MeshList(Sequence[MeshColumn]):
    """The meshes of all parts as one read-only sequence, part after part; items are built when they are asked for."""

    def __init__(self, parts: Sequence[ClassMeshes]) -> None:
        self.parts = tuple(part for part in parts if len(part))
        self._ends = list(accumulate(len(part) for part in self.parts))

    def __add__(self, other: "MeshList") -> "MeshList":
        return MeshList((*self.parts, *other.parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> MeshColumn: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[MeshColumn]: ...

    def __getitem__(self, at: int | slice) -> MeshColumn | Sequence[MeshColumn]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        part = bisect_right(self._ends, place)
        return self.parts[part].column(place - (self._ends[part - 1] if part else 0))
