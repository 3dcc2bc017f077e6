"""Pools of one kind of machines for a group that trains: every layout that fits memory, as arrays, a row each.

Left out are layouts that another one beats by itself: an unsharded optimizer where it could be sharded, and computing
activations again where they fit. Neither changes any other number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.answer.placement import Layout, Pool
from planner.classes import DeviceClass
from planner.cost import cuts, memory, training
from planner.cost.cuts import FULL, UNSHARDED, BoolArray, Cuts, FloatArray, IntArray
from planner.cost.pareto import undominated
from planner.cost.pools import Prices
from planner.cost.training import Blocks
from planner.question.workload import TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Generating:
    """How the rows generate by turns with training."""

    tensor: IntArray
    place: IntArray
    """In `SLOTS`."""
    load_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Rows; `cuts` has one value for each unit size, and each row's place in it is `row`."""

    tasks: tuple[Task, ...]
    cuts: Mapping[int, Cuts]
    unit: IntArray
    row: IntArray
    num_units: IntArray
    held: IntArray
    """Devices of one machine that units of this size can use; the more the better for what else must fit."""
    is_full: BoolArray
    blocks: Mapping[Task, Blocks]
    rates: Mapping[Task, FloatArray]
    """Samples a second of the whole pool, of tasks that score."""
    generating: Generating | None

    @property
    def num_gpus(self) -> IntArray:
        return self.unit * self.num_units

    def take(self, rows: IntArray | BoolArray) -> "Options":
        places: IntArray = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        made = self.generating
        return Options(
            tasks=self.tasks, cuts=self.cuts, unit=self.unit[places], row=self.row[places],
            num_units=self.num_units[places], held=self.held[places], is_full=self.is_full[places],
            blocks={task: each.take(places) for task, each in self.blocks.items()},
            rates={task: each[places] for task, each in self.rates.items()},
            generating=made and Generating(
                tensor=made.tensor[places], place=made.place[places], load_s=made.load_s[places]
            ),
        )  # fmt: skip

    def pool(self, at: DeviceClass, row: int) -> Pool:
        """Of one class of the kind."""
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


def options(prices: Prices, tasks: tuple[Task, ...], at: DeviceClass, most_machines: int) -> Options:
    """Of a class like `at` with so many machines."""
    parts = [
        part
        for unit in cuts.TENSOR
        if unit <= min(at.gpus_per_machine, prices.problem.limits.max_tensor)
        for part in _of_unit(prices, tasks, at, unit, most_machines)
    ]
    return _joined(tasks, parts)


def kinds(found: Options) -> tuple[IntArray, IntArray]:
    """(kind of each row, a row of each kind): rows of one kind differ in how long they train only."""
    keys = [found.held, found.num_gpus, *found.rates.values()]
    if found.generating is not None:
        keys += [found.generating.tensor, found.generating.place, found.generating.load_s]
    _, first, kind = np.unique(np.stack(keys, axis=1), axis=0, return_index=True, return_inverse=True)
    return kind.reshape(-1), first


