"""Rounding: make a placement from a point of a subproblem's linear relaxation.

Each group with training takes the mesh with the largest value. The relaxation is solved again with these meshes fixed,
its counts of units are rounded down, and freed devices go to the units that lost most. Most incumbents come from here.
"""

import numpy as np

from planner.answer.placement import Placement
from planner.methods.exact.program.linear_model import Floats
from planner.methods.exact.program.ortools_solver import solve_relaxed
from planner.methods.exact.relaxation.relaxation import Relaxation

_WHOLE = 1e-6
"""Tolerance within which a value counts as a whole number."""


def rounded(built: Relaxation, values: Floats) -> Placement | None:
    """Return a placement near the point, not evaluated yet; None if the most likely meshes do not go together."""
    # A copy, since fixing meshes changes bounds that the search still needs.
    model = built.model.copy()
    for chosen in built.meshes.values():
        likeliest = int(chosen.at[int(values[chosen.at].argmax())])
        for x in chosen.at.tolist():
            model.low[x] = model.high[x] = float(x == likeliest)
    fixed = solve_relaxed(model)
    if fixed.values is None:
        return None
    counts = fixed.values.copy()
    # Round down; the tolerance keeps values such as 2.9999999 whole.
    for units in built.units.values():
        counts[units.at] = np.floor(counts[units.at] + _WHOLE)
    _fill(built, fixed.values, counts)
    # Rounding left a group without any unit.
    if any(counts[units.at].sum() < 1 for units in built.units.values()):
        return None
    return built.placement(counts)


def _fill(built: Relaxation, wanted: Floats, counts: Floats) -> None:
    """Give free devices to the units that lost most by rounding down, one unit each; `counts` is changed."""
    data = built.data
    free = np.array([float(each.num_gpus) for each in data.classes])
    # Devices that the chosen meshes leave, by class.
    for chosen in built.meshes.values():
        row = int(chosen.of.rows[int(counts[chosen.at].argmax())])
        block = chosen.of.block
        for pool in np.flatnonzero(block.at_class[row] >= 0).tolist():
            free[block.at_class[row, pool]] -= float(block.gpus[row, pool] * block.num[row, pool])
    # Units by what they lost to rounding, most first.
    lost: list[tuple[float, int, int, int]] = []
    for units in built.units.values():
        classes, gpus = units.of.block.at_class[units.of.rows], units.of.gpus
        np.subtract.at(free, classes, counts[units.at] * gpus)
        for x, c, k in zip(units.at.tolist(), classes.tolist(), gpus.tolist(), strict=True):
            if wanted[x] > _WHOLE:
                lost.append((counts[x] - wanted[x], x, c, k))
    for _, x, c, k in sorted(lost):
        more = min(np.floor(free[c] / k), 1.0) if counts[x] < wanted[x] - _WHOLE else 0.0
        if more > 0:
            counts[x] += more
            free[c] -= more * k
