"""Level 4: the best ways to lay a group's tasks out on so many devices of given classes, by the cost model; cached.

Lists are short and best first. A group without training is laid out unit by unit, so its list is a class's: all that
nothing dominates, generation counted as what a unit makes in a window of the length that the fleet needs. A group with
training is laid out as a whole: the number of devices matters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.answer.placement import Pool
from planner.classes import DeviceClass
from planner.cost.columns import UnitColumn, may_group, unit_columns
from planner.cost.cuts import FloatArray
from planner.cost.meshes import Found, alone
from planner.cost.options import Options, options
from planner.cost.phases import PhaseTable, end_s
from planner.cost.pools import Kind, PoolPrice, Prices
from planner.cost.training import Blocks, mesh_times
from planner.question.workload import TRAINING, Task

MAX_MESHES = 12
_MAX_BLOCKS = 4
"""Best blocks of a class that are tried in meshes of two."""
_MAX_PAIRS = 4

Tasks = tuple[Task, ...]
Held = tuple[tuple[str, int], ...]
"""Classes and devices of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOption:
    """One unit of a group without training."""

    pool: Pool
    """`num_units` is 1."""
    speed: float
    """Samples a second and device, of all the group's tasks one after the other, generation at its full rate."""
    phase: PhaseTable | None
    """Of generation."""

    def made(self, window_s: float, span_s: float) -> float:
        """Samples a device generates in a window of `window_s` while it works `span_s` at most."""
        assert self.phase is not None
        return min(self.phase.beside(window_s, span_s)[0] / self.pool.unit_gpus, self.speed * span_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshOption:
    """A group with training."""

    pools: tuple[Pool, ...]
    busy_s: float
    """Of all the group's tasks, a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Pools of one class that may be a part of a mesh; arrays have one entry a pool."""

    pools: tuple[Pool, ...]
    blocks: Mapping[Task, Blocks]
    rates: Mapping[Task, FloatArray]
    """Of whole pools, tasks that do not train."""


class Menu:
    """Of one problem. What it prices is kept with the prices, where the exact method finds it too."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self._units: dict[Tasks, dict[str, tuple[UnitOption, ...]]] = {}
        self._span_s: float | None = None
        self._meshes: dict[tuple[Tasks, Held], tuple[MeshOption, ...]] = {}
        self._blocks: dict[tuple[Tasks, Kind, int], tuple[Options, FloatArray]] = {}

    def allowed(self, tasks: Iterable[Task], at: DeviceClass) -> bool:
        """Whether the operator's rules let the class do all of these."""
        problem = self.prices.problem
        if problem.goal.needs_prices and at.usd_per_gpu_hour is None:
            return False
        return all(problem.rules.allows(task, at.region.name, at.is_spot) for task in tasks)

    def units(self, tasks: Tasks, key: str) -> tuple[UnitOption, ...]:
        """For a group without training: those that make most first."""
        if tasks not in self._units:
            by_class: dict[str, list[UnitColumn]] = {}
            for column in unit_columns(self.prices, tasks):
                by_class.setdefault(column.unit.device_class, []).append(column)
            span_s = self.span_s if Task.GENERATION in tasks else 1.0
            self._units[tasks] = {
                at: tuple(_unit_option(each) for each in sorted(found, key=lambda each: -self._worth(each, span_s)))
                for at, found in by_class.items()
            }
        return self._units[tasks].get(key, ())

    @property
    def span_s(self) -> float:
        """A step's seconds, roughly: twice what the whole fleet needs to make its samples in one window."""
        if self._span_s is None:
            columns = unit_columns(self.prices, (Task.GENERATION,))
            self._span_s = 2 * _window_s(self.prices, columns) if columns else 1.0
        return self._span_s

    def _worth(self, column: UnitColumn, span_s: float) -> float:
        """Samples a second and device, of all tasks one after the other."""
        rates = dict(column.rates)
        if column.phase is not None:
            eta = self.prices.problem.workload.eta
            full = rates[Task.GENERATION] if eta else np.inf
            rates[Task.GENERATION] = max(1e-9, min(full, column.phase.within(max(1, eta) * span_s) / span_s))
        return 1 / sum(1 / rate for rate in rates.values()) / column.unit.unit_gpus

    def meshes(self, tasks: Tasks, held: Held) -> tuple[MeshOption, ...]:
        """For a group with training on at most these devices (one class or two): the least busy first."""
        if (tasks, held) not in self._meshes:
            found: list[MeshOption] = []
            able = [(key, n) for key, n in held if self.allowed(tasks, self.prices.classes[key])]
            if may_group(self.prices, tasks):
                found += [option for key, num in able for option in self._of_one(tasks, key, num)]
                if len(able) > 1 and self.prices.problem.limits.max_train_blocks > 1:
                    found += self._of_two(tasks, able[0], able[1])
            self._meshes[tasks, held] = tuple(sorted(found, key=lambda each: each.busy_s))[:MAX_MESHES]
        return self._meshes[tasks, held]

    def options(self, tasks: Tasks, at: DeviceClass) -> Options:
        """Every mesh of the class that memory permits."""
        kind, num = self.prices.kind(at), at.num_machines
        find = partial(options, self.prices, tasks, at, num)
        return self.prices.known(("options", tasks, kind, num), find, lasts=True)

    def quickest(self, tasks: Tasks, key: str, num_gpus: int) -> tuple[int, Mapping[Task, float]] | None:
        """Of meshes on at most so many devices of one class the least busy: devices, and seconds of each task."""
        if not self.allowed(tasks, self.prices.classes[key]) or not may_group(self.prices, tasks):
            return None
        found = self._alone(tasks, self.prices.classes[key])
        num = found.a.num_gpus[found.rows_a]
        rows = np.flatnonzero(num <= num_gpus)
        if not len(rows):
            return None
        best = rows[int(found.total_s[rows].argmin())]
        return int(num[best]), {task: float(each[best]) for task, each in found.times.items()}

    def _alone(self, tasks: Tasks, at: DeviceClass) -> Found:
        known = ("alone", tasks, self.prices.kind(at), at.num_machines)
        return self.prices.known(known, lambda: alone(self.prices, tasks, at, self.options(tasks, at)), lasts=True)

    def _of_one(self, tasks: Tasks, key: str, num_gpus: int) -> Iterator[MeshOption]:
        at = self.prices.classes[key]
        found = self._alone(tasks, at)
        rows = np.flatnonzero(found.a.num_gpus[found.rows_a] <= num_gpus)
        busy_s = found.total_s[rows]
        for i in np.argsort(busy_s, kind="stable")[:MAX_MESHES]:
            yield MeshOption(pools=(found.a.pool(at, int(found.rows_a[rows[i]])),), busy_s=float(busy_s[i]))

    def _of_two(self, tasks: Tasks, first: tuple[str, int], second: tuple[str, int]) -> Iterator[MeshOption]:
        """Either pool may come first: versions are published where the first one is."""
        a, b = self._parts(tasks, *first), self._parts(tasks, *second)
        if not a.pools or not b.pools:
            return
        classes, workload = self.prices.classes, self.prices.problem.workload
        edges = self.prices.edges((classes[first[0]], classes[second[0]]))
        busy_s = np.zeros((len(a.pools), len(b.pools)))
        for task in tasks:
            if task in TRAINING:
                sides = [a.blocks[task].shaped(-1, 1), b.blocks[task].shaped(1, -1)]
                busy_s = busy_s + mesh_times(workload, sides, edges).total_s
            else:
                busy_s = busy_s + workload.samples_per_step / (a.rates[task][:, None] + b.rates[task][None, :])
        is_near = classes[first[0]].region.name == classes[second[0]].region.name
        for flat in np.argsort(busy_s, axis=None, kind="stable")[:_MAX_PAIRS]:
            i, j = divmod(int(flat), len(b.pools))
            yield MeshOption(pools=(a.pools[i], b.pools[j]), busy_s=float(busy_s[i, j]))
            if not is_near:
                yield MeshOption(pools=(b.pools[j], a.pools[i]), busy_s=float(busy_s[i, j]))

    def _parts(self, tasks: Tasks, key: str, num_gpus: int) -> _Parts:
        """The fastest few blocks of one class; generation counts at its full rate, which is near enough for ranking."""
        at = self.prices.classes[key]
        known = (tasks, self.prices.kind(at), at.num_machines)
        if known not in self._blocks:
            found = self.options(tasks, at)
            found = found.take(~found.is_full)
            alone_s = [mesh_times(self.prices.problem.workload, [each], []).total_s for each in found.blocks.values()]
            self._blocks[known] = found, sum(alone_s, np.zeros(len(found.unit)))
        found, train_s = self._blocks[known]
        rows = np.flatnonzero(found.num_gpus <= num_gpus)
        best = rows[np.argsort(train_s[rows], kind="stable")[:_MAX_BLOCKS]]
        pools = [found.pool(at, int(row)) for row in best]
        priced = [self.prices.pool(tasks, pool) for pool in pools]
        keep = [(i, pools[i], price) for i, price in enumerate(priced) if isinstance(price, PoolPrice)]
        rates = {
            task: np.array([pool.num_units * price.rates[task] for _, pool, price in keep])
            for task in tasks
            if task not in TRAINING
        }
        rows = best[[i for i, _, _ in keep]]
        few = {task: each.take(rows) for task, each in found.blocks.items()}
        return _Parts(pools=tuple(pool for _, pool, _ in keep), blocks=few, rates=rates)


def menu_of(prices: Prices) -> Menu:
    """One for all searches of a problem."""
    return prices.known("menu", lambda: Menu(prices))


def _unit_option(column: UnitColumn) -> UnitOption:
    a_sample_s = sum(1 / rate for rate in column.rates.values())
    return UnitOption(pool=column.unit, speed=1 / a_sample_s / column.unit.unit_gpus, phase=column.phase)


def _window_s(prices: Prices, columns: Sequence[UnitColumn]) -> float:
    """The least in which every class with the best of its units makes a step's samples."""
    best: dict[str, FloatArray] = {}
    for column in columns:
        assert column.phase is not None
        key = column.unit.device_class
        each = prices.classes[key].num_gpus / column.unit.unit_gpus * column.phase.samples
        best[key] = np.maximum(best.get(key, 0.0), each)
    made: FloatArray = np.sum(list(best.values()), axis=0)
    return end_s(prices.phase_seconds, made, float(prices.problem.workload.samples_per_step))
