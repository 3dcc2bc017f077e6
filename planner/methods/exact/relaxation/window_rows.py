"""Generation apart from training as linear rows: which units make a step's samples within window y and step tau.

A unit makes at most min(table(y - lag), rate x tau), which is not linear in the number of units and y. On an interval
of y it is at most c x g(y), with g affine and c the largest ratio on the interval. So the samples W of a step need
sum(n c) >= W / g(y), where n are the counts. 1 / g is convex, so its tangents are valid rows. The relaxation becomes
exact as the interval shrinks, which is why the search branches on y. Tables use the least slow-down by overlapping
windows that the subproblem allows. At eta >= 1 full rates within a step are rows of their own.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.methods.exact.program.linear_model import INFINITE, Floats, Ints, LinearModel
from planner.methods.exact.relaxation.row_builders import limit_by_routes
from planner.methods.exact.relaxation.variables import UnitVariables
from planner.methods.exact.settings import ExactSettings
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.reachable_candidates import ReachableUnits

_ROUNDING = 1 + 1e-9
"""Factor that keeps rounding from cutting off what units really make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval of windows with the affine function g on it: `first` at `low_s`, 1 at `high_s`."""

    low_s: float
    high_s: float
    span_s: float
    """Most seconds of a step that generation has; inf where windows never overlap."""
    first: float
    """Value of g at `low_s`."""

    def g(self, window_s: Floats) -> Floats:
        """Return g at these windows."""
        found: Floats = self.first + self.tilt * (window_s - self.low_s)
        return found

    @property
    def tilt(self) -> float:
        """Slope of g per second."""
        return (1.0 - self.first) / (self.high_s - self.low_s) if self.high_s > self.low_s else 0.0


def interval(data: ProblemArrays, of: ReachableUnits, ends_s: tuple[float, float], most_s: float) -> Interval:
    """Return the interval with the g of all units of the fleet together.

    `most_s` is what a step leaves to generation.
    """
    low, high = ends_s
    span_s = INFINITE if data.is_sync else most_s
    made = of.fleet_total(of.made(np.array([low, high]), span_s))
    first = float(np.clip(made[0] / made[1], data.settings.window_steepest, 1.0)) if made[1] > 0 and high > low else 1.0
    return Interval(low_s=low, high_s=high, span_s=span_s, first=first)


def most_made(of: ReachableUnits, on: Interval) -> Floats:
    """Return c for each unit: the largest ratio of its samples and g on the interval, `[num_rows]`.

    The ratio is largest at an end of the interval, at a knot of the table, or where the table reaches the full rate.
    """
    ends = np.array([on.low_s, on.high_s])
    # Ratios at both ends of the interval.
    best: Floats = (of.made(ends, on.span_s) / on.g(ends)).max(axis=1)
    at = of.knots_s(on.span_s)
    full = of.rates * on.span_s if on.span_s < INFINITE else np.full(len(of.rows), INFINITE)
    # Ratios at the knots of the table that lie inside it.
    inside = (at >= on.low_s) & (at <= on.high_s)
    made = np.minimum(of.samples, full[:, None])
    best = np.maximum(best, np.where(inside, made / np.where(inside, on.g(at), 1.0), 0.0).max(axis=1))
    if on.span_s < INFINITE:
        # Ratio where the table reaches the full rate of a step.
        meets = _reached_s(at, of.lag_s, of.samples, full)
        inside = (meets >= on.low_s) & (meets <= on.high_s)
        best = np.maximum(best, np.where(inside, full / np.where(inside, on.g(meets), 1.0), 0.0))
    return best * _ROUNDING


def _reached_s(knots_s: Floats, lag_s: Floats, samples: Floats, full: Floats) -> Floats:
    """Return `[num_rows]`: the window in which each table reaches `full` samples."""
    # First knot with at least `full` samples, and where between it and the knot before the table reaches them.
    place = np.argmax(samples >= full[:, None], axis=1)
    before = np.maximum(place - 1, 0)
    rows = np.arange(len(full))
    low, high = samples[rows, before], samples[rows, place]
    rise = np.where(high > low, high - low, 1.0)
    start_s, end_s = knots_s[rows, before], knots_s[rows, place]
    inside = start_s + np.clip((full - low) / rise, 0.0, 1.0) * (end_s - start_s)
    # Beyond the grid the mean rate since the lag goes on.
    last = samples[:, -1]
    found: Floats = np.where(last >= full, inside, (knots_s[:, -1] - lag_s) * full / np.maximum(last, 1e-300) + lag_s)
    return found


def carried_s(on: Interval, lag_s: Floats) -> Floats:
    """Return the largest ratio of the seconds that a region with this lag sends samples and g, `[num_regions]`."""
    at = np.stack([np.full(len(lag_s), on.low_s), np.full(len(lag_s), on.high_s), on.span_s + lag_s])
    at = np.clip(at, on.low_s, on.high_s)
    most: Floats = (np.clip(at - lag_s, 0.0, on.span_s) / on.g(at)).max(axis=0)
    return most * _ROUNDING


def shapes(of: ReachableUnits, on: Interval, settings: ExactSettings) -> list[Interval]:
    """Return the same interval with the g of single units, from the steepest to the flattest.

    Rows of each such g hold, and together they are tighter where units differ.
    """
    made = of.made(np.array([on.low_s, on.high_s]), on.span_s)
    makes = made[:, 1] > 0
    if on.high_s <= on.low_s or not makes.any():
        return []
    # Samples at the interval's lower end as a share of those at its upper end, for each unit: [num_units].
    each_first = np.clip(made[makes, 0] / made[makes, 1], settings.window_steepest, 1.0)
    # A few representative shapes, without those that are nearly equal.
    firsts = np.quantile(each_first, settings.window_shapes)
    distinct: list[float] = []
    for first in firsts.tolist():
        if all(abs(first - each) > settings.window_shape_distance for each in (on.first, *distinct)):
            distinct.append(first)
    return [replace(on, first=first) for first in distinct]


def add_window(
    data: ProblemArrays,
    model: LinearModel,
    units: UnitVariables,
    on: Interval,
    trainer_region: int,
    window: int,
    scale_s: float,
) -> None:
    """Add the rows that bound what is made within the variable `window` (y), on one interval of windows.

        sum over u of c_u g_u >= 1 / g(q) - g'(q) / g(q)^2 (y - q)   for several q in the interval

    where g_u counts the units u that generate. Valid: in a window y unit u makes at most the share c_u g(y) of a step's
    samples. All of them must be made, so the sum of c_u g_u is at least 1 / g(y). And 1 / g is convex where g is affine
    and positive, so it is nowhere below its tangents, of which the right side is one. Rows for several g all hold.
    """
    settings = data.settings
    more = shapes(units.of, on, settings) if data.pays_for_few else []
    for each in dict.fromkeys((on, *more, *_flat(units.of, on, settings))):
        at, values = _rated(data, model, units, each, trainer_region)
        num_points = settings.window_tangents if each.tilt else 1
        for point in np.unique(np.linspace(each.low_s, each.high_s, num_points)).tolist():
            here = float(each.g(np.array([point]))[0])
            # Tangent of 1 / g at `point`: sum(n c) >= 1 / here - tilt (window - point).
            tilt = each.tilt / here**2
            model.add(np.append(at, window), np.append(values, tilt * scale_s), low=1.0 / here + tilt * point)


def _flat(of: ReachableUnits, on: Interval, settings: ExactSettings) -> list[Interval]:
    """Return the same interval with g = 1, if it is short and some unit's table jumps in it; else nothing.

    At a jump no slope fits all units, however short the interval is, but none makes more than at its end.
    """
    ends = of.made(np.array([on.high_s]), on.span_s)[:, 0]
    is_short = on.high_s - on.low_s <= settings.window_short * on.high_s
    is_rough = is_short and bool((ends < most_made(of, on) * (1 - settings.window_rough)).any())
    return [replace(on, first=1.0)] if is_rough else []


def _rated(
    data: ProblemArrays, model: LinearModel, units: UnitVariables, on: Interval, trainer_region: int
) -> tuple[Ints, Floats]:
    """Return (variables, largest share of a step's samples per unit and g).

    The limits of routes and of the downlink are included.
    """
    transfers, of, samples = data.transfers(trainer_region), units.of, data.samples
    # Least lag of any unit in each region: [num_regions].
    lag_s = np.full(len(data.regions), INFINITE)
    np.minimum.at(lag_s, of.region, of.lag_s)
    near = np.isfinite(lag_s)
    # Largest ratio of what each route carries to g on the interval: [num_regions].
    caps = np.zeros(len(lag_s))
    with np.errstate(invalid="ignore"):
        caps[near] = np.nan_to_num(transfers.samples_per_s[near] * carried_s(on, lag_s[near]), nan=0.0, posinf=INFINITE)
    away = lag_s[near & (np.arange(len(lag_s)) != trainer_region)]
    down = INFINITE
    if len(away) and transfers.down_per_s < INFINITE:
        down = transfers.down_per_s * float(carried_s(on, away.min(keepdims=True))[0]) / samples
    return limit_by_routes(model, units, most_made(of, on) / samples, caps / samples, transfers, down)


def looseness(
    data: ProblemArrays, units: UnitVariables, on: Interval, counts: Floats, trainer_region: int, window_s: float
) -> float:
    """Return the share of a step's samples that the rows count as made in this window although they are not."""
    transfers, of = data.transfers(trainer_region), units.of
    made, lag_s = np.zeros(len(data.regions)), np.full(len(data.regions), INFINITE)
    # Samples that really arrive: made within the window, limited by each route and the downlink.
    np.add.at(made, of.region, counts * of.made(np.array([window_s]), on.span_s)[:, 0])
    np.minimum.at(lag_s, of.region, of.lag_s)
    carried_s = np.clip(window_s - lag_s, 0.0, on.span_s)
    away = (np.arange(len(made)) != trainer_region) & (made > 0)
    made[away] = np.minimum(made[away], transfers.samples_per_s[away] * carried_s[away])
    far = made[away].sum()
    if far > 0 and transfers.down_per_s < INFINITE:
        far = min(far, transfers.down_per_s * carried_s[away].max())
    return max(0.0, 1.0 - float(made[~away].sum() + far) / data.samples)
