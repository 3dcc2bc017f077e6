"""Generation apart from training, linear: how many units make a step's samples within a window Z and a step tau.

A unit makes at most `min(table(Z - lag), rate x tau)`, its table where windows overlap by as little as they can
(`planner.cost.overlap`), which is not linear in count and window. On an interval of Z it is at most c x g(Z), with g
affine and c the largest ratio on the interval; so the sum of n c is at least W / g(Z), by tangents. That is exact as
the interval shrinks. At eta >= 1 full rates in what the step leaves are rows of their own, as for any other task.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.exact.blocks import Blocks
from planner.exact.linear import INFINITE, Floats, Ints, LinearModel
from planner.exact.rows import Counted, capped
from planner.exact.sites import UnitsAt

_TANGENTS = 9
_STEEPEST = 0.05
"""Of g at the interval's start, over its end."""
_ROUNDING = 1 + 1e-9
_SHORT, _ROUGH = 1e-2, 1e-7
"""Of windows: an interval that short has rows without tilt, if tilted ones are off by more than the second one."""
_SHAPES, _APART = (0.0, 0.3, 0.7, 1.0), 0.05
"""Quantiles of units by g at the interval's start over its end, and how much that has to differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Of windows, and g on it: `first` at `low_s`, 1 at `high_s`. `span_s`: of full rate, at most."""

    low_s: float
    high_s: float
    span_s: float
    first: float

    def g(self, window_s: Floats) -> Floats:
        found: Floats = self.first + self.tilt * (window_s - self.low_s)
        return found

    @property
    def tilt(self) -> float:
        return (1.0 - self.first) / (self.high_s - self.low_s) if self.high_s > self.low_s else 0.0


def interval(data: Blocks, of: UnitsAt, ends_s: tuple[float, float], most_s: float) -> Interval:
    """With the g of all the fleet's units."""
    low, high = ends_s
    span_s = INFINITE if data.is_sync else most_s
    made = of.fleets(of.made(np.array([low, high]), span_s))
    first = float(np.clip(made[0] / made[1], _STEEPEST, 1.0)) if made[1] > 0 and high > low else 1.0
    return Interval(low_s=low, high_s=high, span_s=span_s, first=first)


def most_made(of: UnitsAt, on: Interval) -> Floats:
    """[rows]: the largest ratio of what a unit makes and g."""
    ends = np.array([on.low_s, on.high_s])
    best: Floats = (of.made(ends, on.span_s) / on.g(ends)).max(axis=1)
    at = of.knots_s(on.span_s)
    full = of.rates * on.span_s if on.span_s < INFINITE else np.full(len(of.rows), INFINITE)
    inside = (at >= on.low_s) & (at <= on.high_s)
    made = np.minimum(of.samples, full[:, None])
    best = np.maximum(best, np.where(inside, made / np.where(inside, on.g(at), 1.0), 0.0).max(axis=1))
    if on.span_s < INFINITE:
        meets = _reached_s(at, of.lag_s, of.samples, full)
        inside = (meets >= on.low_s) & (meets <= on.high_s)
        best = np.maximum(best, np.where(inside, full / np.where(inside, on.g(meets), 1.0), 0.0))
    return best * _ROUNDING


def _reached_s(knots_s: Floats, lag_s: Floats, samples: Floats, full: Floats) -> Floats:
    """[rows]: where tables reach so many samples."""
    place = np.argmax(samples >= full[:, None], axis=1)
    before = np.maximum(place - 1, 0)
    rows = np.arange(len(full))
    low, high = samples[rows, before], samples[rows, place]
    rise = np.where(high > low, high - low, 1.0)
    start_s, end_s = knots_s[rows, before], knots_s[rows, place]
    inside = start_s + np.clip((full - low) / rise, 0.0, 1.0) * (end_s - start_s)
    last = samples[:, -1]
    found: Floats = np.where(last >= full, inside, (knots_s[:, -1] - lag_s) * full / np.maximum(last, 1e-300) + lag_s)
    return found


def carried_s(on: Interval, lag_s: Floats) -> Floats:
    """The most seconds that a region with such a lag carries samples, over g."""
    at = np.stack([np.full(len(lag_s), on.low_s), np.full(len(lag_s), on.high_s), on.span_s + lag_s])
    at = np.clip(at, on.low_s, on.high_s)
    most: Floats = (np.clip(at - lag_s, 0.0, on.span_s) / on.g(at)).max(axis=0)
    return most * _ROUNDING


