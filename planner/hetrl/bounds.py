"""What no placement of an arm can beat: a fluid bound from the best rate that any layout gives each device.

Each group may pick its devices freely and each of its tasks its own best ones, work is divisible, there is no bubble,
reduction, update or network, memory holds one task at a time. All of that only helps, so the bound is valid for every
placement with that grouping (`of_grouping`) or with those sizes too (`of_sizes`).
"""

from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from planner.classes import DeviceClass
from planner.cost.pools import PoolPrice
from planner.groupings import Grouping
from planner.hetrl.menu import Menu
from planner.question.goal import Objective
from planner.question.workload import SCORING, TRAINING, Task

Floats = npt.NDArray[np.float64]
_GRANULES = (0, 1, 64, 32, 20, 14, 11)
"""By number of groups: parts that the fleet is cut into when sizes are enumerated."""
_NUM_TIMES, _SPAN = 240, 2000.0
"""Times at which samples of a phase are counted, and their range in units of the first sample's."""


class Bounds:
    """Of one problem, in its objective's unit."""

    def __init__(self, menu: Menu) -> None:
        self._menu = menu
        self._problem = menu.prices.problem
        self._classes = [at for _, at in sorted(menu.prices.classes.items())]
        self._num = sum(at.num_gpus for at in self._classes)
        self._busy: dict[Task, Floats] = {}
        self._rates: dict[Task, Floats] = {}

    def of_grouping(self, grouping: Grouping) -> float:
        """Over all sizes."""
        if self._problem.workload.eta == 0:
            parts = _GRANULES[len(grouping)]
            rounded = np.ceil(_compositions(parts, len(grouping)) * (self._num / parts)).astype(np.int64)
            sizes = np.minimum(self._num, rounded)
            return self._value(float(self._phases_s(grouping, sizes).min()))
        low, high = 0.0, max(float(self._group_s(group)[1:].max()) for group in grouping)
        if not np.isfinite(high):
            high = 1e9
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            need = sum(int(np.searchsorted(-self._group_s(group), -middle)) for group in grouping)
            low, high = (low, middle) if need <= self._num else (middle, high)
        return self._value(low)

    def of_sizes(self, grouping: Grouping, sizes: tuple[int, ...]) -> float:
        """With so many devices at most in each group."""
        if self._problem.workload.eta == 0:
            return self._value(float(self._phases_s(grouping, np.array([sizes]))[0]))
        return self._value(max(float(self._group_s(g)[n]) for g, n in zip(grouping, sizes, strict=True)))

    def _value(self, step_s: float) -> float:
        """A bound on the objective from one on seconds a step."""
        goal = self._problem.goal
        if goal.max_step_s is not None and step_s > goal.max_step_s:
            return float("inf")
        if goal.objective is not Objective.COST_AT_THROUGHPUT or goal.max_step_s is None:
            return step_s
        prices = np.array([at.usd_per_gpu_hour or 0.0 for at in self._classes])
        usd = 0.0
        for task in self._problem.workload.tasks:
            with np.errstate(divide="ignore", invalid="ignore"):
                each = np.where(self._rate(task) > 0, prices / self._rate(task), np.inf)
            usd += self._work(task) * float(each.min())
        return usd / goal.max_step_s

    def _phases_s(self, grouping: Grouping, sizes: npt.NDArray[np.int64]) -> Floats:
        """eta 0: training, then scoring, then generation, of each row of sizes."""
        train = np.zeros(len(sizes))
        score = np.zeros(len(sizes))
        generate = np.zeros(len(sizes))
        for g, group in enumerate(grouping):
            at = sizes[:, g]
            train = np.maximum(train, sum((self._task_s(t)[at] for t in group if t in TRAINING), np.zeros(len(at))))
            score = np.maximum(score, sum((self._task_s(t)[at] for t in group if t in SCORING), np.zeros(len(at))))
            if Task.GENERATION in group:
                generate = self._task_s(Task.GENERATION)[at]
        return train + score + generate

    def _group_s(self, group: tuple[Task, ...]) -> Floats:
        """eta >= 1: busy seconds on the best 0, 1, ... devices. Generation by turns with training is not counted: as a
        phase it may drain faster than it runs."""
        trains = any(task in TRAINING for task in group)
        counted = [task for task in group if not (trains and task is Task.GENERATION)]
        return sum((self._task_s(task) for task in counted), np.zeros(self._num + 1))

    def _task_s(self, task: Task) -> Floats:
        """On the best 0, 1, ... devices for it."""
        if task not in self._busy:
            sizes = np.arange(self._num + 1)
            if task is Task.GENERATION and self._problem.workload.eta == 0:
                self._busy[task] = self._phase_s(sizes)
            else:
                with np.errstate(divide="ignore"):
                    self._busy[task] = self._work(task) / self._best(self._rate(task), sizes)
        return self._busy[task]

    def _phase_s(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """The largest time of a grid in which the best so many devices, loaded at once, make too few samples."""
        tables = [(c, *table) for c, at in enumerate(self._classes) for table in self._tables(at)]
        if not tables:
            return np.full(len(sizes), np.inf)
        first_s = min(float(seconds[samples > 0].min()) for _, seconds, samples in tables)
        grid = np.geomspace(first_s, first_s * _SPAN, _NUM_TIMES)
        made = np.zeros((len(grid), len(self._classes)))
        for c, seconds, samples in tables:
            made[:, c] = np.maximum(made[:, c], np.interp(grid, seconds, samples))
        bound = np.zeros(len(sizes))
        for seconds, rates in zip(grid, made, strict=True):
            bound[self._best(rates, sizes) < self._problem.workload.samples_per_step] = seconds
        return bound

    def _tables(self, at: DeviceClass) -> Iterator[tuple[Floats, Floats]]:
        """Seconds after weights are loaded, and samples by then of one device; of each unit."""
        tasks, prices = (Task.GENERATION,), self._menu.prices
        for option in self._menu.units(tasks, at.key):
            price = prices.pool(tasks, option.pool)
            if isinstance(price, PoolPrice) and price.phase is not None:
                load_s = prices.load_s(at, option.pool.layouts[0][1].tensor, num_gpus=None)
                seconds = price.phase.seconds - load_s
                yield seconds[seconds > 0], price.phase.samples[seconds > 0] / option.pool.unit_gpus

    def _best(self, rates: Floats, sizes: npt.NDArray[np.int64]) -> Floats:
        """Sum of the rates of the best so many devices."""
        order = np.argsort(-rates, kind="stable")
        counts = np.array([self._classes[c].num_gpus for c in order])
        ends = np.concatenate([[0], np.cumsum(counts)])
        sums: Floats = np.interp(sizes, ends, np.concatenate([[0.0], np.cumsum(counts * rates[order])]))
        return sums

    def _work(self, task: Task) -> float:
        """Samples a step."""
        workload = self._problem.workload
        return float(workload.samples_per_step * (workload.epochs_per_step if task in TRAINING else 1))

    def _rate(self, task: Task) -> Floats:
        """Samples a second of one device of each class, at best."""
        if task not in self._rates:
            rate = self._train_rate if task in TRAINING else self._unit_rate
            self._rates[task] = np.array([rate(task, at) for at in self._classes])
        return self._rates[task]

    def _unit_rate(self, task: Task, at: DeviceClass) -> float:
        return max((option.speed for option in self._menu.units((task,), at.key)), default=0.0)

    def _train_rate(self, task: Task, at: DeviceClass) -> float:
        if not self._menu.allowed((task,), at):
            return 0.0
        found = self._menu.options((task,), at)
        return float(np.max(found.blocks[task].samples_per_s / found.num_gpus, initial=0.0))


@cache
def _compositions(parts: int, groups: int) -> npt.NDArray[np.int64]:
    """All ways to give `parts` parts, and one less than `groups` more for rounding up, to groups, one each at least."""
    total = parts + groups - 1
    chosen = list(combinations(range(1, total), groups - 1))
    cuts = np.array(chosen, dtype=np.int64).reshape(len(chosen), groups - 1)
    edges = np.hstack([np.zeros((len(cuts), 1), dtype=np.int64), cuts, np.full((len(cuts), 1), total)])
    return np.diff(edges, axis=1)
