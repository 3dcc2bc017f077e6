"""Levels 3 and 5: how many devices of each class a group has, and which layout of the menu each of its pools takes.

Devices of a class are interchangeable, so a set of devices is counted by class. A genome decodes into a placement that
fits its machines: of groups without training, units that find no room are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.answer.placement import Group, Placement, Pool
from planner.classes import DeviceClass
from planner.groupings import Grouping
from planner.hetrl.menu import Menu
from planner.question.workload import TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Genome:
    """Rows are groups, columns classes."""

    held: tuple[tuple[int, ...], ...]
    """Devices."""
    choice: tuple[tuple[int, ...], ...]
    """Place in the menu, modulo its length. A group with training has one choice, its row's first."""


@dataclass(slots=True)
class Space:
    """What one grouping's genomes are decoded with: the fleet's classes, sorted by key, and who may use them."""

    menu: Menu
    grouping: Grouping
    classes: tuple[DeviceClass, ...]
    trains: tuple[bool, ...]
    usable: tuple[tuple[bool, ...], ...]
    """Group x class: by the operator's rules."""
    nearness: np.ndarray
    """Class x class: bytes a second between them, for growing connected sets."""
    max_blocks: int
    _pools: dict[object, tuple[Pool, ...]] = field(default_factory=dict)

    @property
    def granule(self) -> int:
        """Devices that are moved at once at least: fine steps in a small fleet, machines in a large one."""
        return max(1, sum(at.num_gpus for at in self.classes) // 512)

    def placement(self, genome: Genome) -> Placement | None:
        """None where a group has nothing that it can be laid out on."""
        pools: list[list[Pool]] = [[] for _ in self.grouping]
        room = {at.key: _Room(at) for at in self.classes}
        for g, tasks in enumerate(self.grouping):
            if self.trains[g] and not self._mesh(g, tasks, genome, pools, room):
                return None
        wanted = [
            (pool, g) for g, tasks in enumerate(self.grouping) if not self.trains[g]
            for pool in self._units(g, tasks, genome)
        ]  # fmt: skip
        for pool, g in sorted(wanted, key=lambda each: -each[0].unit_gpus):
            num = room[pool.device_class].take(pool.unit_gpus, pool.num_units)
            if num:
                pools[g].append(pool if num == pool.num_units else _of(pool, num))
        if not all(pools):
            return None
        return Placement(
            groups=tuple(Group(tasks=t, pools=tuple(p)) for t, p in zip(self.grouping, pools, strict=True))
        )

    def _mesh(
        self, g: int, tasks: tuple[Task, ...], genome: Genome, pools: list[list[Pool]], room: dict[str, "_Room"]
    ) -> bool:
        held = [(self.classes[c].key, n) for c, n in enumerate(genome.held[g]) if n]
        held = sorted(held, key=lambda each: -each[1])[: self.max_blocks]
        options = self.menu.meshes(tasks, tuple(sorted(held)))
        if not options:
            return False
        chosen = options[genome.choice[g][0] % len(options)]
        for pool in chosen.pools:
            if room[pool.device_class].take(pool.unit_gpus, pool.num_units) < pool.num_units:
                return False
        pools[g] += chosen.pools
        return True

    def _units(self, g: int, tasks: tuple[Task, ...], genome: Genome) -> list[Pool]:
        found: list[Pool] = []
        for c, held in enumerate(genome.held[g]):
            if held:
                key = (g, c, held, genome.choice[g][c])
                if key not in self._pools:
                    self._pools[key] = self._laid_out(tasks, c, held, genome.choice[g][c])
                found += self._pools[key]
        return found

    def _laid_out(self, tasks: tuple[Task, ...], c: int, held: int, choice: int) -> tuple[Pool, ...]:
        """The chosen units, and of what is too little for one of them, the best that fit."""
        options = self.menu.units(tasks, self.classes[c].key)
        if not options:
            return ()
        chosen = options[choice % len(options)].pool
        found = [_of(chosen, held // chosen.unit_gpus)] if held >= chosen.unit_gpus else []
        rest = held % chosen.unit_gpus
        small = next((option.pool for option in options if option.pool.unit_gpus <= rest), None)
        if small:
            found.append(_of(small, rest // small.unit_gpus))
        return tuple(found)


def space(menu: Menu, grouping: Grouping) -> Space:
    """Of one grouping of the menu's problem."""
    classes = tuple(at for _, at in sorted(menu.prices.classes.items()))
    return Space(
        menu=menu, grouping=grouping, classes=classes,
        trains=tuple(any(task in TRAINING for task in group) for group in grouping),
        usable=tuple(tuple(menu.allowed(group, at) for at in classes) for group in grouping),
        nearness=_nearness(menu, classes), max_blocks=min(2, menu.prices.problem.limits.max_train_blocks),
    )  # fmt: skip


def _nearness(menu: Menu, classes: Sequence[DeviceClass]) -> np.ndarray:
    """Bytes a second from class to class: those of their regions, which are far fewer."""
    names = sorted({at.region.name for at in classes})
    between: np.ndarray = menu.prices.known("rates between regions", lambda: _rates(menu, names))
    of_class = np.array([names.index(at.region.name) for at in classes], dtype=np.int64)
    return between[np.ix_(of_class, of_class)]


def _rates(menu: Menu, names: Sequence[str]) -> np.ndarray:
    routes = [[menu.prices.network.route(a, b) for b in names] for a in names]
    return np.array([[route.bytes_per_s if route else 0.0 for route in each] for each in routes])


def _of(pool: Pool, num_units: int) -> Pool:
    return Pool(
        device_class=pool.device_class, unit_gpus=pool.unit_gpus, num_units=num_units, layouts=pool.layouts
    )  # fmt: skip


class _Room:
    """What is left of a class's machines: units of k devices, and all larger ones, have so many devices together."""

    def __init__(self, at: DeviceClass) -> None:
        self._at = at
        self._held: dict[int, int] = {}

    def take(self, size: int, num: int) -> int:
        """How many of `num` units of that size there was still room for."""
        for each in {*self._held, size}:
            if each <= size:
                held = sum(k * n for k, n in self._held.items() if k >= each)
                cap = self._at.num_machines * (self._at.gpus_per_machine // each) * each
                num = min(num, (cap - held) // size)
        if num > 0:
            self._held[size] = self._held.get(size, 0) + num
        return max(0, num)
