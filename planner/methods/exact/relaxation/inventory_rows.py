"""Inventory rows: the devices that the choices of a linear model occupy fit into the machines of each class."""

from collections.abc import Iterable

import numpy as np

from planner.methods.exact.program.linear_model import INFINITE, Ints, LinearModel
from planner.methods.exact.relaxation.variables import MeshVariables, UnitVariables
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays


def add_inventory(
    data: ProblemArrays, model: LinearModel, meshes: Iterable[MeshVariables], units: Iterable[UnitVariables]
) -> None:
    """Add the inventory rows; v is a mesh's binary x or a unit's count n.

        sum over v of class c with units of at least k devices of devices_v v <= M_c floor(g_c / k) k

    for each class c of M_c machines with g_c devices each, and each unit size k. Valid: a unit lies within one machine,
    and sizes are powers of two. So units of at least k devices cover a machine in multiples of k devices, of which it
    has room for floor(g_c / k). For odd machines this says more than the number of devices alone.
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
