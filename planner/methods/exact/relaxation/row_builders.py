"""Building blocks of the linear models: busy time of a task, latency levels, and caps of links.

All times are in units of `scale_s`, about a step, so that rows have entries of about 1. Each function adds variables
and rows to a model. What is added is a relaxation: it never excludes a placement that the oracle allows.
"""

import math
from collections.abc import Sequence

import numpy as np

from planner.methods.exact.program.linear_model import Floats, Ints, LinearModel
from planner.methods.exact.relaxation.variables import Terms, UnitVariables
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays, TransferArrays


def add_at_most(model: LinearModel, left: Sequence[tuple[int, float]], right: Sequence[tuple[int, float]]) -> None:
    """Add the row left <= right between two linear expressions."""
    model.row([*left, *((at, -value) for at, value in right)], high=0.0)


def add_weighted_at_most(model: LinearModel, at: Ints, values: Floats, right: Terms) -> None:
    """Add the row sum of values x variables <= right. The variables `at` must all differ from those of `right`."""
    others = np.array([x for x, _ in right], dtype=np.int64)
    model.add(np.append(at, others), np.append(values, [-value for _, value in right]), high=0.0)


def total(model: LinearModel, at: Ints, values: Floats, most: float) -> int:
    """Add a variable that is at most the sum of values x variables and at most `most`; return its index."""
    whole = model.variable(0.0, most)
    model.add(np.append(at, whole), np.append(values, -1.0), low=0.0)
    return whole


def busy_time_variable(
    model: LinearModel, at: Ints, rates: Floats, longest: float, cuts: Sequence[float], *, error: float
) -> int:
    """Add a variable B with 1 / R <= B <= `longest`, where R is the sum of rates x variables; return its index.

        B >= 2 p - p^2 R   for several p

    This is the busy time W / R of a task whose work W is scaled to 1. Valid: 1 / R is convex in R, so it is nowhere
    below its tangents, and 2 p - p^2 R is the tangent at R = 1 / p. `cuts` are rates at which further tangents are
    added. Two neighbouring tangents are off by at most `error`.
    """
    most = float(rates @ np.array([model.high[i] for i in at.tolist()]))
    # No candidate has a rate: crossed bounds make the model infeasible.
    if most <= 0.0:
        return model.variable(longest + 1.0, longest)
    rate = total(model, at, rates, most)
    seconds = model.variable(1.0 / most, longest)
    # Points between the shortest and the longest busy time, and those at which the search found the tangents too low.
    points = [*_points(1.0 / most, longest, error), *(1.0 / each for each in cuts if each > 0)]
    model.rows(rate, [point * point for point in points], seconds, [2 * point for point in points])
    return seconds


def _points(low: float, high: float, error: float) -> list[float]:
    """Return the busy times p of the tangents, so that two neighbours are off by at most `error`."""
    points, at = [], high
    while at > max(low, error):
        points.append(at)
        at *= math.exp(-2 * math.sqrt(error * max(1.0, high) / at))
    return [*points, max(low, error / 10)]


def highest_level(
    data: ProblemArrays, model: LinearModel, units: UnitVariables, levels: Floats, scale_s: float, is_fine: bool
) -> Terms:
    """Return a linear expression L for the highest latency level that is in use; `levels` is seconds of each unit.

        L = l_0 + sum over k of (l_k - l_(k-1)) b_k,   l_0 < l_1 < ... the distinct levels
        b_k <= b_(k-1)
        sum over the units u of class c at level l_k or above of (gpus_u / gpus_c) n_u <= b_k   for each class c

    Valid: with b_k = 1 if and only if a unit at level l_k or above is used, L is the highest level in use, and units
    never hold more than all devices of a class. Levels that are nearly equal count as the lowest of them, which is a
    relaxation, too, unless `is_fine`.
    """
    tolerance = 0.0 if is_fine else data.settings.level_step * scale_s
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

        a_r <= sum over the units u of region r of made_u n_u,   a_r <= caps_r   for each remote region r
        a <= sum over r of a_r,                                  a <= down

    Where such a limit can bind, the units behind it are replaced by one variable a_r or a for what arrives. Valid,
    since no more arrives than is made, nor than the route and the downlink carry.
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
