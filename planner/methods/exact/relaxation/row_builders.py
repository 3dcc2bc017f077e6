"""Building blocks of the linear models: busy time of a task, latency levels, and caps of links.

All times are in units of `scale_s`, about a step, so that rows have entries of about 1. Each function adds variables
and rows to a model. What is added is a relaxation: it never excludes a placement that the oracle allows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.methods.exact.program.linear_model import Floats, Ints, LinearModel
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays, TransferArrays
from planner.methods.exact.subproblem.reachable_candidates import ReachableUnits

_TANGENT_ERROR = 1e-3
"""Error of busy time between two neighbouring tangents, as a fraction of a step. Cuts at incumbents remove the rest.
Chosen by hand."""
LEVEL_STEP = 1e-4
"""Difference of latency levels, as a fraction of a step, below which a level counts as the next lower one."""

Terms = list[tuple[int, float]]
"""(Variable, coefficient) pairs: a linear expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitVariables:
    """Candidate units of one group and the variables that count them."""

    of: ReachableUnits
    """The units."""
    at: Ints
    """Index of the count variable of each unit."""

    def some(self, keep: Ints) -> "UnitVariables":
        """Return the units at the given positions."""
        mask = np.zeros(len(self.at), dtype=bool)
        mask[keep] = True
        return UnitVariables(of=self.of.some(mask), at=self.at[mask])


def add_at_most(model: LinearModel, left: Sequence[tuple[int, float]], right: Sequence[tuple[int, float]]) -> None:
    """Add the row left <= right between two linear expressions."""
    model.row([*left, *((at, -value) for at, value in right)], high=0.0)


def total(model: LinearModel, at: Ints, values: Floats, most: float) -> int:
    """Add a variable that is at most the sum of values x variables and at most `most`; return its index."""
    whole = model.variable(0.0, most)
    model.add(np.append(at, whole), np.append(values, -1.0), low=0.0)
    return whole


def busy_time_variable(model: LinearModel, at: Ints, rates: Floats, longest: float, cuts: Sequence[float] = ()) -> int:
    """Add a variable >= 1 / (sum of rates x variables) and <= `longest`; return its index.

    This is the busy time W / R of a task whose work W is scaled to 1. It is convex in the rate R, so tangents are a
    valid relaxation. `cuts` are rates at which further tangents are added.
    """
    most = float(rates @ np.array([model.high[i] for i in at.tolist()]))
    if most <= 0.0:
        return model.variable(longest + 1.0, longest)
    rate = total(model, at, rates, most)
    seconds = model.variable(1.0 / most, longest)
    # The tangent of 1 / R at R = 1 / p is 2 p - p^2 R.
    points = [*_points(1.0 / most, longest), *(1.0 / each for each in cuts if each > 0)]
    model.rows(rate, [point * point for point in points], seconds, [2 * point for point in points])
    return seconds


def _points(low: float, high: float) -> list[float]:
    """Return the seconds p of the tangents, so that two neighbours are off by at most `_TANGENT_ERROR`."""
    points, at = [], high
    while at > max(low, _TANGENT_ERROR):
        points.append(at)
        at *= math.exp(-2 * math.sqrt(_TANGENT_ERROR * max(1.0, high) / at))
    return [*points, max(low, _TANGENT_ERROR / 10)]


def highest_level(
    data: ProblemArrays, model: LinearModel, units: UnitVariables, levels: Floats, scale_s: float, is_fine: bool
) -> Terms:
    """Return a linear expression for the highest latency level that is in use.

    `levels` is seconds of each unit. The expression is the lowest level plus, for each higher one, its rise times a
    binary that must be 1 if a unit at that level or above is used. Levels that are nearly equal are merged, unless
    `is_fine`.
    """
    tolerance = 0.0 if is_fine else LEVEL_STEP * scale_s
    # Distinct levels, ascending; each unit's place is the highest distinct level that is not above its own.
    distinct: list[float] = []
    for level in np.unique(levels).tolist():
        if not distinct or level > distinct[-1] + tolerance:
            distinct.append(level)
    places = (np.searchsorted(np.array(distinct), levels, side="right") - 1).tolist()
    classes = units.of.block.at_class[units.of.rows].tolist()
    of_class: dict[int, list[tuple[int, int, float]]] = {}
    for place, c, x, gpus in zip(places, classes, units.at.tolist(), units.of.gpus.tolist(), strict=True):
        of_class.setdefault(c, []).append((place, x, gpus / data.classes[c].num_gpus))
    # The lowest level is always paid. A binary implies the one below it.
    offset = model.variable(distinct[0] / scale_s, distinct[0] / scale_s)
    steps: Terms = [(offset, 1.0)]
    for k in range(1, len(distinct)):
        steps.append((model.variable(0.0, 1.0, whole=True), (distinct[k] - distinct[k - 1]) / scale_s))
        if k > 1:
            model.row([(steps[-2][0], 1.0), (steps[-1][0], -1.0)], low=0.0)
    for mine in of_class.values():
        # Per class: the share of its devices in units at level k or above is at most the binary, which is 1 if there
        # are any.
        for k in sorted({place for place, _, _ in mine if place}):
            model.row([*((x, devices) for place, x, devices in mine if place >= k), (steps[k][0], -1.0)], high=0.0)
    return steps


def limit_by_routes(
    model: LinearModel, units: UnitVariables, made: Floats, caps: Floats, transfers: TransferArrays, down: float
) -> tuple[Ints, Floats]:
    """Return (variables, samples that one of each makes) under the limits of routes and the downlink.

    A region's samples count at most `caps[region]` and all remote samples at most `down`. Where such a limit can bind,
    the units behind it are replaced by one variable for what arrives.
    """
    most = units.of.most * made
    away = units.of.region != transfers.trainer_region
    at, values = units.at[~away], made[~away]
    far_at, far = [units.at[:0]], [made[:0]]
    # A remote region whose units could exceed its route gets one variable for all its samples.
    for region in np.unique(units.of.region[away]).tolist():
        here = np.flatnonzero(units.of.region == region)
        if most[here].sum() > caps[region]:
            far_at.append(np.array([total(model, units.at[here], made[here], float(caps[region]))]))
            far.append(np.ones(1))
        else:
            far_at.append(units.at[here])
            far.append(made[here])
    remote, each = np.concatenate(far_at), np.concatenate(far)
    # All remote samples that could exceed the downlink get one variable.
    if sum(float(model.high[i]) * value for i, value in zip(remote.tolist(), each.tolist(), strict=True)) > down:
        remote, each = np.array([total(model, remote, each, down)]), np.ones(1)
    return np.concatenate([at, remote]).astype(np.int64), np.concatenate([values, each])
