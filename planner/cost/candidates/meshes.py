"""Candidate meshes: for one device class or a pair of classes, all meshes that no other mesh dominates.

The oracle uses three sums of a mesh: the seconds of its training tasks (t), of its scoring tasks (s) and of generation
(g). The group itself needs t + s + g. A path counts the larger of t and what other groups train, and the larger of s
and what others score. So mesh a dominates mesh b if, on devices that fit wherever b's devices fit, it is no worse in
each sum of t, s and g that can occur (`dominance_sums`).

Meshes of two pools are many, so three things keep them few. `blocks_worth_pairing` drops dominated pools first. Rows
that differ only in training are collected in a *kind*, of which only the fastest pair counts. And a `MeshTimeLimits`
bounds the seconds that a mesh may take to be of use at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.candidates.dominance import undominated
from planner.cost.candidates.pool_layouts import PoolOptions, blocks_worth_pairing, kinds
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.transfers import RegionTransfer
from planner.cost.tasks.layer_cuts import BoolArray, FloatArray, IntArray
from planner.cost.tasks.phase_tables import JUMP_TOLERANCE, least_seconds
from planner.cost.tasks.training import PoolConnection, mesh_times
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import SCORING, TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTimeLimits:
    """Limits on the seconds of a mesh, from a known step time and lower bounds on what the other groups need."""

    busy_s: float = np.inf
    """Most seconds of all tasks of the mesh together."""
    path_s: float = np.inf
    """Most seconds of training, scoring and generation one after another, other groups included."""
    train_s: float = 0.0
    """Lower bound on the seconds that some other group trains."""
    score_s: float = 0.0
    """Lower bound on the seconds that some other group scores."""
    after_s: float = 0.0
    """Lower bound on generation elsewhere, including the transfers that it waits for."""

    def holds(self, train_s: FloatArray, score_s: FloatArray, gen_s: FloatArray | float = 0.0) -> BoolArray:
        """Return whether each mesh is within the limits, given its seconds of training, scoring and generation."""
        fits: BoolArray = train_s + score_s + gen_s <= self.busy_s
        if self.path_s < np.inf:
            phases_s = np.maximum(train_s, self.train_s) + np.maximum(score_s, self.score_s)
            fits &= phases_s + np.maximum(gen_s, self.after_s) <= self.path_s
        return fits

    def holds_all(self, times: Mapping[Task, FloatArray]) -> BoolArray:
        """Return whether each mesh is within the limits, given the seconds of each of its tasks."""
        size = len(next(iter(times.values())))
        of = [[each for task, each in times.items() if task in which] for which in (TRAINING, SCORING)]
        return self.holds(_sum(of[0], size), _sum(of[1], size), times.get(Task.GENERATION, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSet:
    """A set of meshes of one kind of machines, or of two kinds, with their times; arrays are `[num_meshes]`."""

    a: PoolOptions
    """Possible first pools."""
    rows_a: IntArray
    """Row of `a` of each mesh."""
    b: PoolOptions | None
    """Possible second pools; None if meshes have one pool."""
    rows_b: IntArray
    """Row of `b` of each mesh; empty if meshes have one pool."""
    times: Mapping[Task, FloatArray]
    """Seconds per step by task."""

    def take(self, rows: IntArray) -> "MeshSet":
        """Return the selected meshes."""
        return MeshSet(
            a=self.a,
            rows_a=self.rows_a[rows],
            b=self.b,
            rows_b=self.rows_b if self.b is None else self.rows_b[rows],
            times={task: each[rows] for task, each in self.times.items()},
        )

    @property
    def total_s(self) -> FloatArray:
        """Seconds of all tasks of each mesh together."""
        return _sum(list(self.times.values()), len(self.rows_a))

    @property
    def num_gpus(self) -> IntArray:
        """Devices of the first pool of each mesh."""
        return self.a.num_gpus[self.rows_a]


def single_pool_meshes(
    cost_tables: CostTables, tasks: tuple[Task, ...], at: DeviceClass, found: PoolOptions
) -> MeshSet:
    """Return the undominated meshes of one pool on a class like `at`, sorted by number of devices, then by time."""
    workload = cost_tables.problem.workload
    samples = float(workload.samples_per_step)
    # Seconds of each task: training from its blocks, scoring from rates, generation as a phase of the whole pool.
    times = {task: mesh_times(workload, [each], []).total_s for task, each in found.blocks.items()}
    times |= {task: samples / rate for task, rate in found.rates.items()}
    if found.generating is not None:
        made, rows = _tables(cost_tables, at, found), np.arange(len(found.unit))
        times[Task.GENERATION] = least_seconds(
            cost_tables.phase_seconds, lambda place: made[rows, place], rows.shape, samples
        )
    whole = MeshSet(a=found, rows_a=np.arange(len(found.unit)), b=None, rows_b=np.zeros(0, dtype=np.int64), times=times)
    # A mesh dominates another only if its devices fit wherever the other's do: larger `held`, fewer devices.
    costs = [(-found.held).astype(float), found.num_gpus.astype(float), *dominance_sums(cost_tables, tasks, times)]
    stays = np.flatnonzero(undominated(np.stack(costs, axis=1)))
    return whole.take(stays[np.lexsort((whole.total_s[stays], found.num_gpus[stays]))])


def dominance_sums(
    cost_tables: CostTables, tasks: tuple[Task, ...], times: Mapping[Task, FloatArray]
) -> list[FloatArray]:
    """Return the sums of a group's times that the oracle may use, `[num_meshes]` each; less is better in all of them.

    Which sums can occur depends on whether other groups train or score, and on where the critic is.
    """
    models, size = cost_tables.problem.workload.models, len(next(iter(times.values())))
    # Names as in the module's docstring: t training, s scoring, g generation.
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
    # By turns generation adds to the group's sum and to each path through this group.
    with_g = [each + g for each in used] + ([g] if scores_elsewhere and trains_elsewhere else [])
    # If the critic's weights travel, there is a path of training and scoring without generation.
    critic = [task in tasks for task in (Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING)]
    return with_g + (used if Task.CRITIC_TRAINING in models and not all(critic) else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class PairablePools:
    """Rows of `PoolOptions` on one class that may be one of two pools, sorted by kind.

    A *kind* is a set of rows that differ only in how long they train.
    """

    options: PoolOptions
    kind: IntArray
    """Kind of each row, ascending."""
    tables: FloatArray | None
    """Samples of the whole pool by the end of a phase, `[num_kinds, num_knots]`; None for groups without generation."""

    @property
    def starts(self) -> IntArray:
        """First row of each kind."""
        return np.flatnonzero(np.diff(self.kind, prepend=-1))

    @property
    def ends(self) -> IntArray:
        """Row after the last one of each kind."""
        return np.append(self.starts[1:], len(self.kind))

    def take(self, rows: BoolArray) -> "PairablePools":
        """Return the rows of the mask, with kinds numbered anew."""
        if rows.all():
            return self
        left = np.unique(self.kind[rows])
        return PairablePools(
            options=self.options.take(rows),
            kind=np.searchsorted(left, self.kind[rows]),
            tables=None if self.tables is None else self.tables[left],
        )


def pairable_pools(cost_tables: CostTables, at: DeviceClass, found: PoolOptions) -> PairablePools:
    """Return the rows of `found` that may be one of two pools, grouped by kind."""
    found = blocks_worth_pairing(found)
    kind, _ = kinds(found)
    # Rows of one kind stand together, so a kind is a slice. Its first row has the kind's phase table.
    found = found.take(np.argsort(kind, kind="stable"))
    kind = np.sort(kind)
    starts = np.flatnonzero(np.diff(kind, prepend=-1))
    tables = None if found.generating is None else _tables(cost_tables, at, found.take(starts))
    return PairablePools(options=found, kind=kind, tables=tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPairs:
    """All meshes of two pools on two given classes, and how these are connected."""

    cost_tables: CostTables
    tasks: tuple[Task, ...]
    a: PairablePools
    """Possible first pools; versions are published from their region if the actor trains here."""
    b: PairablePools
    """Possible second pools."""
    edges: tuple[PoolConnection, ...]
    """Connections of the gradient ring between the pools."""
    transfer: RegionTransfer | None
    """Transfers from the first pool's region to the second's, if the group generates in two regions; else None."""
    competitors: tuple[MeshSet | None, MeshSet | None]
    """Meshes of one pool on the first class and on the second class (None: not available). A pair must not be dominated
    by one of these."""

    def undominated_meshes(self, time_limits: MeshTimeLimits) -> MeshSet:
        """Return all meshes within the time limits that are not dominated."""
        few_a, few_b = (self._promising(one, other, time_limits) for one, other in ((self.a, self.b), (self.b, self.a)))
        fewer = replace(self, a=self.a.take(few_a), b=self.b.take(few_b))
        return fewer._pairs_in_time(time_limits) if few_a.any() and few_b.any() else fewer._empty()

    def _promising(self, one: PairablePools, other: PairablePools, time_limits: MeshTimeLimits) -> BoolArray:
        """Return the rows of `one` that may be in a mesh within the time limits, `[num_rows]`.

        Each row is paired with the best speed of the other side and without the other side's gradients, which is
        optimistic.
        """
        workload = self.cost_tables.problem.workload
        samples = workload.samples_per_step / workload.minibatches_per_step
        times = workload.epochs_per_step * workload.minibatches_per_step
        train_s, score_s, gen_s = (np.zeros(len(one.kind)) for _ in range(3))
        # Lower bound on training: compute at the joint speed, and this pool's gradients over the connection.
        for task, mine in one.options.blocks.items():
            speed = other.options.blocks[task].samples_per_s.max(initial=0.0)
            edge = self.edges[0]
            reduce_s = mine.payload_bytes * (mine.flows if edge.is_shared else 1.0) / edge.bytes_per_s
            compute_s = np.maximum(mine.stage_s, samples / (mine.samples_per_s + speed)) + mine.bubble_s
            train_s = train_s + times * (compute_s + reduce_s + mine.update_s)
        samples = float(workload.samples_per_step)
        # Lower bound on scoring and generation with the fastest other side.
        for task, rates in one.options.rates.items():
            score_s = score_s + samples / (rates + other.options.rates[task].max(initial=0.0))
        if one.tables is not None and other.tables is not None:
            made = one.tables + other.tables.max(axis=0, initial=0.0)
            rows = np.arange(len(made))
            phase_s = least_seconds(
                self.cost_tables.phase_seconds, lambda place: made[rows, place], rows.shape, samples
            )
            gen_s = phase_s[one.kind]
        return time_limits.holds(train_s, score_s, gen_s)

    def _empty(self) -> MeshSet:
        """Return an empty set of meshes."""
        none = np.zeros(0, dtype=np.int64)
        times = {task: np.zeros(0) for task in self.tasks}
        return MeshSet(a=self.a.options, rows_a=none, b=self.b.options, rows_b=none, times=times)

    def _pairs_in_time(self, time_limits: MeshTimeLimits) -> MeshSet:
        workload, a, b = self.cost_tables.problem.workload, self.a, self.b
        samples = float(workload.samples_per_step)
        # Training seconds of every pair of rows: [num_rows_a, num_rows_b] per task.
        trained = {
            task: mesh_times(workload, [mine.shaped(-1, 1), b.options.blocks[task].shaped(1, -1)], self.edges).total_s
            for task, mine in a.options.blocks.items()
        }
        total = _sum(list(trained.values()), (len(a.kind), len(b.kind)))
        # The fastest pair of rows of each pair of kinds: [num_kinds_a, num_kinds_b].
        least = np.minimum.reduceat(np.minimum.reduceat(total, a.starts, axis=0), b.starts, axis=1)
        scored = {
            task: samples / (rates[a.starts][:, None] + b.options.rates[task][b.starts][None, :])
            for task, rates in a.options.rates.items()
        }
        # Pairs of kinds within the time limits: [num_pairs] each.
        kind_a, kind_b = np.nonzero(time_limits.holds(least, _sum(list(scored.values()), least.shape)))
        if not len(kind_a):
            return self._empty()
        times = {Task.ACTOR_TRAINING: least[kind_a, kind_b]}
        times |= {task: each[kind_a, kind_b] for task, each in scored.items()}
        # Generation is one phase of both pools; the second region delivers at most what its route carries.
        if a.tables is not None and b.tables is not None:
            seconds, near, far = self.cost_tables.phase_seconds, a.tables, b.tables
            if self.transfer is not None:
                far = np.minimum(far, seconds * self.transfer.samples_per_s)
            times[Task.GENERATION] = least_seconds(
                seconds, lambda place: near[kind_a, place] + far[kind_b, place], kind_a.shape, samples
            )
        stays = self._undominated(kind_a, kind_b, times, time_limits)
        # Replace each pair of kinds by its fastest pair of rows, with that pair's exact times by task.
        rows_a, rows_b = self._rows(total, kind_a[stays], kind_b[stays])
        exact = {task: each[rows_a, rows_b] for task, each in trained.items()}
        exact |= {task: each[stays] for task, each in times.items() if task not in TRAINING}
        return MeshSet(a=a.options, rows_a=rows_a, b=b.options, rows_b=rows_b, times={t: exact[t] for t in self.tasks})

    def _generating(self, kind_a: IntArray, kind_b: IntArray, gen_s: FloatArray) -> list[BoolArray]:
        """Return, for each of the two pools, whether it finishes a sample within the phase, `[num_pairs]` each.

        A pool that finishes none idles, and its region neither receives weights nor sends samples.
        """
        seconds, found = self.cost_tables.phase_seconds, []
        for one, kind in ((self.a, kind_a), (self.b, kind_b)):
            assert one.tables is not None
            found.append(makes(seconds[np.argmax(one.tables > 0, axis=1)][kind], gen_s))
        return found

    def _undominated(
        self, kind_a: IntArray, kind_b: IntArray, times: Mapping[Task, FloatArray], time_limits: MeshTimeLimits
    ) -> IntArray:
        """Return the indices of the pairs that are within the time limits and that no other mesh dominates."""
        rows_a, rows_b = self.a.starts[kind_a], self.b.starts[kind_b]
        a, b = self.a.options, self.b.options
        ends: tuple[FloatArray | IntArray, ...] = (
            a.held[rows_a],
            a.num_gpus[rows_a],
            b.held[rows_b],
            b.num_gpus[rows_b],
        )
        costs = [_costs(self.cost_tables, self.tasks, ends, times)]
        if self.transfer is not None:
            costs[0] = np.column_stack([costs[0], *self._generating(kind_a, kind_b, times[Task.GENERATION])])
        # Meshes of one pool compete as pairs that use no devices of the other class (and leave `free`, all of it, to
        # others).
        for place, other in enumerate(self.competitors):
            if other is None:
                continue
            held, gpus = other.a.held[other.rows_a], other.a.num_gpus[other.rows_a]
            none, free = np.zeros(len(held)), np.full(len(held), 1 << 30)
            ends = (held, gpus, free, none) if place == 0 else (free, none, held, gpus)
            costs.append(_costs(self.cost_tables, self.tasks, ends, other.times))
            if self.transfer is not None:
                costs[-1] = np.column_stack([costs[-1], none == place, none != place])
        in_time = np.flatnonzero(time_limits.holds_all(times))
        # The competitors come first, so that of equal meshes the one with one pool stays; keep only the pairs' part.
        stays = undominated(np.concatenate([*costs[1:], costs[0][in_time]]))
        return in_time[stays[len(stays) - len(in_time) :]]

    def _rows(self, total: FloatArray, kind_a: IntArray, kind_b: IntArray) -> tuple[IntArray, IntArray]:
        """Return the rows of the fastest pair for each pair of kinds, `[num_pairs]` each."""
        starts_a, ends_a, starts_b, ends_b = self.a.starts, self.a.ends, self.b.starts, self.b.ends
        rows_a, rows_b = np.zeros(len(kind_a), dtype=np.int64), np.zeros(len(kind_b), dtype=np.int64)
        for i, (of_a, of_b) in enumerate(zip(kind_a, kind_b, strict=True)):
            # Seconds of all pairs of two kinds: [num_rows_a, num_rows_b].
            part = total[starts_a[of_a] : ends_a[of_a], starts_b[of_b] : ends_b[of_b]]
            row, column = divmod(int(part.argmin()), part.shape[1])
            rows_a[i], rows_b[i] = starts_a[of_a] + row, starts_b[of_b] + column
        return rows_a, rows_b


def first_s(cost_tables: CostTables, at: DeviceClass, found: PoolOptions) -> FloatArray:
    """Return the seconds until pools that generate by turns with training finish their first sample, `[num_rows]`."""
    made = found.generating
    assert made is not None
    first = made.load_s.copy()
    for tensor in np.unique(made.tensor).tolist():
        first[made.tensor == tensor] += cost_tables.replica(at.gpu, tensor).first_s
    return first


def makes(first_s: FloatArray | float, phase_s: FloatArray) -> BoolArray:
    """Return whether a pool's first sample is done within a phase; one that is done exactly at its end counts."""
    found: BoolArray = first_s <= phase_s * (1 + JUMP_TOLERANCE)
    return found