def blocks_worth_pairing(found: Options) -> Options:
    """Rows that may be one pool of several: not fully sharded, none beaten in everything that a mesh's time uses."""
    found = found.take(~found.is_full)
    costs: list[FloatArray | IntArray] = [-found.held, found.num_gpus]
    costs += [-rate for rate in found.rates.values()]
    if found.generating is not None:
        made = found.generating
        costs += [made.tensor, -made.tensor, -found.num_gpus, -made.place, made.load_s]
    for each in found.blocks.values():
        costs += [each.stage_s, -each.samples_per_s, each.bubble_s, each.payload_bytes, each.update_s]
    first = next(iter(found.blocks.values()))
    costs += [first.data, first.flows, -first.ring_bytes_per_s, first.ring_latency_s]
    return found.take(undominated(np.stack(costs, axis=1).astype(float)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """One task on all layouts of one unit size."""

    resident_bytes: FloatArray
    transient_bytes: FloatArray
    blocks: Blocks


def _of_unit(prices: Prices, tasks: tuple[Task, ...], at: DeviceClass, unit: int, most_machines: int) -> list["_Part"]:
    workload = prices.problem.workload
    scored = [task for task in tasks if task not in TRAINING and task is not Task.GENERATION]
    layers = min(workload.models[task].num_layers for task in tasks if task in TRAINING)
    key = (prices.kind(at), unit, most_machines, layers)
    rows = prices.known(("rows", *key), partial(_rows, prices, at, unit, most_machines, layers), lasts=True)
    trained = {
        task: prices.known((task, *key), partial(_trained, prices, task, at, rows), lasts=True)
        for task in tasks
        if task in TRAINING
    }
    free = prices.without_memory_of
    resident, transient = np.zeros(len(rows.data)), np.zeros(len(rows.data))
    for task in (task for task in trained if task not in free):
        resident = resident + trained[task].resident_bytes
        transient = np.maximum(transient, trained[task].transient_bytes)
    for task in (task for task in scored if task not in free):
        resident = resident + memory.served_bytes(workload, task, unit)
        transient = np.maximum(transient, memory.scoring_bytes(workload, task, unit))
    rates: dict[Task, float] = {task: 1 / prices.scoring_s(task, at.gpu, unit) for task in scored}
    usable, parts = memory.usable_bytes(at.gpu), []
    for tensor in _tensors(prices, tasks, unit):
        generates = tensor and Task.GENERATION not in free
        stays = resident + (memory.served_bytes(workload, Task.GENERATION, tensor) if generates else 0.0)
        fits, place = stays + transient <= usable, np.full(len(stays), -1)
        if tensor:
            place = prices.replica(at.gpu, tensor).slots(usable - stays)
            fits &= place >= 0
        fits &= ~(rows.recompute & _fits_without(fits))
        parts.append(_Part(prices, at, trained, rates, rows, np.flatnonzero(fits), tensor, place))
    return parts


def _rows(prices: Prices, at: DeviceClass, unit: int, most_machines: int, layers: int) -> Cuts:
    """Each layout without computing activations again, and the same with it next to it."""
    limits, units = prices.problem.limits, most_machines * (at.gpus_per_machine // unit)
    rows = cuts.enumerated(
        tensor=unit, most_units=units, max_pipeline=limits.max_pipeline, max_data=limits.max_data, most_layers=layers
    )
    return rows.take((rows.sharding != UNSHARDED) | (rows.data == 1))


def _trained(prices: Prices, task: Task, at: DeviceClass, rows: Cuts) -> _Trained:
    workload = prices.problem.workload
    return _Trained(
        resident_bytes=memory.trained_bytes(workload, task, rows),
        transient_bytes=memory.training_bytes(workload, task, rows), blocks=training.blocks(workload, task, at, rows),
    )  # fmt: skip


class _Part:
    """Rows of one unit size and one way to generate."""

    def __init__(
        self,
        prices: Prices,
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
        self.held = np.full(len(which), at.gpus_per_machine // rows.tensor * rows.tensor)
        self.is_full = few.sharding == FULL
        self.blocks = {task: each.blocks.take(which) for task, each in trained.items()}
        self.rates = {task: rate * few.num_units for task, rate in rates.items()}
        self.tensor = np.full(len(which), tensor)
        self.place = place[which]
        gpus = self.unit * self.num_units
        near_s, far_s = (
            (prices.load_s(at, tensor, num_gpus=num) if tensor else 0.0) for num in (at.gpus_per_machine, 1 << 30)
        )
        self.load_s = np.where(gpus <= at.gpus_per_machine, near_s, far_s)


def _joined(tasks: tuple[Task, ...], parts: Sequence[_Part]) -> Options:
    generating = None
    if Task.GENERATION in tasks:
        generating = Generating(
            tensor=np.concatenate([part.tensor for part in parts]),
            place=np.concatenate([part.place for part in parts]),
            load_s=np.concatenate([part.load_s for part in parts]),
        )  # fmt: skip
    return Options(
        tasks=tasks, cuts={part.cuts.tensor: part.cuts for part in parts},
        unit=np.concatenate([part.unit for part in parts]), row=np.concatenate([part.row for part in parts]),
        num_units=np.concatenate([part.num_units for part in parts]),
        held=np.concatenate([part.held for part in parts]), is_full=np.concatenate([part.is_full for part in parts]),
        blocks={task: training.joined([part.blocks[task] for part in parts]) for task in parts[0].blocks},
        rates={task: np.concatenate([part.rates[task] for part in parts]) for task in parts[0].rates},
        generating=generating,
    )  # fmt: skip


def _tensors(prices: Prices, tasks: tuple[Task, ...], unit: int) -> list[int]:
    if Task.GENERATION not in tasks:
        return [0]
    return [size for size in cuts.TENSOR if unit % size == 0 and size <= prices.problem.limits.max_tensor]


def _fits_without(fits: BoolArray) -> BoolArray:
    """Whether a row, or the one beside it that computes activations again, fits without doing so."""
    return np.repeat(fits[::2], 2)
