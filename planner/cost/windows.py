"""The least step in which pools that only generate make a step's samples, for many placements at once.

The rule is `planner.cost.window`'s; here it is over arrays. A test holds that both say the same.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.cuts import BoolArray, FloatArray, IntArray
from planner.cost.overlap import Overlaps, made_in
from planner.cost.phases import KNOT, around
from planner.cost.window import CLOSE, FRESH, MOST_S, TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """[rows, places]: units of generating pools; [rows, regions]: where they are."""

    seconds: FloatArray
    """The problem's grid."""
    tables: FloatArray
    """[units, knots]: samples of one unit."""
    overlaps: Overlaps
    """Of each of them."""
    unit: IntArray
    """Of `tables`."""
    count: FloatArray
    """Units; 0: a place without."""
    rate: FloatArray
    """Samples a second of one unit at its full rate."""
    region: IntArray
    lag_s: FloatArray
    """Of a region: weights and trajectories."""
    caps: FloatArray
    """Samples a second that a region's way home carries; infinite at home."""
    is_away: BoolArray
    down_per_s: FloatArray
    """Of a row: samples a second that enter the trainer's region."""
    before_s: FloatArray
    others_s: FloatArray
    """Of a row: what other tasks of the group take of a step; 0 at eta 0."""
    eta: int
    samples: float

    def rows(self, which: IntArray) -> "Windows":
        """Some of them."""
        return Windows(
            seconds=self.seconds, tables=self.tables, overlaps=self.overlaps, unit=self.unit[which],
            count=self.count[which], rate=self.rate[which], region=self.region[which], lag_s=self.lag_s[which],
            caps=self.caps[which], is_away=self.is_away[which], down_per_s=self.down_per_s[which],
            before_s=self.before_s[which], others_s=self.others_s[which], eta=self.eta, samples=self.samples,
        )  # fmt: skip

    def window_s(self, step_s: FloatArray) -> FloatArray:
        """[rows, regions]: at least 0."""
        found: FloatArray = np.maximum(
            0.0, ((self.eta + 1) * step_s - self.before_s)[:, None] - np.where(np.isfinite(self.lag_s), self.lag_s, 0.0)
        )
        return found

    def full_s(self) -> FloatArray:
        """The step's seconds that all of them at their full rates take, `others_s` apart."""
        here = self._summed(self.count * self.rate)
        far = np.where(self.is_away, np.minimum(here, self.caps), 0.0).sum(axis=1)
        rate = np.where(self.is_away, 0.0, here).sum(axis=1) + np.minimum(far, self.down_per_s)
        seconds: FloatArray = self.samples / np.maximum(rate, 1e-300)
        return seconds

    def makes(self, step_s: FloatArray) -> BoolArray:
        """[rows, places]: whether a unit has any sample done in its window; one that is done at its end counts."""
        own_s = np.take_along_axis(self.window_s(step_s) * (1 + KNOT), self.region, axis=1)
        found: BoolArray = (self.count > 0) & (around(self.seconds, self.tables, self.unit, own_s)[0] > 0)
        return found

    def made(self, step_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """[rows, regions]: samples a step of each region, before the downlink's limit; and a second more's."""
        window_s = self.window_s(step_s)
        units, more = self._in_windows(np.take_along_axis(window_s, self.region, axis=1), step_s)
        carried_s, longer = window_s, np.full_like(window_s, self.eta + 1)
        if self.eta:
            span_s = np.maximum(0.0, step_s - self.others_s)[:, None]
            at_full = self.rate * span_s
            more = np.where(at_full < units, self.rate, more)
            units = np.minimum(units, at_full)
            longer = np.where(span_s < window_s, 1.0, longer)
            carried_s = np.minimum(window_s, span_s)
        made, more = self._summed(self.count * units), self._summed(self.count * more)
        if not self._has_caps:
            return made, more
        caps = np.where(self.is_away & (made > 0), self.caps, 0.0)
        is_capped = self.is_away & (caps * carried_s < made)
        return np.where(is_capped, caps * carried_s, made), np.where(is_capped, caps * longer, more)

    def total(self, step_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """[rows]: samples a step; and what a second more adds."""
        made, more = self.made(step_s)
        if not self._has_downlinks:
            return made.sum(axis=1), more.sum(axis=1)
        far, far_more = np.where(self.is_away, made, 0.0), np.where(self.is_away, more, 0.0)
        carried_s = np.where(far > 0, self.window_s(step_s), 0.0).max(axis=1)
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
        """[rows]: the least step; infinite where none is long enough."""
        enough, most = self.samples * (1 - CLOSE), self.samples * (1 + 2 * CLOSE)
        full_s = self.full_s()
        low = full_s + self.others_s if self.eta else self.before_s
        made, more = self.total(low)
        found = np.where(made >= enough, low, np.inf)
        left = np.flatnonzero((made < enough) & (low < MOST_S))
        some = self.rows(left) if len(left) < len(low) else self
        guess = np.maximum((self.before_s + FRESH * full_s) / (self.eta + 1), low)[left]
        below: tuple[FloatArray, ...] = (low[left], made[left], more[left])
        above: tuple[FloatArray, ...] = (np.full(len(left), np.inf), *np.zeros((2, len(left))))
        for turn in range(TURNS):
            if not len(left):
                break
            at = np.maximum(self._next(below, above, turn), guess) if turn == 0 else self._next(below, above, turn)
            there = (at, *some.total(at))
            is_enough = there[1] >= enough
            above = tuple(np.where(is_enough, new, old) for new, old in zip(there, above, strict=True))
            below = tuple(np.where(is_enough, old, new) for new, old in zip(there, below, strict=True))
            is_close = (above[0] < np.inf) & (below[0] >= above[0] * (1 - CLOSE))
            is_done = (is_enough & (there[1] <= most)) | is_close | (below[0] > MOST_S)
            if is_done.any():
                found[left[is_done]] = above[0][is_done]
                rest = np.flatnonzero(~is_done)
                left, some = left[rest], some.rows(rest)
                below, above = tuple(each[rest] for each in below), tuple(each[rest] for each in above)
        return found

    def _next(self, below: tuple[FloatArray, ...], above: tuple[FloatArray, ...], turn: int) -> FloatArray:
        """Where to look between two steps, each with its samples and what a second more adds: along the line from
        below, along the line from above, in the middle, by turns."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            at = below[0] + (self.samples - below[1]) / below[2]
            if turn % 3 == 1:
                at = np.where(above[0] < np.inf, above[0] - (above[1] - self.samples) / above[2], at)
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
        """[rows, places]: samples of a unit in its window; and what a second more of the step adds."""
        made, more = around(self.seconds, self.tables, self.unit, own_s)
        more = more * (self.eta + 1)
        if not self.eta:
            return made, more
        span_s = np.broadcast_to(np.maximum(0.0, step_s - self.others_s)[:, None], own_s.shape)
        after = np.minimum(np.searchsorted(self.seconds, own_s, side="right"), len(self.seconds) - 1)
        at = np.nonzero((self.seconds[after] > self.overlaps.load_s[self.unit] + span_s) & (self.count > 0))
        if len(at[0]):
            found = made_in(self.seconds, self.tables, self.unit[at], self.overlaps, own_s[at], span_s[at])
            made[at], more[at] = found[0], found[1] * (self.eta + 1) + found[2]
        return made, more

    def _summed(self, values: FloatArray) -> FloatArray:
        """[rows, places] to [rows, regions]."""
        num, size = self.lag_s.shape
        at = self.region + size * np.arange(num)[:, None]
        flat = np.bincount(at.ravel(), weights=values.ravel(), minlength=num * size)
        summed: FloatArray = flat.astype(np.float64, copy=False).reshape(num, size)
        return summed
