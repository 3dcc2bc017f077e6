"""Phase tables: samples that a pool makes within a given time, on one time grid that all pools of a problem share.

A *phase* is a stretch of generation that starts when a version arrives and ends when the last sequence has ended. Since
all tables have the same knots, the samples of many pools together are a weighted sum of their tables. The least time
for a given number of samples is then found by bisection over the knots and linear interpolation.

A replica makes nothing before its first sample is done, so its table jumps there. Each such moment is two equal knots
of the grid: the first one holds the value before the jump, the second one the value at it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.tasks.layer_cuts import FloatArray, IntArray
from planner.cost.tasks.version_overlap import NONE, Overlap

NUM_KNOTS = 192
"""Geometrically spaced knots of the grid, jumps apart. With this number a step's predicted seconds change by up to 0.7
% if another kind of machine adds knots (docs/planner-limits.md, "Limits of the certificate")."""
JUMP_TOLERANCE = 1e-9
"""Relative tolerance: a phase that ends this little before a jump counts as reaching it. It absorbs rounding."""
GRID_RATIO = 4096.0
"""Ratio of the last knot to the first one. Beyond the last knot tables grow in proportion to time. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Samples that one unit makes in a phase of given length.

    The table is linear between knots and proportional to time beyond the last knot.
    """

    seconds: FloatArray
    """Time grid of the problem, ascending, `[num_knots]`. A doubled knot is a jump: the values before and at it."""
    samples: FloatArray
    """Samples of one unit by each knot, `[num_knots]`."""
    overlap: Overlap = NONE
    """Slow-down by the versions before and after; used by `overlapped_samples` only."""

    @property
    def first_s(self) -> float:
        """Seconds until the first sample is done."""
        return float(self.seconds[int(np.argmax(self.samples > 0))])

    def samples_within(self, seconds: float) -> float:
        """Return the samples of a phase of this many seconds."""
        return self.samples_and_slope(seconds)[0]

    def samples_and_slope(self, seconds: float) -> tuple[float, float]:
        """Return (samples of a phase of this many seconds, additional samples per second of longer phase)."""
        place, last = int(self.seconds.searchsorted(seconds, side="right")) - 1, len(self.seconds) - 1
        if place < 0:
            return 0.0, 0.0
        # Beyond the grid the mean rate goes on.
        if place == last:
            rate = self.samples.item(last) / self.seconds.item(last)
            return rate * seconds, rate
        at, below = self.seconds.item(place), self.samples.item(place)
        rise = (self.samples.item(place + 1) - below) / (self.seconds.item(place + 1) - at)
        return below + (seconds - at) * rise, rise

    def overlapped_samples(self, window_s: float, span_s: float) -> tuple[float, float, float]:
        """Return the samples in a window that overlaps its neighbours, and two derivatives.

        `span_s` is what each step leaves for generation. The tuple is (samples, samples per second of longer window,
        samples per second of longer span). The slow-down shifts each knot to a later time; between the shifted knots
        the table is linear.
        """
        last = len(self.seconds) - 1
        after = min(int(self.seconds.searchsorted(window_s, side="right")), last)
        # Without overlap at the next knot, the plain table holds.
        if self.seconds.item(after) <= self.overlap.load_s + span_s:
            return (*self.samples_and_slope(window_s), 0.0)

        def end_s(place: int) -> float:
            return self.overlap.end_s(self.seconds.item(place), span_s)

        # Find the last knot whose shifted end is within the window.
        place = bisect_right(range(last + 1), window_s, key=end_s) - 1
        if place < 0:
            return 0.0, 0.0, 0.0
        if place == last:
            whole_s, sooner = self.overlap.end_and_rise(self.seconds.item(last), span_s)
            rate = self.samples.item(last) / whole_s
            return rate * window_s, rate, rate * window_s / whole_s * sooner
        below, more = self.samples.item(place), self.samples.item(place + 1) - self.samples.item(place)
        (start_s, sooner), (stop_s, later) = (
            self.overlap.end_and_rise(self.seconds.item(at), span_s) for at in (place, place + 1)
        )
        width = stop_s - start_s
        part = (window_s - start_s) / width
        return below + part * more, more / width, more / width * (sooner + part * (later - sooner))


def grid(firsts: Iterable[float]) -> FloatArray:
    """Return the time grid for replicas whose first samples are done at these moments, `[num_knots]`."""
    jumps = sorted(set(firsts))
    # Geometric knots, with each jump as a doubled knot in place of any plain knot at the same time.
    plain = np.geomspace(jumps[0], jumps[0] * GRID_RATIO, NUM_KNOTS)
    knots: FloatArray = np.sort(np.concatenate([np.setdiff1d(plain, jumps), jumps, jumps]))
    return knots


def table(seconds: FloatArray, first_s: float, shares: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return `[..., num_knots]`: the function `shares` at the grid's knots, 0 before the jump at `first_s`.

    `first_s` must be a doubled knot of the grid; the table is 0 up to and including the first of the two.
    """
    samples = shares(seconds)
    before = int(np.searchsorted(seconds, first_s, side="left"))
    samples[..., : before + 1] = 0.0
    return samples