def shapes(of: UnitsAt, on: Interval) -> list[Interval]:
    """The same interval with the g of some units instead of all the fleet's, from the steepest to the flattest: rows of
    each hold, and together they miss less where units differ."""
    made = of.made(np.array([on.low_s, on.high_s]), on.span_s)
    makes = made[:, 1] > 0
    if on.high_s <= on.low_s or not makes.any():
        return []
    firsts = np.quantile(np.clip(made[makes, 0] / made[makes, 1], _STEEPEST, 1.0), _SHAPES)
    distinct: list[float] = []
    for first in firsts.tolist():
        if all(abs(first - each) > _APART for each in (on.first, *distinct)):
            distinct.append(first)
    return [replace(on, first=first) for first in distinct]


def add_window(
    data: Blocks, model: LinearModel, units: Counted, on: Interval, home: int, window: int, scale_s: float
) -> None:
    """Rows that hold what is made in `window`."""
    more = shapes(units.of, on) if data.pays_for_few else []
    for each in dict.fromkeys((on, *more, *_flat(units.of, on))):
        at, values = _rated(data, model, units, each, home)
        for point in np.unique(np.linspace(each.low_s, each.high_s, _TANGENTS if each.tilt else 1)).tolist():
            here = float(each.g(np.array([point]))[0])
            tilt = each.tilt / here**2  # sum >= 1 / here - tilt (window - point)
            model.add(np.append(at, window), np.append(values, tilt * scale_s), low=1.0 / here + tilt * point)


def _flat(of: UnitsAt, on: Interval) -> list[Interval]:
    """The same interval with a g of 1 everywhere, where it is short and some unit's table jumps in it: no tilt is that
    of all units then, however short the interval; but none makes more than at its end."""
    ends = of.made(np.array([on.high_s]), on.span_s)[:, 0]
    is_rough = on.high_s - on.low_s <= _SHORT * on.high_s and bool((ends < most_made(of, on) * (1 - _ROUGH)).any())
    return [replace(on, first=1.0)] if is_rough else []


def _rated(data: Blocks, model: LinearModel, units: Counted, on: Interval, home: int) -> tuple[Ints, Floats]:
    """(variables, what one of each makes at most in the interval, over g, of a step's samples)."""
    ways, of, samples = data.ways(home), units.of, data.samples
    lag_s = np.full(len(data.regions), INFINITE)
    np.minimum.at(lag_s, of.region, of.lag_s)
    near = np.isfinite(lag_s)
    caps = np.zeros(len(lag_s))
    with np.errstate(invalid="ignore"):
        caps[near] = np.nan_to_num(ways.samples_per_s[near] * carried_s(on, lag_s[near]), nan=0.0, posinf=INFINITE)
    away = lag_s[near & (np.arange(len(lag_s)) != home)]
    down = INFINITE
    if len(away) and ways.down_per_s < INFINITE:
        down = ways.down_per_s * float(carried_s(on, away.min(keepdims=True))[0]) / samples
    return capped(model, units, most_made(of, on) / samples, caps / samples, ways, down)


def looseness(data: Blocks, units: Counted, on: Interval, counts: Floats, home: int, window_s: float) -> float:
    """The part of a step's samples that so many units do not make, or ways do not carry, in a window, though the rows
    hold."""
    ways, of = data.ways(home), units.of
    made, lag_s = np.zeros(len(data.regions)), np.full(len(data.regions), INFINITE)
    np.add.at(made, of.region, counts * of.made(np.array([window_s]), on.span_s)[:, 0])
    np.minimum.at(lag_s, of.region, of.lag_s)
    carried_s = np.clip(window_s - lag_s, 0.0, on.span_s)
    away = (np.arange(len(made)) != home) & (made > 0)
    made[away] = np.minimum(made[away], ways.samples_per_s[away] * carried_s[away])
    far = made[away].sum()
    if far > 0 and ways.down_per_s < INFINITE:
        far = min(far, ways.down_per_s * carried_s[away].max())
    return max(0.0, 1.0 - float(made[~away].sum() + far) / data.samples)
