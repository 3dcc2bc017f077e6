"""Devices that the choices of a linear model occupy: inventory rows, and where each choice has devices."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from planner.methods.exact.program.linear_model import INFINITE, Ints, LinearModel
from planner.methods.exact.relaxation.row_builders import UnitVariables
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.reachable_candidates import ReachableMeshes
from planner.problem.groupings import Tasks
from planner.problem.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshVariables:
    """Candidate meshes of one group and their binary variables."""

    of: ReachableMeshes
    """The meshes."""
    at: Ints
    """Index of the binary of each mesh."""


def add_inventory(
    data: ProblemArrays, model: LinearModel, meshes: Iterable[MeshVariables], units: Iterable[UnitVariables]
) -> None:
    """Add the inventory rows: for each class and unit size, all units of at least that size fit into its machines.

    Sizes are powers of two. Units of at least size k, in multiples of k devices, are at most num_machines x
    floor(gpus_per_machine / k) x k devices.
    """
    classes, gpus, at, num = _held(meshes, units)
    order = np.argsort(classes, kind="stable")
    ends = np.flatnonzero(np.diff(classes[order], append=-1)) + 1
    for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        of = order[start:end]
        most, device_class = INFINITE, data.classes[int(classes[of[0]])]
        sizes, devices = gpus[of], gpus[of] * num[of]
        distinct = sorted(set(sizes.tolist()))
        for size in distinct:
            cap = device_class.num_machines * (device_class.gpus_per_machine // size) * size
            # A size whose cap is no smaller than that of a smaller size adds nothing.
            if cap < most or size == distinct[0]:
                held = sizes >= size
                model.row(list(zip(at[of[held]].tolist(), (devices[held] / cap).tolist(), strict=True)), high=1.0)
            most = min(most, cap)


def _held(meshes: Iterable[MeshVariables], units: Iterable[UnitVariables]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (class, devices of a unit, variable, units per variable) of everything that can be chosen."""
    found = []
    for chosen in meshes:
        rows, block = chosen.of.rows, chosen.of.block
        # A mesh occupies units of its first pool and, if it has one, of its second pool.
        for pool in (0, 1):
            classes = block.at_class[rows, pool]
            is_there = classes >= 0
            rows_of = rows[is_there]
            found.append((classes[is_there], block.gpus[rows_of, pool], chosen.at[is_there], block.num[rows_of, pool]))
    for counted in units:
        classes = counted.of.block.at_class[counted.of.rows]
        found.append((classes, counted.of.gpus, counted.at, np.ones(len(classes), dtype=np.int64)))
    classes, gpus, at, num = (np.concatenate(each) for each in zip(*found, strict=True))
    return classes, gpus, at, num


def chosen_regions(
    meshes: Mapping[Tasks, MeshVariables], units: Mapping[Tasks, UnitVariables], only: Task | None
) -> Iterator[tuple[int, int, float]]:
    """Yield (variable, region, weight) of everything that can be chosen, for one task or for all.

    The weight is the devices of a unit, or 1 for a mesh.
    """
    for tasks, chosen in meshes.items():
        if only is None or only in tasks:
            regions = chosen.of.block.regions[chosen.of.rows].tolist()
            for x, pair in zip(chosen.at.tolist(), regions, strict=True):
                yield from ((x, region, 1.0) for region in dict.fromkeys(pair))
    for tasks, counted in units.items():
        if only is None or only in tasks:
            gpus = counted.of.gpus.astype(np.float64)
            yield from zip(counted.at.tolist(), counted.of.region.tolist(), gpus.tolist(), strict=True)
