"""Lower bound on the objective of all placements with one grouping, or with one grouping and one size vector.

It is a fluid relaxation. Each group picks its devices freely, each task picks its own best ones, and each device works
at the best rate of any layout. Work is divisible. There are no bubbles, reductions, optimizer updates and transfers;
memory holds one task at a time. All of this only helps, so the bound is valid. A step is at least the busy time of each
group. Training, scoring and a window in which generation's devices make the samples take at most eta + 1 steps one
after the other.

The method `hetrl_bounded` drops arms by this bound, and `planner.methods.opening.greedy_descent` orders groupings by
it.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from planner.cost.tasks.layer_cuts import TENSOR
from planner.methods.hetrl.candidate_lists import CandidateLists
from planner.methods.hetrl.settings import SETTINGS
from planner.problem.device_classes import DeviceClass
from planner.problem.goal import IMPOSSIBLE_STEP_S, Objective
from planner.problem.groupings import Grouping
from planner.problem.workload import SCORING, TRAINING, Task

Floats = npt.NDArray[np.float64]


class Bounds:
    """Lower bounds of one problem, in the unit of its objective (seconds per step or dollars per hour)."""

    def __init__(self, lists: CandidateLists) -> None:
        self._lists = lists
        self._problem = lists.cost_tables.problem
        self._classes = [at for _, at in sorted(lists.cost_tables.classes.items())]
        self._num = sum(at.num_gpus for at in self._classes)
        # In large fleets counts are rounded up to multiples: more devices never take longer, so a bound remains valid.
        self._multiple = -(-self._num // SETTINGS.max_device_counts)
        self._counts = np.minimum(np.arange(-(-self._num // self._multiple) + 1) * self._multiple, self._num)
        """Numbers of devices, rising from 0. That of n devices is found at n over `_multiple`, rounded up."""
        self._busy: dict[Task, Floats] = {}
        self._rates: dict[Task, Floats] = {}
        self._sums: dict[tuple[Task, ...], Floats] = {}
        self._window: Floats | None = None
        self._some: dict[int, npt.NDArray[np.int64]] = {}

    def of_grouping(self, grouping: Grouping) -> float:
        """Return the bound over all size vectors."""
        step_s = float(self._step_s(grouping, self._sizes(grouping)).min())
        return self._value(step_s if self._problem.workload.eta == 0 else max(step_s, self._busy_s(grouping)))

    def of_sizes(self, grouping: Grouping, sizes: tuple[int, ...]) -> float:
        """Return the bound with at most these numbers of devices in the groups."""
        return self._value(float(self._step_s(grouping, np.array([sizes]))[0]))

    def best_sizes(self, grouping: Grouping) -> tuple[int, ...]:
        """Return a size vector with the least bound of those that are enumerated, cut down to the fleet."""
        sizes = self._sizes(grouping)
        best = sizes[int(np.argmin(self._step_s(grouping, sizes)))]
        shares = np.maximum(1, np.floor(best * min(1.0, self._num / best.sum()))).astype(int)
        return tuple(shares.tolist())

    def _sizes(self, grouping: Grouping) -> npt.NDArray[np.int64]:
        """Return size vectors, `[num_vectors, num_groups]`, such that every vector has one that is nowhere less."""
        num = len(grouping)
        if num not in self._some:
            parts = SETTINGS.fleet_parts[num]
            rounded = np.ceil(_compositions(parts, num) * (self._num / parts)).astype(np.int64)
            self._some[num] = np.minimum(self._num, rounded)
        return self._some[num]

    def _busy_s(self, grouping: Grouping) -> float:
        """Return a lower bound on the busy time of the slowest group, over all size vectors."""
        rising = [-self._group_s(group) for group in grouping]
        low, high = 0.0, max(-float(each[1:].min()) for each in rising)
        if not np.isfinite(high):
            high = IMPOSSIBLE_STEP_S
        # Bisection: can every group reach `middle` seconds with the devices of the fleet?
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            places = [int(np.searchsorted(each, -middle)) for each in rising]
            need = sum((place - 1) * self._multiple + 1 for place in places if place)
            low, high = (low, middle) if need <= self._num else (middle, high)
        return low

    def _value(self, step_s: float) -> float:
        """Return the bound on the objective that follows from one on seconds per step."""
        goal = self._problem.goal
        most_s = goal.planned_step_s
        # Even the bound misses the deadline, so no placement meets it.
        if most_s is not None and step_s > most_s:
            return float("inf")
        if goal.objective is not Objective.COST_AT_THROUGHPUT or most_s is None:
            return step_s
        # Dollars: each task's work at the best price per work of any class, over the deadline.
        usd_per_hour = np.array([at.usd_per_gpu_hour or 0.0 for at in self._classes])
        usd = 0.0
        for task in self._problem.workload.tasks:
            with np.errstate(divide="ignore", invalid="ignore"):
                each = np.where(self.rate(task) > 0, usd_per_hour / self.rate(task), np.inf)
            usd += self.work(task) * float(each.min())
        return usd / most_s

    def _step_s(self, grouping: Grouping, sizes: npt.NDArray[np.int64]) -> Floats:
        """Return the lower bound on seconds per step for each row of sizes."""
        eta = self._problem.workload.eta
        train, score, rest, busy = (np.zeros(len(sizes)) for _ in range(4))
        for g, group in enumerate(grouping):
            # Index of each row's device count in the tables, rounded up.
            at = -(-sizes[:, g] // self._multiple)
            train = np.maximum(train, self._sum_s([task for task in group if task in TRAINING])[at])
            scores = self._sum_s([task for task in group if task in SCORING])[at]
            score = np.maximum(score, scores)
            if eta:
                # At eta 0 a group's busy time is part of the path already.
                busy = np.maximum(busy, self._group_s(group)[at])
            if Task.GENERATION in group:
                # At eta >= 1 scoring by generation's own group takes its part of the window.
                others = scores if eta and not _trains(group) else 0.0
                rest = self._window_s()[at] + others
        found: Floats = np.maximum(busy, (train + score + rest) / (eta + 1))
        return found

    def _group_s(self, group: tuple[Task, ...]) -> Floats:
        """Return the busy seconds of a group on the best devices, for each number of devices in `_counts`.

        If it trains and generates, its phase is included.
        """
        if Task.GENERATION not in group or not _trains(group):
            return self._sum_s(group)
        return self._sum_s([task for task in group if task is not Task.GENERATION]) + self._window_s()

    def _sum_s(self, tasks: Sequence[Task]) -> Floats:
        """Return the seconds of several tasks by turns on the best 0, 1, 2 ... devices of each."""
        key = tuple(tasks)
        if key not in self._sums:
            self._sums[key] = sum((self._task_s(task) for task in tasks), np.zeros(len(self._counts)))
        return self._sums[key]

    def _task_s(self, task: Task) -> Floats:
        """Return the seconds of one task on the best devices for it, for each number in `_counts`; inf on none."""
        if task not in self._busy:
            with np.errstate(divide="ignore"):
                self._busy[task] = self.work(task) / self._best(self.rate(task), self._counts)
        return self._busy[task]

    def _window_s(self) -> Floats:
        """Return a lower bound on generation's window with the best devices, for each number of them in `_counts`.

        All of them have their weights at once. The bound is the largest time of a grid at which they have made too few
        samples.
        """
        if self._window is None:
            self._window = self._least_window_s(self._counts)
        return self._window

    def _least_window_s(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """Compute the bound of `_window_s` for these numbers of devices."""
        tables = [(c, *table) for c, at in enumerate(self._classes) for table in self._tables(at)]
        if not tables:
            return np.full(len(sizes), np.inf)
        first_s = min(float(seconds[samples > 0].min()) for _, seconds, samples in tables)
        grid = np.geomspace(first_s, first_s * SETTINGS.phase_range, SETTINGS.phase_times)
        # Most samples of one device of each class by each time: [num_times, num_classes].
        made = np.zeros((len(grid), len(self._classes)))
        for c, seconds, samples in tables:
            made[:, c] = np.maximum(made[:, c], np.interp(grid, seconds, samples))
        # The last time on the grid at which the best devices still make too little; before it no window can end.
        bound = np.zeros(len(sizes))
        for seconds, rates in zip(grid, made, strict=True):
            bound[self._best(rates, sizes) < self._problem.workload.samples_per_step] = seconds
        return bound

    def _tables(self, at: DeviceClass) -> Iterator[tuple[Floats, Floats]]:
        """Yield (seconds after loading, samples of one device by then) for each unit of the class."""
        for option in self._lists.units((Task.GENERATION,), at.key):
            assert option.phase is not None
            load_s = self._lists.cost_tables.load_s(at, option.pool.layouts[0][1].tensor, num_gpus=None)
            seconds = option.phase.seconds - load_s
            yield seconds[seconds > 0], option.phase.samples[seconds > 0] / option.pool.unit_gpus

    def _best(self, rates: Floats, sizes: npt.NDArray[np.int64]) -> Floats:
        """Return the sum of the rates of the best devices, for each number of devices in `sizes`."""
        order = np.argsort(-rates, kind="stable")
        counts = np.array([self._classes[c].num_gpus for c in order])
        ends = np.concatenate([[0], np.cumsum(counts)])
        sums: Floats = np.interp(sizes, ends, np.concatenate([[0.0], np.cumsum(counts * rates[order])]))
        return sums

    def work(self, task: Task) -> float:
        """Return the samples that a task processes in a step; training counts each epoch."""
        workload = self._problem.workload
        return float(workload.samples_per_step * (workload.epochs_per_step if task in TRAINING else 1))

    def rate(self, task: Task) -> Floats:
        """Return the best samples per second of one device of each class, `[num_classes]`."""
        if task not in self._rates:
            rate = self._train_rate if task in TRAINING else self._unit_rate
            self._rates[task] = np.array([rate(task, at) for at in self._classes])
        return self._rates[task]

    def rates_by_size(self, task: Task, at: DeviceClass) -> list[float]:
        """Return the best samples per second of one device of the class, for units of each size of `TENSOR`."""
        if task in TRAINING:
            if not self._lists.cost_tables.problem.allows((task,), at):
                return [0.0] * len(TENSOR)
            # Training: the best layout of each unit size, per device.
            found = self._lists.options((task,), at)
            each = found.blocks[task].samples_per_s / found.num_gpus
            return [float(each[found.unit == size].max(initial=0.0)) for size in TENSOR]
        cost_tables = self._lists.cost_tables
        # One rate for all sizes: `units` has the undominated ones only, and its best is an optimistic estimate of each.
        if task is Task.GENERATION or not self._lists.units((task,), at.key):
            return [self._unit_rate(task, at)] * len(TENSOR)
        return [
            1 / cost_tables.scoring_s(task, at.gpu, size) / size if size <= at.gpus_per_machine else 0.0
            for size in TENSOR
        ]

    def _unit_rate(self, task: Task, at: DeviceClass) -> float:
        """Return the best rate of a task that does not train; 0 where it has no unit."""
        return max((option.speed for option in self._lists.units((task,), at.key)), default=0.0)

    def _train_rate(self, task: Task, at: DeviceClass) -> float:
        """Return the best rate of a task that trains; 0 where it is not allowed."""
        if not self._lists.cost_tables.problem.allows((task,), at):
            return 0.0
        found = self._lists.options((task,), at)
        return float(np.max(found.blocks[task].samples_per_s / found.num_gpus, initial=0.0))


def _trains(group: tuple[Task, ...]) -> bool:
    return any(task in TRAINING for task in group)


@cache
def _compositions(parts: int, groups: int) -> npt.NDArray[np.int64]:
    """Return all ways to divide `parts + groups - 1` parts among groups, at least one each, `[num_ways, groups]`.

    The additional `groups - 1` parts allow for rounding up.
    """
    total = parts + groups - 1
    chosen = list(combinations(range(1, total), groups - 1))
    cuts = np.array(chosen, dtype=np.int64).reshape(len(chosen), groups - 1)
    edges = np.hstack([np.zeros((len(cuts), 1), dtype=np.int64), cuts, np.full((len(cuts), 1), total)])
    return np.diff(edges, axis=1)
