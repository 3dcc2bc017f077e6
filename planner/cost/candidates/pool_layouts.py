"""Training layouts of one kind of machines that fit into memory, as arrays: one row is one possible pool of a mesh.

A row is a unit size, a cut (`planner.cost.tasks.layer_cuts`) and, if the group also generates, the tensor degree of
generation. Two kinds of dominated layouts are left out at once, since they differ from another row in memory only: an
unsharded optimizer where it could be sharded, and recomputation of activations where they fit without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.answer.placement import Layout, Pool
from planner.cost.candidates.dominance import undominated
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks import layer_cuts as cuts
from planner.cost.tasks import memory, training
from planner.cost.tasks.layer_cuts import FULL, UNSHARDED, BoolArray, Cuts, FloatArray, IntArray
from planner.cost.tasks.training import PoolTrainingTerms
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLayouts:
    """How each row generates in a group that generates and trains by turns; arrays are `[num_rows]`."""

    tensor: IntArray
    """Tensor-parallel degree of a generation replica."""
    place: IntArray
    """Index in `generation.SLOTS` of the sequences that fit beside the resident models."""
    load_s: FloatArray
    """Seconds to load a new version into the replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Possible pools of a group with training on one kind of machines; arrays are `[num_rows]`."""

    tasks: tuple[Task, ...]
    """Tasks of the group."""
    cuts: Mapping[int, Cuts]
    """Cuts by unit size. A row is cut `row` of its unit size `unit`."""
    unit: IntArray
    """Devices of a unit."""
    row: IntArray
    """Index into `cuts[unit]`."""
    num_units: IntArray
    """Units of the whole pool."""
    held: IntArray
    """Devices of one machine that units of this size can use. More is better, because other groups' units then fit as
    well."""
    is_full: BoolArray
    """Whether parameters are fully sharded."""
    blocks: Mapping[Task, PoolTrainingTerms]
    """Training numbers of the pool, by task that trains."""
    rates: Mapping[Task, FloatArray]
    """Samples per second of the whole pool, by task that scores."""
    generating: GenerationLayouts | None
    """How the rows generate; None for groups without generation."""

    @property
    def num_gpus(self) -> IntArray:
        """Devices of the whole pool."""
        return self.unit * self.num_units

    def take(self, rows: IntArray | BoolArray) -> "PoolOptions":
        """Return the selected rows; `rows` is an index array or a mask."""
        places: IntArray = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        made = self.generating
        return PoolOptions(
            tasks=self.tasks,
            cuts=self.cuts,
            unit=self.unit[places],
            row=self.row[places],
            num_units=self.num_units[places],
            held=self.held[places],
            is_full=self.is_full[places],
            blocks={task: each.take(places) for task, each in self.blocks.items()},
            rates={task: each[places] for task, each in self.rates.items()},
            generating=made
            and GenerationLayouts(tensor=made.tensor[places], place=made.place[places], load_s=made.load_s[places]),
        )

    def pool(self, at: DeviceClass, row: int) -> Pool:
        """Return one row as a pool of the given class, which must be of this kind of machines."""
        unit = int(self.unit[row])
        train = self.cuts[unit].layout(int(self.row[row]))
        others = Layout(tensor=unit)
        layouts = []
        for task in self.tasks:
            layout = train if task in TRAINING else others
            if task is Task.GENERATION and self.generating is not None:
                layout = Layout(tensor=int(self.generating.tensor[row]))
            layouts.append((task, layout))
        return Pool(device_class=at.key, unit_gpus=unit, num_units=int(self.num_units[row]), layouts=tuple(layouts))


def options(cost_tables: CostTables, tasks: tuple[Task, ...], at: DeviceClass, most_machines: int) -> PoolOptions:
    """Return the rows for a class like `at` with `most_machines` machines that fit into memory."""
    parts = [
        part
        for unit in cuts.TENSOR
        if unit <= min(at.gpus_per_machine, cost_tables.problem.limits.max_tensor)
        for part in _of_unit(cost_tables, tasks, at, unit, most_machines)
    ]
    return _joined(tasks, parts)


def kinds(found: PoolOptions) -> tuple[IntArray, IntArray]:
    """Group the rows that differ only in how long they train.

    Return (group index of each row, one row of each group).
    """
    keys = [found.held, found.num_gpus, *found.rates.values()]
    if found.generating is not None:
        keys += [found.generating.tensor, found.generating.place, found.generating.load_s]
    _, first, kind = np.unique(np.stack(keys, axis=1), axis=0, return_index=True, return_inverse=True)
    return kind.reshape(-1), first


def blocks_worth_pairing(found: PoolOptions) -> PoolOptions:
    """Return the rows that may be one of two pools of a mesh.

    They are not fully sharded, and no other row is as good in everything that the time of a mesh depends on.
    """
    found = found.take(~found.is_full)
    costs: list[FloatArray | IntArray] = [-found.held, found.num_gpus]
    costs += [-rate for rate in found.rates.values()]
    if found.generating is not None:
        made = found.generating
        # Rows that generate differently are compared only if tensor degree and number of devices are equal.
        costs += [made.tensor, -made.tensor, -found.num_gpus, -made.place, made.load_s]
    for each in found.blocks.values():
        costs += [each.stage_s, -each.samples_per_s, each.bubble_s, each.payload_bytes, each.update_s]
    first = next(iter(found.blocks.values()))
    costs += [first.data, first.flows, -first.ring_bytes_per_s, first.ring_latency_s]
    return found.take(undominated(np.stack(costs, axis=1).astype(float)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """One training task on all cuts of one unit size; arrays are `[num_cuts]`."""

    resident_bytes: FloatArray
    transient_bytes: FloatArray
    blocks: PoolTrainingTerms


def _of_unit(
    cost_tables: CostTables, tasks: tuple[Task, ...], at: DeviceClass, unit: int, most_machines: int
) -> list["_Part"]:
    workload = cost_tables.problem.workload
    scored = [task for task in tasks if task not in TRAINING and task is not Task.GENERATION]
    layers = min(workload.models[task].num_layers for task in tasks if task in TRAINING)
    key = (cost_tables.kind(at), unit, most_machines, layers)
    rows = cost_tables.known(("rows", *key), partial(_rows, cost_tables, at, unit, most_machines, layers))
    trained = {
        task: cost_tables.known((task, *key), partial(_trained, cost_tables, task, at, rows))
        for task in tasks
        if task in TRAINING
    }
    # Resident bytes add up over tasks, transient bytes are the maximum: [num_cuts].
    free = cost_tables.without_memory_of
    resident, transient = np.zeros(len(rows.data)), np.zeros(len(rows.data))
    for task in (task for task in trained if task not in free):
        resident = resident + trained[task].resident_bytes
        transient = np.maximum(transient, trained[task].transient_bytes)
    for task in (task for task in scored if task not in free):
        resident = resident + memory.served_bytes(workload, task, unit)
        transient = np.maximum(transient, memory.scoring_bytes(workload, task, unit))
    rates: dict[Task, float] = {task: 1 / cost_tables.scoring_s(task, at.gpu, unit) for task in scored}
    usable, parts = memory.usable_bytes(at.gpu), []
    # One part for each tensor degree of generation (0 without generation), with the cuts that fit into memory.
    for tensor in _tensors(cost_tables, tasks, unit):
        generates = tensor and Task.GENERATION not in free
        stays = resident + (memory.served_bytes(workload, Task.GENERATION, tensor) if generates else 0.0)
        fits, place = stays + transient <= usable, np.full(len(stays), -1)
        if tensor:
            place = cost_tables.replica(at.gpu, tensor).slots(usable - stays)
            fits &= place >= 0
        # Recomputing costs time and saves only memory, so it goes where the same cut fits without it.
        fits &= ~(rows.recompute & _fits_without(fits))
        parts.append(_Part(cost_tables, at, trained, rates, rows, np.flatnonzero(fits), tensor, place))
    return parts


def _rows(cost_tables: CostTables, at: DeviceClass, unit: int, most_machines: int, layers: int) -> Cuts:
    """Return all cuts of one unit size except those with an unsharded optimizer that could be sharded.

    Rows come in pairs: without recomputation, then with it.
    """
    limits, units = cost_tables.problem.limits, most_machines * (at.gpus_per_machine // unit)
    rows = cuts.enumerated(
        tensor=unit,
        most_units=units,
        max_pipeline=limits.max_pipeline,
        max_data=limits.max_data,
        most_layers=layers,
        fsdp=limits.fsdp,
        machine_units=at.gpus_per_machine // unit,
    )
    return rows if limits.fsdp else rows.take((rows.sharding != UNSHARDED) | (rows.data == 1))


def _trained(cost_tables: CostTables, task: Task, at: DeviceClass, rows: Cuts) -> _Trained:
    workload = cost_tables.problem.workload
    return _Trained(
        resident_bytes=memory.trained_bytes(workload, task, rows),
        transient_bytes=memory.training_bytes(workload, task, rows),
        blocks=training.pool_training_terms(workload, task, at, rows),
    )


class _Part:
    """Rows of one unit size and one tensor degree of generation."""

    def __init__(
        self,
        cost_tables: CostTables,
        at: DeviceClass,
        trained: Mapping[Task, _Trained],
        rates: Mapping[Task, float],
        rows: Cuts,
        which: IntArray,
        tensor: int,
        place: IntArray,
    ) -> None:
        self.cuts = rows
        self.row = which
        few = rows.take(which)
        self.num_units = few.num_units
        self.unit = np.full(len(which), rows.tensor)
        # Devices of a machine that units of this size can use.
        self.held = np.full(len(which), at.gpus_per_machine // rows.tensor * rows.tensor)
        self.is_full = few.sharding == FULL
        self.blocks = {task: each.blocks.take(which) for task, each in trained.items()}
        self.rates = {task: rate * few.num_units for task, rate in rates.items()}
        self.tensor = np.full(len(which), tensor)
        self.place = place[which]
        gpus = self.unit * self.num_units
        # A version is loaded over the machine's link if the mesh fits into one machine, else over the fabric.
        near_s, far_s = (
            (cost_tables.load_s(at, tensor, num_gpus=num) if tensor else 0.0) for num in (at.gpus_per_machine, 1 << 30)
        )
        self.load_s = np.where(gpus <= at.gpus_per_machine, near_s, far_s)


def _joined(tasks: tuple[Task, ...], parts: Sequence[_Part]) -> PoolOptions:
    generating = None
    if Task.GENERATION in tasks:
        generating = GenerationLayouts(
            tensor=np.concatenate([part.tensor for part in parts]),
            place=np.concatenate([part.place for part in parts]),
            load_s=np.concatenate([part.load_s for part in parts]),
        )
    return PoolOptions(
        tasks=tasks,
        cuts={part.cuts.tensor: part.cuts for part in parts},
        unit=np.concatenate([part.unit for part in parts]),
        row=np.concatenate([part.row for part in parts]),
        num_units=np.concatenate([part.num_units for part in parts]),
        held=np.concatenate([part.held for part in parts]),
        is_full=np.concatenate([part.is_full for part in parts]),
        blocks={task: training.joined([part.blocks[task] for part in parts]) for task in parts[0].blocks},
        rates={task: np.concatenate([part.rates[task] for part in parts]) for task in parts[0].rates},
        generating=generating,
    )


def _tensors(cost_tables: CostTables, tasks: tuple[Task, ...], unit: int) -> list[int]:
    """Return the tensor degrees that generation may have on units of this size.

    The only value is 0 for a group without generation.
    """
    if Task.GENERATION not in tasks:
        return [0]
    return [size for size in cuts.TENSOR if unit % size == 0 and size <= cost_tables.problem.limits.max_tensor]


def _fits_without(fits: BoolArray) -> BoolArray:
    """Return whether each row's pair fits without recomputation; both rows of a pair get the same value."""
    return np.repeat(fits[::2], 2)
