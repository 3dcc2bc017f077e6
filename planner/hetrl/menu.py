"""Level 4: the best ways to lay a group's tasks out on so many devices of given classes, by the cost model; cached.

Lists are short and best first. A group without training is laid out unit by unit, so its list is a class's. A group
with training is laid out as a whole: the number of devices matters.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from planner.answer.placement import Pool
from planner.classes import DeviceClass
from planner.cost.columns import UnitColumn, may_group, unit_columns
from planner.cost.cuts import FloatArray
from planner.cost.meshes import Found, alone
from planner.cost.options import Options, options
from planner.cost.pools import Kind, PoolPrice, Prices
from planner.cost.training import Blocks, mesh_times
from planner.question.workload import TRAINING, Task

MAX_UNITS = 12
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
    """Samples a second and device, of all the group's tasks one after the other."""
    group_s: float


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
    """Of one problem."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self._units: dict[Tasks, dict[str, tuple[UnitOption, ...]]] = {}
        self._meshes: dict[tuple[Tasks, Held], tuple[MeshOption, ...]] = {}
        self._options: dict[tuple[Tasks, Kind, int], Options] = {}
        self._alone: dict[tuple[Tasks, Kind, int], Found] = {}
        self._blocks: dict[tuple[Tasks, Kind, int], tuple[Options, FloatArray]] = {}

    def allowed(self, tasks: Iterable[Task], at: DeviceClass) -> bool:
        """Whether the operator's rules let the class do all of these."""
        problem = self.prices.problem
        if problem.goal.needs_prices and at.usd_per_gpu_hour is None:
            return False
        return all(problem.rules.allows(task, at.region.name, at.is_spot) for task in tasks)

    def units(self, tasks: Tasks, key: str) -> tuple[UnitOption, ...]:
        """For a group without training: the fastest first, then those with a faster group or of fewer devices."""
        if tasks not in self._units:
            by_class: dict[str, list[UnitOption]] = {}
            for column in unit_columns(self.prices, tasks):
                by_class.setdefault(column.unit.device_class, []).append(_unit_option(column))
            self._units[tasks] = {
                at: tuple(_worth_keeping(sorted(found, key=lambda each: -each.speed)))[:MAX_UNITS]
                for at, found in by_class.items()
            }
        return self._units[tasks].get(key, ())

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
        key = (tasks, self.prices.kind(at), at.num_machines)
        if key not in self._options:
            self._options[key] = options(self.prices, tasks, at, at.num_machines)
        return self._options[key]

    def _of_one(self, tasks: Tasks, key: str, num_gpus: int) -> Iterator[MeshOption]:
        at = self.prices.classes[key]
        known = (tasks, self.prices.kind(at), at.num_machines)
        if known not in self._alone:
            self._alone[known] = alone(self.prices, tasks, at, self.options(tasks, at))
        found = self._alone[known]
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


def _unit_option(column: UnitColumn) -> UnitOption:
    a_sample_s = sum(1 / rate for rate in column.rates.values())
    return UnitOption(pool=column.unit, speed=1 / a_sample_s / column.unit.unit_gpus, group_s=column.group_s)


def _worth_keeping(found: Iterable[UnitOption]) -> Iterator[UnitOption]:
    least_s, least_gpus = float("inf"), 1 << 30
    for option in found:
        if option.group_s < least_s * 0.99 or option.pool.unit_gpus < least_gpus:
            yield option
            least_s = min(least_s, option.group_s)
            least_gpus = min(least_gpus, option.pool.unit_gpus)
