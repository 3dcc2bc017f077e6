"""Which meshes are worth choosing among: of one class, and of two.

Of a mesh the oracle uses its devices and three sums: seconds of its tasks that train (t), that score (s), and of
generation (g). They meet `t + s + g` in the group's own time, and in a path the larger of `t` and what other groups
train, and of `s` and what others score. So a mesh is dropped if another one, on devices that fit wherever its fit, is
no worse in each such sum that can count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.classes import DeviceClass
from planner.cost.cuts import BoolArray, FloatArray, IntArray
from planner.cost.options import Options, blocks_worth_pairing, kinds
from planner.cost.pareto import undominated
from planner.cost.phases import KNOT, ends_s
from planner.cost.pools import Prices
from planner.cost.training import Edge, mesh_times
from planner.cost.ways import Way
from planner.question.workload import SCORING, TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a mesh may take: seconds of all its tasks together, and of a path beside what other groups take at least."""

    busy_s: float = np.inf
    path_s: float = np.inf
    train_s: float = 0.0
    score_s: float = 0.0
    after_s: float = 0.0
    """Generation and what it waits for."""

    def holds(self, train_s: FloatArray, score_s: FloatArray, gen_s: FloatArray | float = 0.0) -> BoolArray:
        """Of each mesh."""
        fits: BoolArray = train_s + score_s + gen_s <= self.busy_s
        if self.path_s < np.inf:
            phases_s = np.maximum(train_s, self.train_s) + np.maximum(score_s, self.score_s)
            fits &= phases_s + np.maximum(gen_s, self.after_s) <= self.path_s
        return fits

    def holds_all(self, times: Mapping[Task, FloatArray]) -> BoolArray:
        """Of each mesh, by its tasks' seconds."""
        size = len(next(iter(times.values())))
        of = [[each for task, each in times.items() if task in which] for which in (TRAINING, SCORING)]
        return self.holds(_sum(of[0], size), _sum(of[1], size), times.get(Task.GENERATION, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Meshes of one kind of machines, or of two (`b`): rows of `Options`, and their times."""

    a: Options
    rows_a: IntArray
    b: Options | None
    rows_b: IntArray
    times: Mapping[Task, FloatArray]

    def take(self, rows: IntArray) -> "Found":
        return Found(
            a=self.a, rows_a=self.rows_a[rows], b=self.b,
            rows_b=self.rows_b if self.b is None else self.rows_b[rows],
            times={task: each[rows] for task, each in self.times.items()},
        )  # fmt: skip

    @property
    def total_s(self) -> FloatArray:
        return _sum(list(self.times.values()), len(self.rows_a))

    @property
    def num_gpus(self) -> IntArray:
        """Of the first pool."""
        return self.a.num_gpus[self.rows_a]


def alone(prices: Prices, tasks: tuple[Task, ...], at: DeviceClass, found: Options) -> Found:
    """Of one class like `at`, all that nothing beats. Sorted by devices."""
    workload = prices.problem.workload
    samples = float(workload.samples_per_step)
    times = {task: mesh_times(workload, [each], []).total_s for task, each in found.blocks.items()}
    times |= {task: samples / rate for task, rate in found.rates.items()}
    if found.generating is not None:
        made, rows = _tables(prices, at, found), np.arange(len(found.unit))
        times[Task.GENERATION] = ends_s(prices.phase_seconds, lambda place: made[rows, place], rows.shape, samples)
    whole = Found(a=found, rows_a=np.arange(len(found.unit)), b=None, rows_b=np.zeros(0, dtype=np.int64), times=times)
    costs = [(-found.held).astype(float), found.num_gpus.astype(float), *sums(prices, tasks, times)]
    stays = np.flatnonzero(undominated(np.stack(costs, axis=1)))
    return whole.take(stays[np.lexsort((whole.total_s[stays], found.num_gpus[stays]))])


def sums(prices: Prices, tasks: tuple[Task, ...], times: Mapping[Task, FloatArray]) -> list[FloatArray]:
    """Everything that the oracle may use of a group's times; the less the better."""
    models, size = prices.problem.workload.models, len(next(iter(times.values())))
    t = _sum([each for task, each in times.items() if task in TRAINING], size)
    s = _sum([each for task, each in times.items() if task in SCORING], size)
    g = times.get(Task.GENERATION)
    trains_elsewhere = any(task in models and task not in tasks for task in TRAINING)
    scores_elsewhere = any(task in models and task not in tasks for task in SCORING)
    used = [t + s]
    used += [t] if scores_elsewhere else []
    used += [s] if trains_elsewhere else []
    if g is None:
        return used
    with_g = [each + g for each in used] + ([g] if scores_elsewhere and trains_elsewhere else [])
    critic = [task in tasks for task in (Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING)]
    return with_g + (used if Task.CRITIC_TRAINING in models and not all(critic) else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Options of one kind of machines that may be one pool of two, those together that differ in training only."""

    options: Options
    kind: IntArray
    """Of each row, ascending."""
    tables: FloatArray | None
    """[kinds, knots]: samples by a phase's end, of groups that generate."""

    @property
    def starts(self) -> IntArray:
        """First row of each kind."""
        return np.flatnonzero(np.diff(self.kind, prepend=-1))

    @property
    def ends(self) -> IntArray:
        return np.append(self.starts[1:], len(self.kind))

    def some(self, rows: BoolArray) -> "Side":
        """Only these rows."""
        if rows.all():
            return self
        left = np.unique(self.kind[rows])
        return Side(
            options=self.options.take(rows), kind=np.searchsorted(left, self.kind[rows]),
            tables=None if self.tables is None else self.tables[left],
        )  # fmt: skip


def side(prices: Prices, at: DeviceClass, found: Options) -> Side:
    """Of what `found` offers."""
    found = blocks_worth_pairing(found)
    kind, _ = kinds(found)
    found = found.take(np.argsort(kind, kind="stable"))
    kind = np.sort(kind)
    starts = np.flatnonzero(np.diff(kind, prepend=-1))
    tables = None if found.generating is None else _tables(prices, at, found.take(starts))
    return Side(options=found, kind=kind, tables=tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Meshes of two pools, and what joins them."""

    prices: Prices
    tasks: tuple[Task, ...]
    a: Side
    b: Side
    edges: tuple[Edge, ...]
    way: Way | None
    """From the first pool's region to the second's, if the group generates in two."""
    beside: tuple[Found | None, Found | None]
    """Meshes of a alone, and of b alone, that a pair must beat."""

    def found(self, room: Room) -> Found:
        """All that there is room for and that nothing beats."""
        few_a, few_b = (self._promising(one, other, room) for one, other in ((self.a, self.b), (self.b, self.a)))
        fewer = replace(self, a=self.a.some(few_a), b=self.b.some(few_b))
        return fewer._all(room) if few_a.any() and few_b.any() else fewer._nothing()

    def _promising(self, one: Side, other: Side, room: Room) -> BoolArray:
        """Rows that may be in a mesh for which there is room: with the fastest other side, and the fewest gradients."""
        workload = self.prices.problem.workload
        samples = workload.samples_per_step / workload.minibatches_per_step
        times = workload.epochs_per_step * workload.minibatches_per_step
        train_s, score_s, gen_s = (np.zeros(len(one.kind)) for _ in range(3))
        for task, mine in one.options.blocks.items():
            speed = other.options.blocks[task].samples_per_s.max(initial=0.0)
            edge = self.edges[0]
            reduce_s = mine.payload_bytes * (mine.flows if edge.is_shared else 1.0) / edge.bytes_per_s
            compute_s = np.maximum(mine.stage_s, samples / (mine.samples_per_s + speed)) + mine.bubble_s
            train_s = train_s + times * (compute_s + reduce_s + mine.update_s)
        samples = float(workload.samples_per_step)
        for task, rates in one.options.rates.items():
            score_s = score_s + samples / (rates + other.options.rates[task].max(initial=0.0))
        if one.tables is not None and other.tables is not None:
            made = one.tables + other.tables.max(axis=0, initial=0.0)
            rows = np.arange(len(made))
            phase_s = ends_s(self.prices.phase_seconds, lambda place: made[rows, place], rows.shape, samples)
            gen_s = phase_s[one.kind]
        return room.holds(train_s, score_s, gen_s)

    def _nothing(self) -> Found:
        none = np.zeros(0, dtype=np.int64)
        times = {task: np.zeros(0) for task in self.tasks}
        return Found(a=self.a.options, rows_a=none, b=self.b.options, rows_b=none, times=times)

    def _all(self, room: Room) -> Found:
        workload, a, b = self.prices.problem.workload, self.a, self.b
        samples = float(workload.samples_per_step)
        trained = {
            task: mesh_times(workload, [mine.shaped(-1, 1), b.options.blocks[task].shaped(1, -1)], self.edges).total_s
            for task, mine in a.options.blocks.items()
        }
        total = _sum(list(trained.values()), (len(a.kind), len(b.kind)))
        least = np.minimum.reduceat(np.minimum.reduceat(total, a.starts, axis=0), b.starts, axis=1)
        scored = {
            task: samples / (rates[a.starts][:, None] + b.options.rates[task][b.starts][None, :])
            for task, rates in a.options.rates.items()
        }
        kind_a, kind_b = np.nonzero(room.holds(least, _sum(list(scored.values()), least.shape)))
        if not len(kind_a):
            return self._nothing()
        times = {Task.ACTOR_TRAINING: least[kind_a, kind_b]}
        times |= {task: each[kind_a, kind_b] for task, each in scored.items()}
        if a.tables is not None and b.tables is not None:
            seconds, near, far = self.prices.phase_seconds, a.tables, b.tables
            if self.way is not None:
                far = np.minimum(far, seconds * self.way.samples_per_s)
            times[Task.GENERATION] = ends_s(
                seconds, lambda place: near[kind_a, place] + far[kind_b, place], kind_a.shape, samples
            )
        stays = self._undominated(kind_a, kind_b, times, room)
        rows_a, rows_b = self._rows(total, kind_a[stays], kind_b[stays])
        exact = {task: each[rows_a, rows_b] for task, each in trained.items()}
        exact |= {task: each[stays] for task, each in times.items() if task not in TRAINING}
        return Found(a=a.options, rows_a=rows_a, b=b.options, rows_b=rows_b, times={t: exact[t] for t in self.tasks})

    def _generating(self, kind_a: IntArray, kind_b: IntArray, gen_s: FloatArray) -> list[BoolArray]:
        """Of groups that generate in two regions: which of the pools have a sample done in the phase. Those that have
        none idle, and nothing is on its way from there."""
        seconds, found = self.prices.phase_seconds, []
        for one, kind in ((self.a, kind_a), (self.b, kind_b)):
            assert one.tables is not None
            found.append(makes(seconds[np.argmax(one.tables > 0, axis=1)][kind], gen_s))
        return found

    def _undominated(
        self, kind_a: IntArray, kind_b: IntArray, times: Mapping[Task, FloatArray], room: Room
    ) -> IntArray:
        rows_a, rows_b = self.a.starts[kind_a], self.b.starts[kind_b]
        a, b = self.a.options, self.b.options
        ends: tuple[FloatArray | IntArray, ...] = (
            a.held[rows_a], a.num_gpus[rows_a], b.held[rows_b], b.num_gpus[rows_b]
        )  # fmt: skip
        costs = [_costs(self.prices, self.tasks, ends, times)]
        if self.way is not None:
            costs[0] = np.column_stack([costs[0], *self._generating(kind_a, kind_b, times[Task.GENERATION])])
        for place, other in enumerate(self.beside):
            if other is None:
                continue
            held, gpus = other.a.held[other.rows_a], other.a.num_gpus[other.rows_a]
            none, free = np.zeros(len(held)), np.full(len(held), 1 << 30)
            ends = (held, gpus, free, none) if place == 0 else (free, none, held, gpus)
            costs.append(_costs(self.prices, self.tasks, ends, other.times))
            if self.way is not None:
                costs[-1] = np.column_stack([costs[-1], none == place, none != place])
        in_time = np.flatnonzero(room.holds_all(times))
        stays = undominated(np.concatenate([*costs[1:], costs[0][in_time]]))
        return in_time[stays[len(stays) - len(in_time) :]]

    def _rows(self, total: FloatArray, kind_a: IntArray, kind_b: IntArray) -> tuple[IntArray, IntArray]:
        """The fastest rows of each pair of kinds."""
        starts_a, ends_a, starts_b, ends_b = self.a.starts, self.a.ends, self.b.starts, self.b.ends
        rows_a, rows_b = np.zeros(len(kind_a), dtype=np.int64), np.zeros(len(kind_b), dtype=np.int64)
        for i, (of_a, of_b) in enumerate(zip(kind_a, kind_b, strict=True)):
            part = total[starts_a[of_a] : ends_a[of_a], starts_b[of_b] : ends_b[of_b]]
            row, column = divmod(int(part.argmin()), part.shape[1])
            rows_a[i], rows_b[i] = starts_a[of_a] + row, starts_b[of_b] + column
        return rows_a, rows_b


def first_s(prices: Prices, at: DeviceClass, found: Options) -> FloatArray:
    """[rows]: until the first sample of pools that generate by turns with training."""
    made = found.generating
    assert made is not None
    first = made.load_s.copy()
    for tensor in np.unique(made.tensor).tolist():
        first[made.tensor == tensor] += prices.replica(at.gpu, tensor).first_s
    return first


def makes(first_s: FloatArray | float, phase_s: FloatArray) -> BoolArray:
    """Whether a pool's first sample is done in a phase; one that is done at its end counts."""
    found: BoolArray = first_s <= phase_s * (1 + KNOT)
    return found


def _tables(prices: Prices, at: DeviceClass, found: Options) -> FloatArray:
    """[rows, knots]: samples of whole pools by a phase's end."""
    made = found.generating
    assert made is not None
    tables = np.empty((len(found.unit), len(prices.phase_seconds)))
    for tensor in np.unique(made.tensor):
        for load_s in np.unique(made.load_s[made.tensor == tensor]):
            rows = np.flatnonzero((made.tensor == tensor) & (made.load_s == load_s))
            shares = prices.shares(at.gpu, int(tensor), float(load_s))
            tables[rows] = (found.num_gpus[rows] // tensor)[:, None] * shares[made.place[rows]]
    return tables


def _costs(
    prices: Prices,
    tasks: tuple[Task, ...],
    ends: tuple[FloatArray | IntArray, ...],
    times: Mapping[Task, FloatArray],
) -> FloatArray:
    held_a, gpus_a, held_b, gpus_b = ends
    numbers = [-held_a, gpus_a, -held_b, gpus_b, *sums(prices, tasks, times)]
    return np.stack([each.astype(float) for each in numbers], axis=1)


def _sum(arrays: Sequence[FloatArray], shape: int | tuple[int, ...]) -> FloatArray:
    total: FloatArray = np.zeros(shape)
    for each in arrays:
        total = total + each
    return total
