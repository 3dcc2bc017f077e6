"""What the windows of two versions that overlap on the same engines take longer.

At eta >= 1 a version's window may be longer than a step: when the next version comes, the last sequences of this one
still run. From then on steps take as long as the sequences of both together ask, or sequences wait for slots that
others have. A phase that ends after s seconds where an engine has nothing else to do then ends after

    s + extra(s) x (s - load - span),   extra(s) = min(slope x (s - first), most)

where `span` is what a step leaves for generation, so that the last factor is what the windows overlap. A decoding step
is a fixed part, weights and launches, and one in proportion to the sequences that run. `first`, the end of a phase of
one sample, is nearly all of the fixed kind; s - first is the other kind. While windows overlap, one set's tail runs
beside the other's start: `extra` is their sequences' part of a step over the fixed part. It is at most what it is with
all slots full, where the tail keeps the start from its slots. Of three versions at a time only two are counted.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.cuts import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Overlap:
    """Of one replica, whatever its slots."""

    load_s: float = 0.0
    """From a version's arrival until engines have it: they go on with the older one."""
    first_s: float = 0.0
    """The end of a phase of one sample, `load_s` included."""
    slope_per_s: float = 0.0
    most: float = 0.0

    def extra(self, phase_s: float) -> float:
        """Of a phase that ends after so many seconds alone."""
        return min(self.slope_per_s * max(0.0, phase_s - self.first_s), self.most)

    def end_s(self, phase_s: float, span_s: float) -> float:
        """When it ends beside the one before and the one after."""
        return phase_s + self.extra(phase_s) * max(0.0, phase_s - self.load_s - span_s)

    def is_no_worse(self, other: "Overlap") -> bool:
        """Whether any phase that is as long alone ends as early."""
        return (
            self.slope_per_s <= other.slope_per_s
            and self.most <= other.most
            and self.load_s >= other.load_s
            and self.first_s >= other.first_s
        )


NONE = Overlap()


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Of many: [rows] each."""

    load_s: FloatArray
    first_s: FloatArray
    slope_per_s: FloatArray
    most: FloatArray

    def some(self, rows: IntArray) -> "Overlaps":
        """Of any shape."""
        return Overlaps(self.load_s[rows], self.first_s[rows], self.slope_per_s[rows], self.most[rows])

    def extra(self, phase_s: FloatArray) -> FloatArray:
        """Elementwise, as of one."""
        found: FloatArray = np.minimum(self.slope_per_s * np.maximum(0.0, phase_s - self.first_s), self.most)
        return found

    def end_s(self, phase_s: FloatArray, span_s: FloatArray | float) -> FloatArray:
        """Elementwise, as of one."""
        found: FloatArray = phase_s + self.extra(phase_s) * np.maximum(0.0, phase_s - self.load_s - span_s)
        return found

    def knots_s(self, seconds: FloatArray, span_s: float) -> FloatArray:
        """[rows, knots]: of each knot of a grid."""
        whole = Overlaps(self.load_s[:, None], self.first_s[:, None], self.slope_per_s[:, None], self.most[:, None])
        return whole.end_s(seconds[None, :], span_s)


def overlaps_of(each: list[Overlap]) -> Overlaps:
    """As arrays."""
    return Overlaps(
        load_s=np.array([one.load_s for one in each], dtype=np.float64),
        first_s=np.array([one.first_s for one in each], dtype=np.float64),
        slope_per_s=np.array([one.slope_per_s for one in each], dtype=np.float64),
        most=np.array([one.most for one in each], dtype=np.float64),
    )


def made_in(
    seconds: FloatArray,
    samples: FloatArray,
    row: IntArray,
    overlaps: Overlaps,
    window_s: FloatArray,
    span_s: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[entries]: samples of units in their windows, and what a second more of the window, and of the span, adds.

    samples: [rows, knots] over the grid `seconds`; linear in the window between the knots' ends, as `PhaseTable`.
    """
    mine, last = overlaps.some(row), len(seconds) - 1
    high = np.searchsorted(seconds, window_s, side="right") - 1
    low = np.minimum(np.searchsorted(seconds, np.minimum(window_s, mine.load_s + span_s), side="right") - 1, high)
    while (high > low).any():
        middle = (low + high + 1) // 2
        is_over = mine.end_s(seconds[middle], span_s) <= window_s
        low, high = np.where(is_over, middle, low), np.where(is_over, high, middle - 1)
    at = np.clip(low, 0, last - 1)
    start_s, end_s = mine.end_s(seconds[at], span_s), mine.end_s(seconds[at + 1], span_s)
    width = np.where(end_s > start_s, end_s - start_s, 1.0)
    below = samples[row, at]
    rise = (samples[row, at + 1] - below) / width
    part = (window_s - start_s) / width
    sooner, later = (
        np.where(seconds[place] > mine.load_s + span_s, mine.extra(seconds[place]), 0.0) for place in (at, at + 1)
    )
    made, longer = below + part * (samples[row, at + 1] - below), rise * (sooner + part * (later - sooner))
    if (is_beyond := low == last).any():
        steady = samples[row, last] / end_s
        made, rise = np.where(is_beyond, window_s * steady, made), np.where(is_beyond, steady, rise)
        longer = np.where(is_beyond, window_s * steady / end_s * later, longer)
    is_late = low >= 0
    return np.where(is_late, made, 0.0), np.where(is_late, rise, 0.0), np.where(is_late, longer, 0.0)
