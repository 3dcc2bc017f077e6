"""The best placement by trying all of them: an oracle of optimality that shares only the cost oracle with the planner.

Nothing here knows of columns, dominance, classes' capacity rules or integer programs. For each partition of the tasks
each *machine* is cut in every way into units of the groups; what machines of one class are cut into is added up; each
unit then takes every layout, each mesh every pipeline; and every placement so made is judged by `evaluate`.

Two things are left out because they change nothing, not because they are worse: of two layouts of a unit with the same
price only one is tried (a batch of 0 means "as many as fit", which is often one of the listed), and machines of one
class are interchangeable. `is_reduced` leaves out more, for larger fleets and throughput alone, by two arguments that
need nothing but the oracle's definition, where a group without training enters by its tasks' summed rates (at eta 0:
by the samples that it makes until the phase ends) and by the longest time of a sample's group in each region:

- placements to which a unit could be added that is like one they have in the same group: it only adds to rates;
- placements whose units of one group, class and size are laid out in several ways: all of them laid out like the one
  that makes most, among those whose sample groups take no longer than the slowest there, are at least as good.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import combinations_with_replacement, product
from math import comb, prod

import numpy as np

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.outcome import objective_value
from planner.answer.placement import Group, Layout, Placement, Pool
from planner.cost.oracle import evaluate
from planner.cost.tables import validity
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.layer_cuts import shardings
from planner.problem.device_classes import DeviceClass
from planner.problem.goal import Problem
from planner.problem.workload import TRAINING, Task

Item = tuple[int, int]
"""A unit of one group: the group's index, and the unit's devices."""
Cut = tuple[tuple[Item, int], ...]
"""How often each item is there, sorted."""


_WASTE = 20
"""Combinations of classes that may be looked at for each placement that is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Of all placements of one problem."""

    value: float | None
    """The goal's; None: not one is valid."""
    placement: Placement | None
    num_placements: int


def best(problem: Problem, *, most: int, is_reduced: bool = False) -> Best | None:
    """None where there are more than `most` placements to try."""
    cost_tables = CostTables(problem)
    every = placements(cost_tables, most=most, is_reduced=is_reduced)
    if every is None:
        return None
    value, found, count = float("inf"), None, 0
    for placement in every:
        count += 1
        evaluation = evaluate(cost_tables, placement)
        if isinstance(evaluation, Evaluation) and objective_value(problem.goal, evaluation) < value:
            value, found = objective_value(problem.goal, evaluation), placement
    return Best(value=value if found else None, placement=found, num_placements=count)


def placements(cost_tables: CostTables, *, most: int, is_reduced: bool = False) -> Iterator[Placement] | None:
    """All of them, some of which the oracle may refuse; None where there are more than `most`."""
    spaces = []
    count = 0
    for groups in partitions(cost_tables.problem.workload.tasks):
        space = _Space(cost_tables, groups, is_reduced)
        assignments = space.assignments(most * _WASTE)
        if assignments is None:
            return None
        for cuts in assignments:
            count += space.count(cuts)
            if count > most:
                return None
            spaces.append((space, cuts))
    return (placement for space, cuts in spaces for placement in space.placements(cuts))


def partitions(tasks: tuple[Task, ...]) -> Iterator[tuple[tuple[Task, ...], ...]]:
    """Every way to group the tasks."""
    if not tasks:
        yield ()
        return
    last = tasks[-1]
    for groups in partitions(tasks[:-1]):
        for i in range(len(groups)):
            yield (*groups[:i], (*groups[i], last), *groups[i + 1 :])
        yield (*groups, (last,))


