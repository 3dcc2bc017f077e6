"""Genomes: placements as vectors of numbers in [0, 1), which random search draws and the genetic algorithm breeds.

There are as many group slots as the job has tasks. A genome has a few *keys* for each slot, and for each slot and
class; decoding them in a fixed order gives one placement. Every part of the plan space can be reached: any partition of
the tasks, any choice of regions and classes, one or two pools in a mesh, up to two pools of a class in a group without
training, any layout that fits. A genome may still ask for what is no placement (no room left, no route, too expensive);
it then decodes to None or is rejected by the oracle.

- Task i is in the slot floor(key x number of tasks). Tasks in the same slot are a group.
- The regions with the smallest keys are used; one more key gives their number.
- A slot's first key gives the number of classes that it wants. It wants those with the smallest *use* keys.
- Groups that want the same class divide its devices in proportion to their *weight* keys; training is served first.
- A *layout* key chooses from the list of layouts that fit. A fourth key adds a second pool of the class in a fifth of
  all cases.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.planner_cases.baselines.templates import Template, Templates
from planner.answer.placement import Group, Placement, Pool
from planner.cost.tables import validity
from planner.cost.tables.cost_tables import CostTables
from planner.problem.device_classes import DeviceClass, fits
from planner.problem.workload import TRAINING, Task

Keys = npt.NDArray[np.float64]
"""Array of keys in [0, 1)."""

_USE, _WEIGHT, _LAYOUT, _SECOND = range(4)
"""Indices of the four keys of a slot and class, with the meanings that the module's docstring gives."""
_TWO_BLOCKS = 0.35
"""Share of meshes with two pools. Chosen by hand."""
_TWO_POOLS = 0.2
"""Share of classes of which a group without training has two pools. Chosen by hand."""


