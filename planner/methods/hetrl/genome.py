"""Levels 3 and 5 of HetRL's search: devices of each class per group, and the layout of each of the group's pools.

Devices of a class are interchangeable, so a genome counts them. It is decoded into a placement that fits into the
machines. Units of groups without training that find no room are left out; a mesh that finds no room makes the genome
invalid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.answer.placement import Group, Placement, Pool
from planner.methods.hetrl.candidate_lists import CandidateLists
from planner.methods.hetrl.settings import SETTINGS
from planner.problem.device_classes import DeviceClass
from planner.problem.groupings import Grouping
from planner.problem.workload import TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingGenome:
    """One individual of the search. Rows are groups, columns are classes in the order of their keys."""

    held: tuple[tuple[int, ...], ...]
    """Devices of each class that each group has."""
    choice: tuple[tuple[int, ...], ...]
    """Index into the candidate list, modulo its length. A group with training uses only the first entry of its row."""


@dataclass(slots=True)
class GroupingDecoder:
    """Everything needed to decode the genomes of one grouping."""

    lists: CandidateLists
    grouping: Grouping
    classes: tuple[DeviceClass, ...]
    """Device classes sorted by key."""
    trains: tuple[bool, ...]
    """Whether each group trains."""
    usable: tuple[tuple[bool, ...], ...]
    """Whether the operator's rules let a group use a class, by group and class."""
    nearness: np.ndarray
    """Bytes per second between classes, `[num_classes, num_classes]`, for growing connected sets of devices."""
    max_blocks: int
    """Most classes in one mesh."""
    _pools: dict[object, tuple[Pool, ...]] = field(default_factory=dict)

    @property
    def granule(self) -> int:
        """Least number of devices that a move changes: one in a small fleet, a machine or so in a large one."""
        return max(1, sum(at.num_gpus for at in self.classes) // SETTINGS.moves_per_fleet)

    def placement(self, genome: GroupingGenome) -> Placement | None:
        """Return the placement of a genome; None if some group has nothing to run on."""
        pools: list[list[Pool]] = [[] for _ in self.grouping]
        room = {at.key: _Room(at) for at in self.classes}
        # Meshes are placed first because they must be whole.
        for g, tasks in enumerate(self.grouping):
            if self.trains[g] and not self._mesh(g, tasks, genome, pools, room):
                return None
        wanted = [
            (pool, g)
            for g, tasks in enumerate(self.grouping)
            if not self.trains[g]
            for pool in self._units(g, tasks, genome)
        ]
        # Large units before small ones, since small ones fit into what is left.
        for pool, g in sorted(wanted, key=lambda each: -each[0].unit_gpus):
            num = room[pool.device_class].take(pool.unit_gpus, pool.num_units)
            if num:
                pools[g].append(pool if num == pool.num_units else pool.resized(num))
        if not all(pools):
            return None
        return Placement(
            groups=tuple(Group(tasks=t, pools=tuple(p)) for t, p in zip(self.grouping, pools, strict=True))
        )

    def _mesh(
        self, g: int, tasks: tuple[Task, ...], genome: GroupingGenome, pools: list[list[Pool]], room: dict[str, "_Room"]
    ) -> bool:
        """Place the chosen mesh of a group with training; return False if there is none or no room for it."""
        held = [(self.classes[c].key, n) for c, n in enumerate(genome.held[g]) if n]
        # Only the largest classes count, as many as a mesh may have pools. Sorted by name they are the cache's key.
        held = sorted(held, key=lambda each: -each[1])[: self.max_blocks]
        options = self.lists.meshes(tasks, tuple(sorted(held)))
        if not options:
            return False
        # A choice beyond the end of the list wraps around, since swaps change lists and keep choices.
        chosen = options[genome.choice[g][0] % len(options)]
        for pool in chosen.pools:
            # A mesh with fewer units than chosen would be another mesh.
            if room[pool.device_class].take(pool.unit_gpus, pool.num_units) < pool.num_units:
                return False
        pools[g] += chosen.pools
        return True

    def _units(self, g: int, tasks: tuple[Task, ...], genome: GroupingGenome) -> list[Pool]:
        """Return the pools of a group without training."""
        found: list[Pool] = []
        for c, held in enumerate(genome.held[g]):
            if held:
                key = (g, c, held, genome.choice[g][c])
                if key not in self._pools:
                    self._pools[key] = self._laid_out(tasks, c, held, genome.choice[g][c])
                found += self._pools[key]
        return found

    def _laid_out(self, tasks: tuple[Task, ...], c: int, held: int, choice: int) -> tuple[Pool, ...]:
        """Return the chosen units, and for the remaining devices the best smaller units."""
        options = self.lists.units(tasks, self.classes[c].key)
        if not options:
            return ()
        chosen = options[choice % len(options)].pool
        found = [chosen.resized(held // chosen.unit_gpus)] if held >= chosen.unit_gpus else []
        # Devices that do not fill a chosen unit get the best unit that is small enough.
        rest = held % chosen.unit_gpus
        small = next((option.pool for option in options if option.pool.unit_gpus <= rest), None)
        if small:
            found.append(small.resized(rest // small.unit_gpus))
        return tuple(found)


def grouping_decoder(lists: CandidateLists, grouping: Grouping) -> GroupingDecoder:
    """Return what decodes the genomes of one grouping."""
    classes = tuple(at for _, at in sorted(lists.cost_tables.classes.items()))
    return GroupingDecoder(
        lists=lists,
        grouping=grouping,
        classes=classes,
        trains=tuple(any(task in TRAINING for task in group) for group in grouping),
        usable=tuple(tuple(lists.cost_tables.problem.allows(group, at) for at in classes) for group in grouping),
        nearness=_nearness(lists, classes),
        max_blocks=min(2, lists.cost_tables.problem.limits.max_train_blocks),
    )


def _nearness(lists: CandidateLists, classes: Sequence[DeviceClass]) -> np.ndarray:
    """Return the bytes per second between the regions of each pair of classes; 0 without a route."""
    names = sorted({at.region.name for at in classes})
    between: np.ndarray = lists.cost_tables.known("rates between regions", lambda: _rates(lists, names))
    # Regions are far fewer than classes, so rates are looked up by region.
    of_class = np.array([names.index(at.region.name) for at in classes], dtype=np.int64)
    return between[np.ix_(of_class, of_class)]


def _rates(lists: CandidateLists, names: Sequence[str]) -> np.ndarray:
    routes = [[lists.cost_tables.network.route(a, b) for b in names] for a in names]
    return np.array([[route.bytes_per_s if route else 0.0 for route in each] for each in routes])


class _Room:
    """Machines of a class that are still free.

    For each size k, units of at least k devices have at most num_machines x floor(gpus_per_machine / k) x k devices
    together.
    """

    def __init__(self, at: DeviceClass) -> None:
        self._at = at
        self._held: dict[int, int] = {}

    def take(self, size: int, num: int) -> int:
        """Take up to `num` units of this size and return how many there was room for."""
        # As in the inventory rows of the exact method: units of at least k devices cover each machine in multiples of
        # k.
        for each in {*self._held, size}:
            if each <= size:
                held = sum(k * n for k, n in self._held.items() if k >= each)
                cap = self._at.num_machines * (self._at.gpus_per_machine // each) * each
                num = min(num, (cap - held) // size)
        if num > 0:
            self._held[size] = self._held.get(size, 0) + num
        return max(0, num)
