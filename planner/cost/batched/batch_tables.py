"""Batch tables: the costs of many placements of one grouping as arrays, so that the batched oracle can index them.

A *grouping* is the tasks of each group, in order. A placement of it consists of units (in groups without training) and
whole meshes (in groups with training). `BatchTables` gives each distinct unit and mesh a number when it first appears,
and keeps its cost in a row of an array. `planner.cost.batched.evaluate_many` evaluates placements that are arrays of
such numbers and counts. All costs come from `CostTables`, so that the batched oracle adds up the same numbers as the
oracle.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.answer.evaluation import Violation
from planner.answer.placement import Group, Placement, Pool
from planner.cost.tables import validity
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tables.transfers import critic_transfer, trainer_transfers
from planner.cost.tasks.layer_cuts import TENSOR, BoolArray, FloatArray, IntArray
from planner.cost.tasks.version_overlap import NONE, Overlaps, overlaps_of
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import TRAINING, Task


@dataclass(frozen=True, slots=True)
class UnitTable:
    """Costs of units of groups without training.

    There is one row per unit. The last row is empty and stands for unused places.
    """

    at_class: IntArray
    """Index of the device class, in the order of sorted keys."""
    region: IntArray
    """Index of the region, in the order of sorted names."""
    group: IntArray
    """Index of the group; -1 in the empty row."""
    size: IntArray
    """Index of the unit's size in `layer_cuts.TENSOR`."""
    rates: FloatArray
    """Samples per second of one unit by task, `[num_units, num_tasks]`."""
    first_s: FloatArray
    """Seconds until generation's first sample is done; 0 without generation, -inf in the empty row."""
    tables: FloatArray
    """Samples of one unit by the end of a phase, `[num_units, num_knots]`; one column of zeros if no unit generates."""
    overlaps: Overlaps
    """Slow-down of overlapping windows."""
    usd: FloatArray
    """Rent of one unit in dollars per hour."""


@dataclass(frozen=True, slots=True)
class MeshTable:
    """Costs of meshes of one group with training; one row per mesh."""

    held: IntArray
    """Devices in units of each size by class, `[num_meshes, num_classes, num_sizes]`."""
    in_region: BoolArray
    """Whether the mesh has a pool in the region, `[num_meshes, num_regions]`."""
    region: IntArray
    """Index of the first pool's region, from which versions are published."""
    times: FloatArray
    """Busy seconds per step by task, `[num_meshes, num_tasks]`; 0 for generation, which is in `tables`."""
    tables: FloatArray
    """Samples by the end of a phase, `[num_meshes, num_regions, num_knots]`; one knot in groups without generation."""
    usd: FloatArray
    """Rent in dollars per hour."""
    usd_per_step: FloatArray
    """Egress dollars per step of the gradients between the mesh's regions."""


@dataclass(frozen=True, slots=True)
class TransferTables:
    """Network constants of `planner.cost.tables.transfers` for all pairs of regions.

    Arrays are `[num_sources, num_regions]`: from each region that may publish versions to each region. Entries without
    a route are inf. The names are those of `planner.cost.tables.transfers.RegionTransfer`.
    """

    weights_s: FloatArray
    link_s: FloatArray
    half_s: FloatArray
    """The part of `weights_s` that does not occupy the link: half a round trip."""
    trajectories_s: FloatArray
    samples_per_s: FloatArray
    scoring_s: FloatArray
    training_s: FloatArray
    usd_per_version: FloatArray
    usd_per_step_to_trainer: FloatArray
    usd_per_step_from_trainer: FloatArray
    uplink_s: FloatArray
    """Seconds of one version through the publishing region's uplink, `[num_sources]`; 0 without a cap."""
    downlink_per_s: FloatArray
    """Samples per second that may enter the publishing region, `[num_sources]`; inf without a cap."""
    critic_s: FloatArray
    """Seconds of the critic's weights; inf without a route or a critic."""
    critic_link_s: FloatArray
    """The part of `critic_s` that occupies the link."""
    critic_usd: FloatArray
    """Egress dollars of the critic's weights."""