def samples_and_slope(
    seconds: FloatArray, samples: FloatArray, row: IntArray, at: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return (samples of phases that end at `at`, additional samples per second of longer phase), elementwise.

    `samples` is `[num_rows, num_knots]` over the grid `seconds`. `row` selects the table of each entry and broadcasts
    against `at`. This is `PhaseTable.samples_and_slope` for many tables at once.
    """
    last = len(seconds) - 1
    place = np.searchsorted(seconds, at, side="right") - 1
    low = np.clip(place, 0, last - 1)
    # Linear between two knots. The width is 0 only at a jump, where `at` lies at or after its second knot.
    below, width = samples[row, low], seconds[low + 1] - seconds[low]
    rise = (samples[row, low + 1] - below) / np.where(width > 0, width, 1.0)
    made = below + (at - seconds[low]) * rise
    # Beyond the last knot samples grow in proportion to time.
    if (is_beyond := place == last).any():
        steady = samples[row, last] / seconds[last]
        made, rise = np.where(is_beyond, at * steady, made), np.where(is_beyond, steady, rise)
    is_late = place >= 0
    return np.where(is_late, made, 0.0), np.where(is_late, rise, 0.0)


def phase_end_s(tables: Sequence[tuple[float, PhaseTable]], samples: float) -> float:
    """Return the least seconds in which the units make `samples` together.

    `tables` has (number of units, table of one unit).
    """
    made: FloatArray = sum((units * each.samples for units, each in tables), np.zeros(len(tables[0][1].seconds)))
    return end_s(tables[0][1].seconds, made, samples)


def end_s(seconds: FloatArray, made: FloatArray, samples: float) -> float:
    """Return the least seconds in which `made`, `[num_knots]` over the grid, reaches `samples`."""
    return float(least_seconds(seconds, lambda place: made[place], (1,), samples)[0])


def least_seconds(
    seconds: FloatArray, made: Callable[[IntArray], FloatArray], shape: tuple[int, ...], samples: float
) -> FloatArray:
    """Return the least seconds in which each entry reaches `samples`, with the given shape.

    `made(place)` returns the samples of each entry by the knot with that entry's index `place`. It must not decrease.
    """
    last = len(seconds) - 1
    enough = samples * (1 - 1e-12)
    # Bisect for the first knot that has enough samples, for all entries at once.
    low, high = np.full(shape, -1), np.full(shape, last)
    for _ in range(int(np.ceil(np.log2(last + 2)))):
        middle = np.clip((low + high) // 2, 0, last)
        is_enough = made(middle) >= enough
        high = np.where(is_enough, np.minimum(high, middle), high)
        low = np.where(is_enough, low, np.minimum(np.maximum(low, middle), high - 1))
    # Interpolate between that knot and the one before it; beyond the last knot, extrapolate in proportion to time.
    there = made(high)
    before = np.where(high > 0, made(np.maximum(high - 1, 0)), 0.0)
    start = seconds[np.maximum(high - 1, 0)]
    rise = np.where(there > before, there - before, 1.0)
    inside = start + np.clip((samples - before) / rise, 0.0, 1.0) * (seconds[high] - start)
    beyond = seconds[-1] * samples / np.maximum(there, 1e-300)
    found: FloatArray = np.where(there >= enough, inside, beyond)
    return found
