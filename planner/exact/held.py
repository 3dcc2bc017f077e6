"""What each choice of a linear model holds: devices of classes, and where."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from planner.exact.blocks import Blocks
from planner.exact.linear import INFINITE, Ints, LinearModel
from planner.exact.rows import Counted
from planner.exact.sites import MeshesAt
from planner.groupings import Tasks
from planner.question.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Meshes of one group, and their binaries."""

    of: MeshesAt
    at: Ints


def add_inventory(data: Blocks, model: LinearModel, meshes: Iterable[Chosen], units: Iterable[Counted]) -> None:
    """For each class and size of units: those at least as large, in whole multiples of it."""
    held: dict[int, list[tuple[int, int, int]]] = {}
    for c, size, x, num in _held(meshes, units):
        held.setdefault(c, []).append((size, x, num))
    for c in sorted(held):
        most, device_class = INFINITE, data.classes[c]
        sizes = sorted({size for size, _, _ in held[c]})
        for size in sizes:
            cap = device_class.num_machines * (device_class.gpus_per_machine // size) * size
            if cap < most or size == sizes[0]:
                model.row([(x, k * num / cap) for k, x, num in held[c] if k >= size], high=1.0)
            most = min(most, cap)


def _held(meshes: Iterable[Chosen], units: Iterable[Counted]) -> Iterator[tuple[int, int, int, int]]:
    """(class, devices of a unit, variable, units) of everything that can be chosen."""
    for chosen in meshes:
        rows, block = chosen.of.rows, chosen.of.block
        for pool in (0, 1):
            of_pool = (block.at_class[rows, pool], block.gpus[rows, pool], chosen.at, block.num[rows, pool])
            listed = zip(*(each.tolist() for each in of_pool), strict=True)
            yield from (each for each in listed if each[0] >= 0)
    for counted in units:
        classes = counted.of.block.at_class[counted.of.rows]
        of_units = (classes, counted.of.gpus, counted.at, np.ones(len(classes), dtype=np.int64))
        yield from zip(*(each.tolist() for each in of_units), strict=True)


def uses(
    meshes: Mapping[Tasks, Chosen], units: Mapping[Tasks, Counted], only: Task | None
) -> Iterator[tuple[int, int, float]]:
    """(variable, region, devices there or 1) of everything that can be chosen, for one task or for all."""
    for tasks, chosen in meshes.items():
        if only is None or only in tasks:
            regions = chosen.of.block.regions[chosen.of.rows].tolist()
            for x, pair in zip(chosen.at.tolist(), regions, strict=True):
                yield from ((x, region, 1.0) for region in dict.fromkeys(pair))
    for tasks, counted in units.items():
        if only is None or only in tasks:
            gpus = counted.of.gpus.astype(np.float64)
            yield from zip(counted.at.tolist(), counted.of.region.tolist(), gpus.tolist(), strict=True)
