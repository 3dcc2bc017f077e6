"""Level 4 of HetRL's search: candidate lists, i.e. the best layouts of a group on given devices by the cost model.

Lists are short, best first and cached. A group without training is laid out unit by unit, so it has a list per class:
all undominated units, ordered by what they make in a window of typical length. A group with training is laid out as a
whole, so its list depends on the number of devices of each class. An individual of the search chooses by position in
the list.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.answer.placement import Pool
from planner.cost.candidates.columns import UnitColumn, may_group, unit_columns
from planner.cost.candidates.meshes import MeshSet, single_pool_meshes
from planner.cost.candidates.pool_layouts import PoolOptions, options
from planner.cost.tables.cost_tables import CostTables, MachineKind, UnitCost
from planner.cost.tasks.layer_cuts import FloatArray
from planner.cost.tasks.phase_tables import PhaseTable, end_s
from planner.cost.tasks.training import PoolTrainingTerms, mesh_times
from planner.methods.hetrl.settings import SETTINGS
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import TRAINING, Task

Tasks = tuple[Task, ...]
Held = tuple[tuple[str, int], ...]
"""(Class key, number of devices) of each class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOption:
    """Candidate unit of a group without training."""

    pool: Pool
    """A pool with `num_units` 1."""
    speed: float
    """Samples per second and device of all tasks of the group by turns, with generation at its full rate."""
    phase: PhaseTable | None
    """Phase table of generation, or None."""

    def made(self, window_s: float, span_s: float) -> float:
        """Return the samples that one device makes in a window if a step leaves it `span_s` seconds."""
        assert self.phase is not None
        return min(self.phase.overlapped_samples(window_s, span_s)[0] / self.pool.unit_gpus, self.speed * span_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshOption:
    """Candidate mesh of a group with training."""

    pools: tuple[Pool, ...]
    busy_s: float
    """Busy seconds per step of all tasks of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairablePools:
    """Pools of one class that may be one of two pools of a mesh; arrays are `[num_pools]`."""

    pools: tuple[Pool, ...]
    blocks: Mapping[Task, PoolTrainingTerms]
    rates: Mapping[Task, FloatArray]
    """Samples per second of the whole pool, by task that does not train."""


class CandidateLists:
    """Candidate lists of one problem. Its costs are kept in `CostTables`, so that the exact method finds them as
    well."""

    def __init__(self, cost_tables: CostTables) -> None:
        self.cost_tables = cost_tables
        self._units: dict[Tasks, dict[str, tuple[UnitOption, ...]]] = {}
        self._span_s: float | None = None
        self._meshes: dict[tuple[Tasks, Held], tuple[MeshOption, ...]] = {}
        self._blocks: dict[tuple[Tasks, MachineKind, int], tuple[PoolOptions, FloatArray]] = {}

    def units(self, tasks: Tasks, key: str) -> tuple[UnitOption, ...]:
        """Return the candidate units of a group without training on a class, those that make most first."""
        if tasks not in self._units:
            by_class: dict[str, list[UnitColumn]] = {}
            for column in unit_columns(self.cost_tables, tasks):
                by_class.setdefault(column.unit.device_class, []).append(column)
            span_s = self.span_s if Task.GENERATION in tasks else 1.0
            self._units[tasks] = {
                at: tuple(_unit_option(each) for each in sorted(found, key=lambda each: -self._worth(each, span_s)))
                for at, found in by_class.items()
            }
        return self._units[tasks].get(key, ())

    @property
    def span_s(self) -> float:
        """Typical seconds of a step: twice what the whole fleet needs to make a step's samples in one window."""
        if self._span_s is None:
            columns = unit_columns(self.cost_tables, (Task.GENERATION,))
            self._span_s = 2 * _window_s(self.cost_tables, columns) if columns else 1.0
        return self._span_s

    def _worth(self, column: UnitColumn, span_s: float) -> float:
        """Return samples per second and device of all tasks by turns, with generation in a typical window."""
        rates = dict(column.rates)
        if column.phase is not None:
            eta = self.cost_tables.problem.workload.eta
            full = rates[Task.GENERATION] if eta else np.inf
            rates[Task.GENERATION] = max(1e-9, min(full, column.phase.samples_within(max(1, eta) * span_s) / span_s))
        return 1 / sum(1 / rate for rate in rates.values()) / column.unit.unit_gpus

    def meshes(self, tasks: Tasks, held: Held) -> tuple[MeshOption, ...]:
        """Return the candidate meshes on at most these devices of one class or two, least busy first."""
        if (tasks, held) not in self._meshes:
            found: list[MeshOption] = []
            able = [
                (key, n) for key, n in held if self.cost_tables.problem.allows(tasks, self.cost_tables.classes[key])
            ]
            if may_group(self.cost_tables, tasks):
                found += [option for key, num in able for option in self._single_pool_options(tasks, key, num)]
                # At most two pools, whatever the limits allow: the callers give at most two classes.
                if len(able) > 1 and self.cost_tables.problem.limits.max_train_blocks > 1:
                    found += self._two_pool_options(tasks, able[0], able[1])
            # Few options are enough: genomes choose by position, and busy seconds are a good order.
            self._meshes[tasks, held] = tuple(sorted(found, key=lambda each: each.busy_s))[: SETTINGS.max_meshes]
        return self._meshes[tasks, held]

    def options(self, tasks: Tasks, at: DeviceClass) -> PoolOptions:
        """Return all possible pools on the class that fit into memory."""
        kind, num = self.cost_tables.kind(at), at.num_machines
        find = partial(options, self.cost_tables, tasks, at, num)
        return self.cost_tables.known(("options", tasks, kind, num), find)

    def quickest(self, tasks: Tasks, key: str, num_gpus: int) -> tuple[int, Mapping[Task, float]] | None:
        """Return (devices, seconds by task) of the least busy mesh with at most this number of devices of one class.

        The result is None without one.
        """
        if not self.cost_tables.problem.allows(tasks, self.cost_tables.classes[key]) or not may_group(
            self.cost_tables, tasks
        ):
            return None
        found = self._single_pool_meshes(tasks, self.cost_tables.classes[key])
        # Rows of `found` are undominated meshes of one pool; keep those with few enough devices.
        num = found.a.num_gpus[found.rows_a]
        rows = np.flatnonzero(num <= num_gpus)
        if not len(rows):
            return None
        best = rows[int(found.total_s[rows].argmin())]
        return int(num[best]), {task: float(each[best]) for task, each in found.times.items()}

    def _single_pool_meshes(self, tasks: Tasks, at: DeviceClass) -> MeshSet:
        """Return the undominated meshes of one pool on the class."""
        known = ("alone", tasks, self.cost_tables.kind(at), at.num_machines)
        return self.cost_tables.known(
            known, lambda: single_pool_meshes(self.cost_tables, tasks, at, self.options(tasks, at))
        )

    def _single_pool_options(self, tasks: Tasks, key: str, num_gpus: int) -> Iterator[MeshOption]:
        """Yield the least busy meshes of one pool."""
        at = self.cost_tables.classes[key]
        found = self._single_pool_meshes(tasks, at)
        rows = np.flatnonzero(found.a.num_gpus[found.rows_a] <= num_gpus)
        busy_s = found.total_s[rows]
        for i in np.argsort(busy_s, kind="stable")[: SETTINGS.max_meshes]:
            yield MeshOption(pools=(found.a.pool(at, int(found.rows_a[rows[i]])),), busy_s=float(busy_s[i]))

    def _two_pool_options(self, tasks: Tasks, first: tuple[str, int], second: tuple[str, int]) -> Iterator[MeshOption]:
        """Yield the least busy meshes of two pools.

        Between regions both orders are tried, since the first pool's region publishes versions.
        """
        # The fastest few pools on either side.
        a, b = self._pairable_pools(tasks, *first), self._pairable_pools(tasks, *second)
        if not a.pools or not b.pools:
            return
        classes, workload = self.cost_tables.classes, self.cost_tables.problem.workload
        edges = self.cost_tables.edges((classes[first[0]], classes[second[0]]))
        # Busy seconds of every pair of pools: [num_a, num_b].
        busy_s = np.zeros((len(a.pools), len(b.pools)))
        for task in tasks:
            if task in TRAINING:
                sides = [a.blocks[task].shaped(-1, 1), b.blocks[task].shaped(1, -1)]
                busy_s = busy_s + mesh_times(workload, sides, edges).total_s
            else:
                busy_s = busy_s + workload.samples_per_step / (a.rates[task][:, None] + b.rates[task][None, :])
        is_near = classes[first[0]].region.name == classes[second[0]].region.name
        for flat in np.argsort(busy_s, axis=None, kind="stable")[: SETTINGS.max_two_pool_meshes]:
            i, j = divmod(int(flat), len(b.pools))
            yield MeshOption(pools=(a.pools[i], b.pools[j]), busy_s=float(busy_s[i, j]))
            if not is_near:
                yield MeshOption(pools=(b.pools[j], a.pools[i]), busy_s=float(busy_s[i, j]))

    def _pairable_pools(self, tasks: Tasks, key: str, num_gpus: int) -> _PairablePools:
        """Return the fastest few pools of a class.

        Generation counts at its full rate, which is good enough for ranking.
        """
        at = self.cost_tables.classes[key]
        known = (tasks, self.cost_tables.kind(at), at.num_machines)
        if known not in self._blocks:
            # Classes with equal machines share these. Fully sharded layouts cannot be joined to another pool.
            found = self.options(tasks, at)
            found = found.take(~found.is_full)
            alone_s = [
                mesh_times(self.cost_tables.problem.workload, [each], []).total_s for each in found.blocks.values()
            ]
            self._blocks[known] = found, sum(alone_s, np.zeros(len(found.unit)))
        found, train_s = self._blocks[known]
        # Fastest pools with at most `num_gpus` devices, then without those that do not fit into memory.
        rows = np.flatnonzero(found.num_gpus <= num_gpus)
        best = rows[np.argsort(train_s[rows], kind="stable")[: SETTINGS.paired_pools]]
        pools = [found.pool(at, int(row)) for row in best]
        priced = [self.cost_tables.pool(tasks, pool) for pool in pools]
        keep = [(i, pools[i], price) for i, price in enumerate(priced) if isinstance(price, UnitCost)]
        rates = {
            task: np.array([pool.num_units * price.rates[task] for _, pool, price in keep])
            for task in tasks
            if task not in TRAINING
        }
        rows = best[[i for i, _, _ in keep]]
        few = {task: each.take(rows) for task, each in found.blocks.items()}
        return _PairablePools(pools=tuple(pool for _, pool, _ in keep), blocks=few, rates=rates)


def candidate_lists(cost_tables: CostTables) -> CandidateLists:
    """Return the candidate lists of a problem, shared by all searches."""
    return cost_tables.known("candidate lists", lambda: CandidateLists(cost_tables))


def _unit_option(column: UnitColumn) -> UnitOption:
    """Return the unit with its joint rate per device."""
    a_sample_s = sum(1 / rate for rate in column.rates.values())
    return UnitOption(pool=column.unit, speed=1 / a_sample_s / column.unit.unit_gpus, phase=column.phase)


def _window_s(cost_tables: CostTables, columns: Sequence[UnitColumn]) -> float:
    """Return the seconds in which all classes, each with its best units, make a step's samples."""
    best: dict[str, FloatArray] = {}
    for column in columns:
        assert column.phase is not None
        key = column.unit.device_class
        # Samples by each knot if all devices of the class were such units; the best of any units at each knot counts.
        each = cost_tables.classes[key].num_gpus / column.unit.unit_gpus * column.phase.samples
        best[key] = np.maximum(best.get(key, 0.0), each)
    made: FloatArray = np.sum(list(best.values()), axis=0)
    return end_s(cost_tables.phase_seconds, made, float(cost_tables.problem.workload.samples_per_step))