@dataclass(slots=True)
class PlacementGenome:
    """Decoder of vectors of `length` keys for one problem."""

    cost_tables: CostTables
    tasks: tuple[Task, ...] = field(init=False)
    classes: tuple[DeviceClass, ...] = field(init=False)
    regions: tuple[str, ...] = field(init=False)
    length: int = field(init=False)
    _templates: Templates = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = self.cost_tables.problem.workload.tasks
        self.classes = tuple(at for _, at in sorted(self.cost_tables.classes.items()))
        self.regions = tuple(sorted({at.region.name for at in self.classes}))
        self._templates = Templates(self.cost_tables)
        self.length = 2 * len(self.tasks) + len(self.regions) + 1 + len(self.tasks) * len(self.classes) * 4

    def placement(self, keys: Keys) -> Placement | None:
        """Return the placement that the keys describe; None if they ask for more than there is."""
        num, num_regions = len(self.tasks), len(self.regions)
        # Layout of a genome: slot of each task, classes wanted by each slot, regions, then `[num_slots, num_classes,
        # 4]`.
        labels, wants = keys[:num], keys[num : 2 * num]
        near, rest = keys[2 * num : 2 * num + num_regions + 1], keys[2 * num + num_regions + 1 :]
        per_class = rest.reshape(num, len(self.classes), 4)
        usable = self._usable_regions(near)
        groups = self._groups(labels)
        wanted = {
            slot: self._wanted(tasks, float(wants[slot]), per_class[slot], usable) for slot, tasks in groups.items()
        }
        return self._divide(groups, wanted, per_class)

    def _groups(self, labels: Keys) -> dict[int, tuple[Task, ...]]:
        limits = self.cost_tables.problem.limits
        slots: dict[int, list[Task]] = {}
        # Roles of the trainer's process share actor training's slot, whatever their own keys say.
        actor = self._slot(self.tasks.index(Task.ACTOR_TRAINING), labels)
        for i, task in enumerate(self.tasks):
            is_on_trainer = task in limits.roles_on_trainer
            slots.setdefault(actor if is_on_trainer else self._slot(i, labels), []).append(task)
        return {slot: tuple(tasks) for slot, tasks in slots.items()}

    def _slot(self, index: int, labels: Keys) -> int:
        return int(labels[index] * len(self.tasks)) if self.cost_tables.problem.limits.colocates else index

    def _usable_regions(self, near: Keys) -> frozenset[str]:
        most = len(self.regions)
        if (limit := self.cost_tables.problem.rules.max_regions) is not None:
            most = min(most, limit)
        count = 1 + int(near[-1] * most)
        order = np.argsort(near[:-1], kind="stable")
        return frozenset(self.regions[i] for i in order[:count])

    def _wanted(self, tasks: tuple[Task, ...], want: float, keys: Keys, usable: frozenset[str]) -> list[int]:
        """Return the indices of the classes that a group asks for, the most wanted first."""
        able = [
            i
            for i, at in enumerate(self.classes)
            if at.region.name in usable and self.cost_tables.problem.allows(tasks, at) and self._templates.of(tasks, at)
        ]
        able.sort(key=lambda i: float(keys[i, _USE]))
        if any(task in TRAINING for task in tasks):
            # A mesh has one class or two; its group's first key decides.
            two = want < _TWO_BLOCKS and self.cost_tables.problem.limits.max_train_blocks > 1
            if Task.GENERATION in tasks and Task.ACTOR_TRAINING not in tasks:  # such a mesh must be in one region
                able = [i for i in able if self.classes[i].region is self.classes[able[0]].region]
            return able[: 2 if two else 1]
        return able[: 1 + int(want * len(able))]

    def _divide(
        self, groups: dict[int, tuple[Task, ...]], wanted: dict[int, list[int]], keys: Keys
    ) -> Placement | None:
        """Give each group its share of the classes that it wants, groups with training first.

        None if a group gets nothing.
        """
        # Units taken so far by class and size. Training comes first: a mesh needs whole pipelines, other groups take
        # what is left.
        held: dict[str, dict[int, int]] = {}
        found: dict[int, Group] = {}
        for slot in sorted(groups, key=lambda s: not any(task in TRAINING for task in groups[s])):
            pools: list[Pool] = []
            for i in wanted[slot]:
                # Share of this class among all groups that want it.
                rivals = sum(float(keys[s, i, _WEIGHT]) for s in groups if i in wanted[s])
                share = float(keys[slot, i, _WEIGHT]) / rivals if rivals else 1.0
                pools += self._pools(groups[slot], self.classes[i], keys[slot, i], share, len(wanted[slot]), held)
            if not pools:
                return None
            found[slot] = Group(tasks=groups[slot], pools=tuple(pools))
        return Placement(groups=tuple(found[slot] for slot in sorted(found)))

    def _pools(
        self,
        tasks: tuple[Task, ...],
        at: DeviceClass,
        keys: Keys,
        share: float,
        num_pools: int,
        held: dict[str, dict[int, int]],
    ) -> Iterator[Pool]:
        """Yield one or two pools of a class for a group, as far as there is room.

        `held` counts the units of each class that are taken.
        """
        templates: Sequence[Template] = self._templates.of(tasks, at)
        trains = any(task in TRAINING for task in tasks)
        if trains and num_pools > 1:
            # A mesh of several pools must not shard its parameters fully (`validity`).
            templates = [each for each in templates if not each.is_fully_sharded]
        if not templates:
            return
        first = templates[int(keys[_LAYOUT] * len(templates))]
        chosen = [first]
        if not trains and keys[_SECOND] < _TWO_POOLS:
            # Keys below the threshold are stretched to [0, 1), so that they choose among all layouts.
            chosen.append(templates[int(keys[_SECOND] / _TWO_POOLS * len(templates))])
        for template in chosen:
            # Pools are taken one after the other, so the second one sees the room that the first one left.
            units = held.setdefault(at.key, {})
            left = room(at, units, template.unit_gpus)
            num_wanted = round(share * at.num_gpus / template.unit_gpus / len(chosen))
            num = self._num_units(template, trains, num_wanted, left)
            if num:
                units[template.unit_gpus] = units.get(template.unit_gpus, 0) + num
                yield template.pool(at.key, num)

    def _num_units(self, template: Template, trains: bool, num_wanted: int, left: int) -> int:
        """Return the wanted number of units, but at least the fewest that work and at most what is left."""
        if not trains:
            return min(max(num_wanted, 1), left)
        most = min(max(num_wanted // template.pipeline, template.min_data), left // template.pipeline)
        most = min(most, self.cost_tables.problem.limits.max_data)
        data = max((n for n in validity.DATA if template.min_data <= n <= most), default=0)
        return data * template.pipeline


def room(at: DeviceClass, held: dict[int, int], unit: int) -> int:
    """Return how many more units of that size fit beside those in `held`, by binary search."""
    low, high = 0, at.num_units(unit)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(at, {**held, unit: held.get(unit, 0) + middle}):
            low = middle
        else:
            high = middle - 1
    return low