def _tables(cost_tables: CostTables, at: DeviceClass, found: PoolOptions) -> FloatArray:
    """Return the samples of whole pools by the end of a phase, `[num_rows, num_knots]`."""
    made = found.generating
    assert made is not None
    tables = np.empty((len(found.unit), len(cost_tables.phase_seconds)))
    # Rows with equal tensor degree and loading time share one table of shares: [num_slots, num_knots].
    for tensor in np.unique(made.tensor):
        for load_s in np.unique(made.load_s[made.tensor == tensor]):
            rows = np.flatnonzero((made.tensor == tensor) & (made.load_s == load_s))
            shares = cost_tables.shares(at.gpu, int(tensor), float(load_s))
            tables[rows] = (found.num_gpus[rows] // tensor)[:, None] * shares[made.place[rows]]
    return tables


def _costs(
    cost_tables: CostTables,
    tasks: tuple[Task, ...],
    ends: tuple[FloatArray | IntArray, ...],
    times: Mapping[Task, FloatArray],
) -> FloatArray:
    """Return `[num_meshes, num_columns]`: what dominance compares, less is better.

    `ends` is (held, devices) of the first pool and of the second pool.
    """
    held_a, gpus_a, held_b, gpus_b = ends
    # Units that use more of a machine fit wherever others fit, so `held` counts negatively.
    numbers = [-held_a, gpus_a, -held_b, gpus_b, *dominance_sums(cost_tables, tasks, times)]
    return np.stack([each.astype(float) for each in numbers], axis=1)


def _sum(arrays: Sequence[FloatArray], shape: int | tuple[int, ...]) -> FloatArray:
    total: FloatArray = np.zeros(shape)
    for each in arrays:
        total = total + each
    return total