class BatchTables:
    """Batch tables of one grouping, which is each group's tasks in the placements' order.

    Tables grow as new units and meshes appear. What violates a constraint by itself, or does not fit into memory, gets
    the number -1.
    """

    def __init__(self, cost_tables: CostTables, grouping: tuple[tuple[Task, ...], ...]) -> None:
        self.cost_tables = cost_tables
        self.grouping = grouping
        self.tasks = cost_tables.problem.workload.tasks
        self.classes = sorted(cost_tables.classes)
        self.regions = sorted({at.region.name for at in cost_tables.classes.values()})
        self.transfers = transfer_tables(cost_tables)
        self._class_at = {key: i for i, key in enumerate(self.classes)}
        self._region_at = {name: i for i, name in enumerate(self.regions)}
        self._unit_at: dict[tuple[int, Pool], int] = {}
        self._mesh_at: dict[tuple[int, tuple[Pool, ...]], int] = {}
        self._units: list[tuple[int, Pool, UnitCost]] = []
        self._meshes: dict[int, list[tuple[tuple[Pool, ...], list[UnitCost]]]] = {}
        self._unit_rows: UnitTable | None = None
        self._mesh_rows: dict[int, MeshTable] = {}

    def unit(self, group: int, pool: Pool) -> int:
        """Return the number of one unit of this pool of a group without training; -1 if it is invalid."""
        key = (group, pool)
        if key not in self._unit_at:
            # Pools that differ only in their number of units share one row.
            one = replace(pool, num_units=1)
            if pool.num_units != 1:
                self._unit_at[key] = self.unit(group, one)
                return self._unit_at[key]
            price = self.cost_tables.pool(self.grouping[group], one) if self._is_allowed(group, (one,)) else None
            self._unit_at[key] = len(self._units) if isinstance(price, UnitCost) else -1
            if isinstance(price, UnitCost):
                self._units.append((group, one, price))
                # The array of units lacks the new row, so it is made again at the next use.
                self._unit_rows = None
        return self._unit_at[key]

    def mesh(self, group: int, pools: tuple[Pool, ...]) -> int:
        """Return the number of this mesh among those of its group; -1 if it is invalid."""
        key = (group, pools)
        if key not in self._mesh_at:
            priced = [self.cost_tables.pool(self.grouping[group], pool) for pool in pools]
            fits = [each for each in priced if isinstance(each, UnitCost)]
            # A pool that does not fit into memory has a violation in place of its cost.
            if len(fits) < len(priced) or not self._is_allowed(group, pools):
                self._mesh_at[key] = -1
            else:
                rows = self._meshes.setdefault(group, [])
                self._mesh_at[key] = len(rows)
                rows.append((pools, fits))
                # The array of this group's meshes lacks the new row, so it is made again at the next use.
                self._mesh_rows.pop(group, None)
        return self._mesh_at[key]

    def numbers(self, placement: Placement) -> tuple[list[int], list[int], list[int]]:
        """Return (numbers of units, counts of units, number of each group's mesh) of a placement.

        A mesh number of -1 stands for a group without training; -2 anywhere stands for an invalid unit or mesh.
        """
        units: list[int] = []
        counts: list[int] = []
        meshes: list[int] = []
        for i, group in enumerate(placement.groups):
            if group.trains:
                number = self.mesh(i, group.pools)
                # -1 is taken by groups without training, so invalid meshes get -2.
                meshes.append(number if number >= 0 else -2)
                continue
            meshes.append(-1)
            for pool in group.pools:
                number = self.unit(i, pool)
                units.append(number if number >= 0 else -2)
                counts.append(pool.num_units)
        return units, counts, meshes

    @property
    def units(self) -> UnitTable:
        """Costs of all units that have a number."""
        if self._unit_rows is None:
            self._unit_rows = self._units_of()
        return self._unit_rows

    def meshes(self, group: int) -> MeshTable:
        """Return the costs of all meshes of a group that have a number."""
        if group not in self._mesh_rows:
            self._mesh_rows[group] = self._meshes_of(group)
        return self._mesh_rows[group]

    def has_meshes(self, group: int) -> bool:
        """Return whether any mesh of a group has a number."""
        return group in self._meshes

    def class_of(self, pool: Pool) -> DeviceClass:
        """Return the device class of a pool."""
        return self.cost_tables.classes[pool.device_class]

    def _is_allowed(self, group: int, pools: tuple[Pool, ...]) -> bool:
        """Return whether these pools are a valid group by themselves, memory and inventory apart."""
        found = next(validity.of_group(self.cost_tables, Group(tasks=self.grouping[group], pools=pools)), None)
        return not isinstance(found, Violation)

    def _units_of(self) -> UnitTable:
        num = len(self._units) + 1
        knots = len(self.cost_tables.phase_seconds) if self._has_phases(self._units) else 1
        # One more row than units: the last one stays empty.
        rates, tables = np.zeros((num, len(self.tasks))), np.zeros((num, knots))
        for row, (_, _, price) in enumerate(self._units):
            for task, rate in price.rates.items():
                rates[row, self.tasks.index(task)] = rate
            if price.phase is not None:
                tables[row] = price.phase.samples
        classes = [self.class_of(pool) for _, pool, _ in self._units]
        # Unused places of a batch point to the empty last row: it has rate 0, and its first sample at -inf never
        # determines a maximum.
        return UnitTable(
            at_class=np.array([self._class_at[at.key] for at in classes] + [0]),
            region=np.array([self._region_at[at.region.name] for at in classes] + [0]),
            group=np.array([group for group, _, _ in self._units] + [-1]),
            size=np.array([TENSOR.index(pool.unit_gpus) for _, pool, _ in self._units] + [0]),
            rates=rates,
            first_s=np.array([_first_s(price) for _, _, price in self._units] + [-np.inf]),
            tables=tables,
            overlaps=overlaps_of([each.phase.overlap if each.phase else NONE for _, _, each in self._units] + [NONE]),
            usd=np.array(
                [
                    (at.usd_per_gpu_hour or 0.0) * pool.unit_gpus
                    for at, (_, pool, _) in zip(classes, self._units, strict=True)
                ]
                + [0.0]
            ),
        )

    def _meshes_of(self, group: int) -> MeshTable:
        rows, tasks = self._meshes[group], self.grouping[group]
        samples = self.cost_tables.problem.workload.samples_per_step
        knots = len(self.cost_tables.phase_seconds) if Task.GENERATION in tasks else 1
        num, size = len(rows), len(self.regions)
        held = np.zeros((num, len(self.classes), len(TENSOR)), dtype=np.int64)
        in_region, tables = np.zeros((num, size), dtype=bool), np.zeros((num, size, knots))
        times, usd, usd_per_step = np.zeros((num, len(self.tasks))), np.zeros(num), np.zeros(num)
        for row, (pools, priced) in enumerate(rows):
            # Busy seconds of training tasks, then of scoring tasks (work divided by rate).
            for task, each in self.cost_tables.mesh(tasks, pools).times.items():
                times[row, self.tasks.index(task)] = each.total_s
            for task in (task for task in tasks if task not in TRAINING and task is not Task.GENERATION):
                rate = sum(pool.num_units * price.rates[task] for pool, price in zip(pools, priced, strict=True))
                times[row, self.tasks.index(task)] = samples / rate
            # Devices by class and size, regions, rent and phase tables, added up over the mesh's pools.
            for pool, price in zip(pools, priced, strict=True):
                at = self.class_of(pool)
                region = self._region_at[at.region.name]
                held[row, self._class_at[at.key], TENSOR.index(pool.unit_gpus)] += pool.num_gpus
                in_region[row, region] = True
                usd[row] += pool.num_gpus * (at.usd_per_gpu_hour or 0.0)
                if price.phase is not None:
                    tables[row, region] += pool.num_units * price.phase.samples
            ring = self.cost_tables.ring_usd_per_gbyte([self.class_of(pool).region.name for pool in pools])
            usd_per_step[row] = ring * self.cost_tables.gradient_bytes(tasks) / 1e9
        first = [self._region_at[self.class_of(pools[0]).region.name] for pools, _ in rows]
        return MeshTable(
            held=held,
            in_region=in_region,
            region=np.array(first),
            times=times,
            tables=tables,
            usd=usd,
            usd_per_step=usd_per_step,
        )

    @staticmethod
    def _has_phases(units: list[tuple[int, Pool, UnitCost]]) -> bool:
        return any(price.phase is not None for _, _, price in units)