@dataclass(slots=True)
class _Space:
    """Placements of one partition."""

    cost_tables: CostTables
    groups: tuple[tuple[Task, ...], ...]
    is_reduced: bool
    _options: dict[object, list[Pool]] = field(init=False, default_factory=dict)
    _pools: dict[object, list[tuple[Pool, ...]]] = field(init=False, default_factory=dict)

    def trains(self, index: int) -> bool:
        return any(task in TRAINING for task in self.groups[index])

    def assignments(self, most: int) -> Iterator[tuple[Cut, ...]] | None:
        """What each class is cut into, in the classes' order; None where more than `most` have to be looked at."""
        per_class = [self._cuts(at, most) for _, at in sorted(self.cost_tables.classes.items())]
        if prod(len(cuts) for cuts in per_class) > most:
            return None
        return self._complete(per_class)

    def _complete(self, per_class: list[list[Cut]]) -> Iterator[tuple[Cut, ...]]:
        """Those where each group has units, and a mesh is in few enough classes."""
        most_blocks = self.cost_tables.problem.limits.max_train_blocks
        for cuts in product(*per_class):
            used: Counter[int] = Counter(group for cut in cuts for group in {group for (group, _), _ in cut})
            if len(used) == len(self.groups) and all(
                used[i] <= most_blocks for i in range(len(self.groups)) if self.trains(i)
            ):
                yield cuts

    def _cuts(self, at: DeviceClass, most: int) -> list[Cut]:
        items = [
            (group, size)
            for group in range(len(self.groups))
            for size in validity.TENSOR
            if size <= at.gpus_per_machine and self._unit_options(group, at, size)
        ]
        one = _machine_cuts(at.gpus_per_machine, items)
        whole: set[Cut] = {()}
        for _ in range(at.num_machines):
            if len(whole) * len(one) > most:
                return [()] * (most + 1)
            whole = {_sum(a, b) for a in whole for b in one}
        fit = [cut for cut in whole if self._has_one_size_a_mesh(cut)]
        if self.is_reduced:
            known = set(fit)
            fit = [cut for cut in fit if not self._can_grow(cut, known)]
        return sorted(fit)

    def _has_one_size_a_mesh(self, cut: Cut) -> bool:
        sizes = Counter(group for (group, _), _ in cut)
        return all(num == 1 for group, num in sizes.items() if self.trains(group))

    def _can_grow(self, cut: Cut, known: set[Cut]) -> bool:
        return any(_sum(cut, ((item, 1),)) in known for item, _ in cut if not self.trains(item[0]))

    # ---- layouts -----------------------------------------------------------------------------------------------------

    def count(self, cuts: tuple[Cut, ...]) -> int:
        """How many placements have these units."""
        total = 1
        for group in range(len(self.groups)):
            if self.trains(group):
                total *= len(self._meshes(group, cuts))
            else:
                for at, cut in self._placed(cuts):
                    for (of, size), num in cut:
                        if of == group:
                            kinds = len(self._unit_options(group, at, size))
                            total *= kinds if self.is_reduced else comb(num + kinds - 1, num)
        return total

    def placements(self, cuts: tuple[Cut, ...]) -> Iterator[Placement]:
        choices = []
        for group in range(len(self.groups)):
            if self.trains(group):
                choices.append(self._meshes(group, cuts))
            else:
                parts = [
                    self._spread(group, at, size, num)
                    for at, cut in self._placed(cuts)
                    for (of, size), num in cut
                    if of == group
                ]
                choices.append([tuple(pool for part in chosen for pool in part) for chosen in product(*parts)])
        for chosen in product(*choices):
            yield Placement(
                groups=tuple(Group(tasks=tasks, pools=pools) for tasks, pools in zip(self.groups, chosen, strict=True))
            )

    def _placed(self, cuts: tuple[Cut, ...]) -> list[tuple[DeviceClass, Cut]]:
        return list(zip((at for _, at in sorted(self.cost_tables.classes.items())), cuts, strict=True))

    def _spread(self, group: int, at: DeviceClass, size: int, num: int) -> list[tuple[Pool, ...]]:
        """So many units, each laid out in any way: pools of the units that are laid out alike."""
        key = (group, at.key, size, num)
        if key not in self._pools:
            options = self._unit_options(group, at, size)
            self._pools[key] = [
                tuple(_with_units(options[i], n) for i, n in Counter(chosen).items())
                for chosen in self._choices(len(options), num)
            ]
        return self._pools[key]

    def _choices(self, kinds: int, num: int) -> Iterator[tuple[int, ...]]:
        """Which kind each of `num` units is."""
        if self.is_reduced:
            return ((kind,) * num for kind in range(kinds))
        return combinations_with_replacement(range(kinds), num)

    def _unit_options(self, group: int, at: DeviceClass, size: int) -> list[Pool]:
        """One unit in every layout that fits; of a group with training, any of its meshes: it stands for all."""
        key = (group, at.key, size)
        if key not in self._options:
            tasks = self.groups[group]
            if self.trains(group):
                nums = range(1, at.num_units(size) + 1)
                fit = [pool for num in nums for pool in self._mesh_pools(group, at, size, num)][:1]
            else:
                layouts = product(*(self._layouts(task, size, False) for task in tasks))
                fit = self._fitting(tasks, [_pool(at, size, 1, tasks, each) for each in layouts])
            self._options[key] = fit
        return self._options[key]

    def _meshes(self, group: int, cuts: tuple[Cut, ...]) -> list[tuple[Pool, ...]]:
        units = [(at, size, num) for at, cut in self._placed(cuts) for (of, size), num in cut if of == group]
        key = (group, tuple((at.key, size, num) for at, size, num in units))
        if key not in self._pools:
            pools = list(product(*(self._mesh_pools(group, at, size, num) for at, size, num in units)))
            if len({at.region.name for at, _, _ in units}) > 1:
                pools += [chosen[::-1] for chosen in pools]
            self._pools[key] = pools
        return self._pools[key]

    def _mesh_pools(self, group: int, at: DeviceClass, size: int, num: int) -> list[Pool]:
        key = ("mesh", group, at.key, size, num)
        if key not in self._options:
            tasks = self.groups[group]
            others = [task for task in tasks if task not in TRAINING]
            pools = []
            machine_units, fsdp = at.gpus_per_machine // size, self.cost_tables.problem.limits.fsdp
            for train in _train_layouts(size, num, machine_units, fsdp):
                for rest in product(*(self._layouts(task, size, True) for task in others)):
                    laid_out = dict(zip(others, rest, strict=True))
                    pools.append(_pool(at, size, num, tasks, [laid_out.get(task, train) for task in tasks]))
            self._options[key] = self._fitting(tasks, pools, is_mesh=True)
        return self._options[key]

    def _layouts(self, task: Task, size: int, trains: bool) -> list[Layout]:
        if task is not Task.GENERATION:
            return [Layout(tensor=size)]
        batches = (0,) if trains or self.cost_tables.problem.workload.eta == 0 else validity.BATCH
        return [
            Layout(tensor=tensor, batch=batch) for tensor in validity.TENSOR if size % tensor == 0 for batch in batches
        ]

    def _fitting(self, tasks: tuple[Task, ...], pools: Sequence[Pool], *, is_mesh: bool = False) -> list[Pool]:
        """Those that fit memory, rules and limits; of units with the same price one."""
        rules, limits = self.cost_tables.problem.rules, self.cost_tables.problem.limits
        seen: set[Hashable] = set()
        kept = []
        for pool in pools:
            at = self.cost_tables.classes[pool.device_class]
            fits = all(
                rules.allows(task, at.region.name, at.is_spot)
                and limits.allows_tensor(task, layout.tensor, at.gpu)
                and layout.pipeline
                <= min(limits.max_pipeline, self.cost_tables.problem.workload.models[task].num_layers)
                and (task not in TRAINING or pool.num_units <= layout.pipeline * limits.max_data)
                for task, layout in pool.layouts
            )
            price = self.cost_tables.pool(tasks, pool) if fits else None
            if price is None or isinstance(price, Violation):
                continue
            if is_mesh or _told(price) not in seen:
                kept.append(pool)
                seen.add(_told(price))
        return kept


