"""Least step time at which pools that only generate make a step's samples, for many placements at once.

This is the rule of `planner.cost.step.generation_window` over arrays: the window of region r is y_r = (eta + 1) tau -
before - lag_r, and the least tau at which all pools make enough samples is found by Newton steps within a bracket.
Tests compare both forms.

Shapes: rows are placements; *places* are the slots for pools of a row, of which some may be unused; *units* are the
distinct units that pools consist of; *knots* are those of the problem's time grid.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.step.generation_window import FRESH, MAX_ITERATIONS, MOST_S, REL_TOLERANCE
from planner.cost.tasks.layer_cuts import BoolArray, FloatArray, IntArray
from planner.cost.tasks.phase_tables import JUMP_TOLERANCE, samples_and_slope
from planner.cost.tasks.version_overlap import Overlaps, made_in


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedWindows:
    """Generating pools of many placements; arrays are `[num_rows, num_places]` unless said otherwise."""

    seconds: FloatArray
    """Time grid of the problem, `[num_knots]`."""
    tables: FloatArray
    """Samples of one unit by the end of a phase, `[num_units, num_knots]`."""
    overlaps: Overlaps
    """Slow-down of overlapping windows, `[num_units]` each."""
    unit: IntArray
    """Row of `tables` of each pool."""
    count: FloatArray
    """Number of units of each pool; 0 in an unused place."""
    rate: FloatArray
    """Samples per second of one unit at its full rate."""
    region: IntArray
    """Index of the pool's region."""
    lag_s: FloatArray
    """Seconds for weights to arrive in a region and trajectories to return, `[num_rows, num_regions]`; inf without a
    route."""
    caps: FloatArray
    """Samples per second that a region's route to the trainer's region carries, `[num_rows, num_regions]`; inf within
    it."""
    is_away: BoolArray
    """Whether the region is not the trainer's region, `[num_rows, num_regions]`."""
    down_per_s: FloatArray
    """Samples per second that may enter the trainer's region, `[num_rows]`."""
    before_s: FloatArray
    """Seconds of training, scoring and `others_s` that precede every window, `[num_rows]`."""
    others_s: FloatArray
    """Seconds of a step that the other tasks of generation's group take, `[num_rows]`; 0 at eta 0."""
    eta: int
    """Staleness bound."""
    samples: float
    """Samples of one step."""

    def rows(self, which: IntArray) -> "BatchedWindows":
        """Return the selected rows."""
        return BatchedWindows(
            seconds=self.seconds,
            tables=self.tables,
            overlaps=self.overlaps,
            unit=self.unit[which],
            count=self.count[which],
            rate=self.rate[which],
            region=self.region[which],
            lag_s=self.lag_s[which],
            caps=self.caps[which],
            is_away=self.is_away[which],
            down_per_s=self.down_per_s[which],
            before_s=self.before_s[which],
            others_s=self.others_s[which],
            eta=self.eta,
            samples=self.samples,
        )

    def window_s(self, step_s: FloatArray) -> FloatArray:
        """Return the length of each region's window, `[num_rows, num_regions]`, at least 0."""
        found: FloatArray = np.maximum(
            0.0, ((self.eta + 1) * step_s - self.before_s)[:, None] - np.where(np.isfinite(self.lag_s), self.lag_s, 0.0)
        )
        return found

    def full_s(self) -> FloatArray:
        """Return `[num_rows]`: seconds in which all pools make a step's samples at full rate, without `others_s`."""
        here = self._summed(self.count * self.rate)
        far = np.where(self.is_away, np.minimum(here, self.caps), 0.0).sum(axis=1)
        rate = np.where(self.is_away, 0.0, here).sum(axis=1) + np.minimum(far, self.down_per_s)
        seconds: FloatArray = self.samples / np.maximum(rate, 1e-300)
        return seconds

    def makes(self, step_s: FloatArray) -> BoolArray:
        """Return `[num_rows, num_places]`: whether a unit finishes any sample in its window.

        A sample that ends exactly with the window counts.
        """
        own_s = np.take_along_axis(self.window_s(step_s) * (1 + JUMP_TOLERANCE), self.region, axis=1)
        found: BoolArray = (self.count > 0) & (samples_and_slope(self.seconds, self.tables, self.unit, own_s)[0] > 0)
        return found

    def made(self, step_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (samples per step of each region, additional samples per second of longer step).

        Both are `[num_rows, num_regions]`, before the downlink's limit.
        """
        window_s = self.window_s(step_s)
        units, more = self._in_windows(np.take_along_axis(window_s, self.region, axis=1), step_s)
        carried_s, longer = window_s, np.full_like(window_s, self.eta + 1)
        if self.eta:
            span_s = np.maximum(0.0, step_s - self.others_s)[:, None]
            # The full rate for all of a step is an upper limit; routes carry samples only in the shorter of window and
            # span.
            at_full = self.rate * span_s
            more = np.where(at_full < units, self.rate, more)
            units = np.minimum(units, at_full)
            longer = np.where(span_s < window_s, 1.0, longer)
            carried_s = np.minimum(window_s, span_s)
        made, more = self._summed(self.count * units), self._summed(self.count * more)
        if not self._has_caps:
            return made, more
        # A remote region delivers at most what its route carries.
        caps = np.where(self.is_away & (made > 0), self.caps, 0.0)
        is_capped = self.is_away & (caps * carried_s < made)
        return np.where(is_capped, caps * carried_s, made), np.where(is_capped, caps * longer, more)

    def total(self, step_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (samples per step of all regions, additional samples per second of longer step), each `[num_rows]`."""
        made, more = self.made(step_s)
        if not self._has_downlinks:
            return made.sum(axis=1), more.sum(axis=1)
        # The downlink carries the samples of all remote regions during the longest of their windows.
        far, far_more = np.where(self.is_away, made, 0.0), np.where(self.is_away, more, 0.0)
        carried_s = np.where(far > 0, self.window_s(step_s), 0.0).max(axis=1)
        # Derivative of the longest window by the step: eta + 1, or 1 where the span of a step is shorter than the
        # window.
        longer = np.full_like(carried_s, self.eta + 1)
        if self.eta:
            span_s = np.maximum(0.0, step_s - self.others_s)
            longer = np.where(span_s < carried_s, 1.0, longer)
            carried_s = np.minimum(carried_s, span_s)
        down = np.where(carried_s > 0, self.down_per_s, 0.0)
        is_capped = down * carried_s < far.sum(axis=1)
        here, here_more = np.where(self.is_away, 0.0, made).sum(axis=1), np.where(self.is_away, 0.0, more).sum(axis=1)
        return (
            here + np.where(is_capped, down * carried_s, far.sum(axis=1)),
            here_more + np.where(is_capped, down * longer, far_more.sum(axis=1)),
        )

    def least_s(self) -> FloatArray:
        """Return the least step time of each row, `[num_rows]`; inf where no step is long enough."""
        enough, most = self.samples * (1 - REL_TOLERANCE), self.samples * (1 + 2 * REL_TOLERANCE)
        full_s = self.full_s()
        low = full_s + self.others_s if self.eta else self.before_s
        made, more = self.total(low)
        # Rows whose lower limit is already long enough are done. The others (`left`) get a bracket `below` < tau <=
        # `above`.
        found = np.where(made >= enough, low, np.inf)
        left = np.flatnonzero((made < enough) & (low < MOST_S))
        some = self.rows(left) if len(left) < len(low) else self
        guess = np.maximum((self.before_s + FRESH * full_s) / (self.eta + 1), low)[left]
        # Each end of the bracket is (step time, samples, samples per second of longer step), each `[num_left]`.
        below: tuple[FloatArray, ...] = (low[left], made[left], more[left])
        above: tuple[FloatArray, ...] = (np.full(len(left), np.inf), *np.zeros((2, len(left))))
        for turn in range(MAX_ITERATIONS):
            if not len(left):
                break
            at = np.maximum(self._next(below, above, turn), guess) if turn == 0 else self._next(below, above, turn)
            # Evaluate the new step times and move the end of the bracket on whose side they are.
            there = (at, *some.total(at))
            is_enough = there[1] >= enough
            above = tuple(np.where(is_enough, new, old) for new, old in zip(there, above, strict=True))
            below = tuple(np.where(is_enough, old, new) for new, old in zip(there, below, strict=True))
            # Rows are done when the samples fit exactly, the bracket has closed, or no step is long enough.
            is_close = (above[0] < np.inf) & (below[0] >= above[0] * (1 - REL_TOLERANCE))
            is_done = (is_enough & (there[1] <= most)) | is_close | (below[0] > MOST_S)
            if is_done.any():
                found[left[is_done]] = above[0][is_done]
                rest = np.flatnonzero(~is_done)
                left, some = left[rest], some.rows(rest)
                below, above = tuple(each[rest] for each in below), tuple(each[rest] for each in above)
        return found

    def _next(self, below: tuple[FloatArray, ...], above: tuple[FloatArray, ...], turn: int) -> FloatArray:
        """Return the next step times to try: Newton from below, Newton from above and bisection, in rotation.

        `below` and `above` are the ends of the bracket. A Newton step that leaves it is replaced by the middle.
        """
        # Slopes may be 0 and ends infinite; such steps are not inside the bracket and are replaced below.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            at = below[0] + (self.samples - below[1]) / below[2]
            if turn % 3 == 1:
                at = np.where(above[0] < np.inf, above[0] - (above[1] - self.samples) / above[2], at)
            # Without an upper end the bracket grows fourfold.
            middle = np.where(above[0] < np.inf, (below[0] + above[0]) / 2, 4 * below[0])
        is_inside = (at > below[0]) & (at < above[0]) & (turn % 3 < 2)
        found: FloatArray = np.where(is_inside, at, middle)
        return found

    @property
    def _has_caps(self) -> bool:
        return bool(np.isfinite(self.caps[self.is_away]).any())

    @property
    def _has_downlinks(self) -> bool:
        return bool(np.isfinite(self.down_per_s).any())

    def _in_windows(self, own_s: FloatArray, step_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (samples of a unit in its window, more per second of longer step), `[num_rows, num_places]` each."""
        made, more = samples_and_slope(self.seconds, self.tables, self.unit, own_s)
        more = more * (self.eta + 1)
        if not self.eta:
            return made, more
        span_s = np.broadcast_to(np.maximum(0.0, step_s - self.others_s)[:, None], own_s.shape)
        # Only pools whose next knot lies in the overlap with the next version need the slower computation.
        after = np.minimum(np.searchsorted(self.seconds, own_s, side="right"), len(self.seconds) - 1)
        at = np.nonzero((self.seconds[after] > self.overlaps.load_s[self.unit] + span_s) & (self.count > 0))
        if len(at[0]):
            found = made_in(self.seconds, self.tables, self.unit[at], self.overlaps, own_s[at], span_s[at])
            made[at], more[at] = found[0], found[1] * (self.eta + 1) + found[2]
        return made, more

    def _summed(self, values: FloatArray) -> FloatArray:
        """Sum values of places, `[num_rows, num_places]`, by region: `[num_rows, num_regions]`."""
        num, size = self.lag_s.shape
        at = self.region + size * np.arange(num)[:, None]
        flat = np.bincount(at.ravel(), weights=values.ravel(), minlength=num * size)
        summed: FloatArray = flat.astype(np.float64, copy=False).reshape(num, size)
        return summed