def _first_s(price: UnitCost) -> float:
    return 0.0 if price.phase is None else price.phase.first_s


def transfer_tables(cost_tables: CostTables) -> TransferTables:
    """Return the network constants between all regions, sorted by name."""
    regions = sorted({at.region.name for at in cost_tables.classes.values()})
    return cost_tables.known("transfer tables", lambda: _transfer_tables(cost_tables, regions))


def _transfer_tables(cost_tables: CostTables, regions: list[str]) -> TransferTables:
    size = len(regions)
    names = (
        "weights_s",
        "link_s",
        "trajectories_s",
        "samples_per_s",
        "scoring_s",
        "training_s",
        "usd_per_version",
        "usd_per_step_to_trainer",
        "usd_per_step_from_trainer",
    )
    # [num_regions, num_regions] each; inf where there is no route.
    tables = {name: np.full((size, size), np.inf) for name in names}
    half_s, critic = np.full((size, size), np.inf), np.full((3, size, size), np.inf)
    uplink, downlink = np.zeros(size), np.full(size, np.inf)
    trains_critic = Task.CRITIC_TRAINING in cost_tables.problem.workload.models
    # Entry [h, r]: transfers between a publishing region h and a region r.
    for h, src in enumerate(regions):
        start = trainer_transfers(cost_tables, src)
        uplink[h], downlink[h] = start.uplink_s, start.samples_per_s
        for r, dst in enumerate(regions):
            for name in names if dst in start.transfers else ():
                tables[name][h, r] = getattr(start.transfers[dst], name)
            if dst in start.transfers:
                # What a version takes beside the link's own seconds: half a round trip.
                half_s[h, r] = tables["weights_s"][h, r] - tables["link_s"][h, r]
            if trains_critic and (transfer := critic_transfer(cost_tables, src, dst)) is not None:
                critic[:, h, r] = transfer.weights_s, transfer.link_s, transfer.usd_per_version
    return TransferTables(
        **tables,
        half_s=half_s,
        uplink_s=uplink,
        downlink_per_s=downlink,
        critic_s=critic[0],
        critic_link_s=critic[1],
        critic_usd=critic[2],
    )