def _told(value: object) -> Hashable:
    """A price by content, batch apart, so that equal ones are recognised whatever they are made of."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Mapping):
        return tuple((key, _told(value[key])) for key in sorted(value))
    if is_dataclass(value):
        return tuple(_told(getattr(value, each.name)) for each in fields(value) if each.name != "batch")
    assert isinstance(value, Hashable)
    return value


def _train_layouts(size: int, num: int, machine_units: int, fsdp: str | None) -> Iterator[Layout]:
    for pipeline in validity.PIPELINE:
        if num % pipeline or num // pipeline not in validity.DATA:
            continue
        modes = shardings(pipeline, num // pipeline, machine_units, fsdp)
        for (mode, copies), recompute, micro_batch in product(modes, (False, True), validity.MICRO_BATCH):
            yield Layout(
                tensor=size,
                pipeline=pipeline,
                sharding=mode,
                copies=copies,
                recompute=recompute,
                micro_batch=micro_batch,
            )


def _pool(at: DeviceClass, size: int, num: int, tasks: tuple[Task, ...], layouts: Sequence[Layout]) -> Pool:
    return Pool(device_class=at.key, unit_gpus=size, num_units=num, layouts=tuple(zip(tasks, layouts, strict=True)))


def _with_units(unit: Pool, num: int) -> Pool:
    return Pool(device_class=unit.device_class, unit_gpus=unit.unit_gpus, num_units=num, layouts=unit.layouts)


def _machine_cuts(gpus: int, items: list[Item]) -> list[Cut]:
    """Every multiset of items that one machine has the devices for."""
    sizes = [size for _, size in items]
    return [
        tuple((item, n) for item, n in zip(items, counts, strict=True) if n)
        for counts in product(*(range(gpus // size + 1) for size in sizes))
        if sum(n * size for n, size in zip(counts, sizes, strict=True)) <= gpus
    ]


def _sum(a: Cut, b: Cut) -> Cut:
    total = Counter(dict(a))
    total.update(dict(b))
    return tuple(sorted(total.items()))


def usd_per_hour(problem: Problem, placement: Placement) -> float:
    """What a placement's devices and egress cost."""
    evaluation = evaluate(CostTables(problem), placement)
    assert isinstance(evaluation, Evaluation)
    return evaluation.usd_per_hour
