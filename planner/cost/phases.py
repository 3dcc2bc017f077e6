"""Samples by a phase's end, as tables over one grid of seconds that all pools of a problem share.

On one grid the samples of many pools are a weighted sum of their tables. A replica makes nothing before its first
sample; each such moment is two knots of the grid, the one before it and the one at it, so that tables may jump there.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.cuts import FloatArray, IntArray
from planner.cost.overlap import NONE, Overlap

NUM_KNOTS = 192
KNOT = 1e-9
"""Relative: a phase that ends so little before a jump ends at it."""
SPAN = 4096.0
"""The grid ends at so many times its start; beyond, tables are in proportion to the last knot."""


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Samples that one unit makes in a phase of given seconds: linear between knots, in proportion beyond the last."""

    seconds: FloatArray
    """Ascending; the problem's grid. A doubled knot is a jump: before, and at it."""
    samples: FloatArray
    overlap: Overlap = NONE

    @property
    def first_s(self) -> float:
        """When the first sample is done."""
        return float(self.seconds[int(np.argmax(self.samples > 0))])

    def within(self, seconds: float) -> float:
        """Samples of a phase that long."""
        return self.around(seconds)[0]

    def around(self, seconds: float) -> tuple[float, float]:
        """Samples of a phase that long, and what a second more adds."""
        place, last = int(self.seconds.searchsorted(seconds, side="right")) - 1, len(self.seconds) - 1
        if place < 0:
            return 0.0, 0.0
        if place == last:
            rate = self.samples.item(last) / self.seconds.item(last)
            return rate * seconds, rate
        at, below = self.seconds.item(place), self.samples.item(place)
        rise = (self.samples.item(place + 1) - below) / (self.seconds.item(place + 1) - at)
        return below + (seconds - at) * rise, rise

    def beside(self, window_s: float, span_s: float) -> tuple[float, float, float]:
        """Samples in a window of which steps leave `span_s` each to generation; and what a second more of the window,
        and of the span, adds. Linear in the window between the knots' ends."""
        last = len(self.seconds) - 1
        after = min(int(self.seconds.searchsorted(window_s, side="right")), last)
        if self.seconds.item(after) <= self.overlap.load_s + span_s:
            return (*self.around(window_s), 0.0)

        def end_s(place: int) -> float:
            return self.overlap.end_s(self.seconds.item(place), span_s)

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
    """Knots for replicas whose first samples are ready at these moments."""
    jumps = sorted(set(firsts))
    plain = np.geomspace(jumps[0], jumps[0] * SPAN, NUM_KNOTS)
    knots: FloatArray = np.sort(np.concatenate([np.setdiff1d(plain, jumps), jumps, jumps]))
    return knots


def table(seconds: FloatArray, first_s: float, shares: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """[..., knots]: `shares` at the grid's knots, with the jump at `first_s`, which is one of them."""
    samples = shares(seconds)
    before = int(np.searchsorted(seconds, first_s, side="left"))
    samples[..., : before + 1] = 0.0
    return samples


def around(seconds: FloatArray, samples: FloatArray, row: IntArray, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[...]: samples of phases `at` seconds long, and what a second more adds.

    samples: [rows, knots] over the grid `seconds`; `row` and `at` broadcast.
    """
    last = len(seconds) - 1
    place = np.searchsorted(seconds, at, side="right") - 1
    low = np.clip(place, 0, last - 1)
    below, width = samples[row, low], seconds[low + 1] - seconds[low]
    rise = (samples[row, low + 1] - below) / np.where(width > 0, width, 1.0)
    made = below + (at - seconds[low]) * rise
    if (is_beyond := place == last).any():
        steady = samples[row, last] / seconds[last]
        made, rise = np.where(is_beyond, at * steady, made), np.where(is_beyond, steady, rise)
    is_late = place >= 0
    return np.where(is_late, made, 0.0), np.where(is_late, rise, 0.0)


def phase_end_s(tables: Sequence[tuple[float, PhaseTable]], samples: float) -> float:
    """Least seconds in which so many units of each table make `samples` together."""
    made: FloatArray = sum((units * each.samples for units, each in tables), np.zeros(len(tables[0][1].seconds)))
    return end_s(tables[0][1].seconds, made, samples)


def end_s(seconds: FloatArray, made: FloatArray, samples: float) -> float:
    """Least seconds in which `made`, over the grid, reaches `samples`."""
    return float(ends_s(seconds, lambda place: made[place], (1,), samples)[0])


def ends_s(
    seconds: FloatArray, made: Callable[[IntArray], FloatArray], shape: tuple[int, ...], samples: float
) -> FloatArray:
    """The same for many: `made` gives the samples of each at its own place of the grid."""
    last = len(seconds) - 1
    enough = samples * (1 - 1e-12)
    low, high = np.full(shape, -1), np.full(shape, last)
    for _ in range(int(np.ceil(np.log2(last + 2)))):
        middle = np.clip((low + high) // 2, 0, last)
        is_enough = made(middle) >= enough
        high = np.where(is_enough, np.minimum(high, middle), high)
        low = np.where(is_enough, low, np.minimum(np.maximum(low, middle), high - 1))
    there = made(high)
    before = np.where(high > 0, made(np.maximum(high - 1, 0)), 0.0)
    start = seconds[np.maximum(high - 1, 0)]
    rise = np.where(there > before, there - before, 1.0)
    inside = start + np.clip((samples - before) / rise, 0.0, 1.0) * (seconds[high] - start)
    beyond = seconds[-1] * samples / np.maximum(there, 1e-300)
    found: FloatArray = np.where(there >= enough, inside, beyond)
    return found
