"""Pieces that linear models are made of: a task's busy time, levels that whoever uses them pays for, caps of links.

All times are in units of `scale_s`, so rows have entries of about 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.exact.blocks import Blocks, Ways
from planner.exact.linear import Floats, Ints, LinearModel
from planner.exact.sites import UnitsAt

_TANGENT_ERROR = 1e-3
"""Of the step, per task: what tangents may miss at first. Cuts at incumbents take care of the rest."""
LEVEL_STEP = 1e-4
"""Of the step: levels of latency nearer than this to the next lower one are taken for it."""

Terms = list[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Units of one group, and the variables of their counts."""

    of: UnitsAt
    at: Ints

    def some(self, keep: Ints) -> "Counted":
        mask = np.zeros(len(self.at), dtype=bool)
        mask[keep] = True
        return Counted(of=self.of.some(mask), at=self.at[mask])


def below(model: LinearModel, left: Sequence[tuple[int, float]], right: Sequence[tuple[int, float]]) -> None:
    """left <= right"""
    model.row([*left, *((at, -value) for at, value in right)], high=0.0)


def total(model: LinearModel, at: Ints, values: Floats, most: float) -> int:
    """A variable for at most the sum."""
    whole = model.variable(0.0, most)
    model.add(np.append(at, whole), np.append(values, -1.0), low=0.0)
    return whole


def inverse(model: LinearModel, at: Ints, rates: Floats, longest: float, cuts: Sequence[float] = ()) -> int:
    """A variable of at least 1 / (sum of rates x variables), and at most `longest`; `cuts`: rates of more tangents."""
    most = float(rates @ np.array([model.high[i] for i in at.tolist()]))
    if most <= 0.0:
        return model.variable(longest + 1.0, longest)
    rate = total(model, at, rates, most)
    seconds = model.variable(1.0 / most, longest)
    points = [*_points(1.0 / most, longest), *(1.0 / each for each in cuts if each > 0)]
    model.rows(rate, [point * point for point in points], seconds, [2 * point for point in points])
    return seconds


def _points(low: float, high: float) -> list[float]:
    """Seconds at which tangents of 1 / rate miss at most `_TANGENT_ERROR` of 1 between neighbours."""
    points, at = [], high
    while at > max(low, _TANGENT_ERROR):
        points.append(at)
        at *= math.exp(-2 * math.sqrt(_TANGENT_ERROR * max(1.0, high) / at))
    return [*points, max(low, _TANGENT_ERROR / 10)]


def chain(data: Blocks, model: LinearModel, units: Counted, levels: Floats, scale_s: float, is_fine: bool) -> Terms:
    """What the highest level in use takes: a variable for the least of them, and a binary for each rise."""
    tolerance = 0.0 if is_fine else LEVEL_STEP * scale_s
    distinct: list[float] = []
    for level in np.unique(levels).tolist():
        if not distinct or level > distinct[-1] + tolerance:
            distinct.append(level)
    places = (np.searchsorted(np.array(distinct), levels, side="right") - 1).tolist()
    classes = units.of.block.at_class[units.of.rows].tolist()
    of_class: dict[int, list[tuple[int, int, float]]] = {}
    for place, c, x, gpus in zip(places, classes, units.at.tolist(), units.of.gpus.tolist(), strict=True):
        of_class.setdefault(c, []).append((place, x, gpus / data.classes[c].num_gpus))
    offset = model.variable(distinct[0] / scale_s, distinct[0] / scale_s)
    steps: Terms = [(offset, 1.0)]
    for k in range(1, len(distinct)):
        steps.append((model.variable(0.0, 1.0, whole=True), (distinct[k] - distinct[k - 1]) / scale_s))
        if k > 1:
            model.row([(steps[-2][0], 1.0), (steps[-1][0], -1.0)], low=0.0)
    for mine in of_class.values():
        for k in sorted({place for place, _, _ in mine if place}):
            model.row([*((x, devices) for place, x, devices in mine if place >= k), (steps[k][0], -1.0)], high=0.0)
    return steps


def capped(
    model: LinearModel, units: Counted, made: Floats, caps: Floats, ways: Ways, down: float
) -> tuple[Ints, Floats]:
    """(variables, what one of each makes) where a region carries at most `caps`, and all remote ones `down`; regions
    have variables of their own only where that can bind."""
    most = units.of.most * made
    away = units.of.region != ways.home
    at, values = units.at[~away], made[~away]
    far_at, far = [units.at[:0]], [made[:0]]
    for region in np.unique(units.of.region[away]).tolist():
        here = np.flatnonzero(units.of.region == region)
        if most[here].sum() > caps[region]:
            far_at.append(np.array([total(model, units.at[here], made[here], float(caps[region]))]))
            far.append(np.ones(1))
        else:
            far_at.append(units.at[here])
            far.append(made[here])
    remote, each = np.concatenate(far_at), np.concatenate(far)
    if sum(float(model.high[i]) * value for i, value in zip(remote.tolist(), each.tolist(), strict=True)) > down:
        remote, each = np.array([total(model, remote, each, down)]), np.ones(1)
    return np.concatenate([at, remote]).astype(np.int64), np.concatenate([values, each])
