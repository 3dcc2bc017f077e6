"""Meshes that `columns` lists, as arrays: tens of thousands of them, of which few are ever looked at one by one."""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import overload

import numpy as np

from planner.answer.placement import Group
from planner.classes import DeviceClass
from planner.cost.cuts import BoolArray, FloatArray, IntArray
from planner.cost.meshes import Found, Room, first_s, makes
from planner.cost.options import Options
from planner.cost.pools import Prices
from planner.question.workload import Task


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
    idle: frozenset[str] = frozenset()
    """Regions of groups that generate in several, where no sample is done in the phase."""

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.group.pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPart:
    """Meshes of the same classes."""

    tasks: tuple[Task, ...]
    at: tuple[DeviceClass, ...]
    """Of their pools: one or two."""
    found: Found
    usd_per_step: float

    def __len__(self) -> int:
        return len(self.found.rows_a)

    @property
    def pools(self) -> list[tuple[Options, IntArray]]:
        """Options and rows of each pool."""
        first, second = (self.found.a, self.found.rows_a), self.found.b
        return [first] if second is None else [first, (second, self.found.rows_b)]

    @property
    def usd_per_hour(self) -> FloatArray:
        usd = np.zeros(len(self))
        for (of, rows), at in zip(self.pools, self.at, strict=True):
            usd = usd + of.num_gpus[rows] * (at.usd_per_gpu_hour or 0.0)
        return usd

    def seconds(self, which: Collection[Task]) -> FloatArray:
        """Of all tasks in `which` together."""
        return sum((each for task, each in self.found.times.items() if task in which), np.zeros(len(self)))

    def generating(self, prices: Prices) -> BoolArray:
        """[rows, 2]: whether the first pool, and the last one, have a sample done in generation's phase; all where the
        group does not generate in two regions."""
        active = np.ones((len(self), 2), dtype=bool)
        if Task.GENERATION in self.tasks and len({at.region.name for at in self.at}) > 1:
            phase_s = self.found.times[Task.GENERATION]
            for place, ((of, rows), at) in enumerate(zip(self.pools, self.at, strict=True)):
                active[:, place] = makes(first_s(prices, at, of)[rows], phase_s)
        return active

    def within(self, room: Room) -> "MeshPart":
        return replace(self, found=self.found.take(np.flatnonzero(room.holds_all(self.found.times))))

    def column(self, row: int) -> MeshColumn:
        pools = tuple(of.pool(at, int(rows[row])) for (of, rows), at in zip(self.pools, self.at, strict=True))
        priced = zip(pools, self.at, strict=True)
        return MeshColumn(
            group=Group(tasks=self.tasks, pools=pools), regions=tuple(each.region.name for each in self.at),
            times={task: float(self.found.times[task][row]) for task in self.tasks},
            usd_per_hour=sum(pool.num_gpus * (at.usd_per_gpu_hour or 0.0) for pool, at in priced),
            usd_per_step=self.usd_per_step,
        )  # fmt: skip


class MeshList(Sequence[MeshColumn]):
    """All parts' meshes, one part after the other; a column is made when it is asked for."""

    def __init__(self, parts: Sequence[MeshPart]) -> None:
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
