"""What the windows of versions that overlap on the same engines take longer.

At eta >= 1 a version's window may be longer than a step: when the next version comes, the last sequences of this one
still run. From then on steps take as long as the sequences of both together ask, or sequences wait for slots that
others have. A phase that ends after s seconds where an engine has nothing else to do then ends after

    two(s) = s + extra(s) x (s - load - span),   extra(s) = min(slope x (s - first), most)

where `span` is what a step leaves for generation, so that the last factor is what the windows overlap. A decoding step
is a fixed part, weights and launches, and one in proportion to the sequences that run. `first`, the end of a phase of
one sample, is nearly all of the fixed kind; s - first is the other kind. While windows overlap, one set's tail runs
beside the other's start: `extra` is their sequences' part of a step over the fixed part. It is at most what it is with
all slots full, where the tail keeps the start from its slots.

With eta >= 2 a phase may last for more than two spans, and more than two versions run. Each span brings the sequences
of one version, which take s - load - fixed seconds of it; `fixed` is what the longest sequence's steps take apart from
what sequences add to them. What is left of each span is for that fixed part:

    many(s) = load + fixed x span / (span + fixed - (s - load))

as where a processor is shared; at most as with all slots full. It averages over spans, which two versions do not: what
counts goes from two(s) to many(s), where that is more, as many(s) goes from two spans to three.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.cuts import FloatArray, IntArray

_MOST = 1e6
"""Times: no step of an engine is so much longer than another."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Of one replica, whatever its slots."""

    load_s: float = 0.0
    """From a version's arrival until engines have it: they go on with the older one."""
    first_s: float = 0.0
    """The end of a phase of one sample, `load_s` included."""
    slope_per_s: float = 0.0
    most: float = 0.0
    fixed_s: float = 0.0
    """What the longest sequence's steps take without any sequence's part; 0: never more than two versions count."""

    def end_s(self, phase_s: float, span_s: float) -> float:
        """When it ends beside those before and after it."""
        return self.end_and_rise(phase_s, span_s)[0]

    def end_and_rise(self, phase_s: float, span_s: float) -> tuple[float, float]:
        """When it ends, and how much earlier with a second more of the span; with a longer one it never ends later."""
        own_s = phase_s - self.load_s
        over_s = own_s - span_s
        if over_s <= 0:
            return phase_s, 0.0
        two = min(self.slope_per_s * max(0.0, phase_s - self.first_s), self.most)
        two_s = phase_s + two * over_s
        if not 0 < self.fixed_s < own_s:
            return two_s, two
        left_s = span_s + self.fixed_s - own_s
        most_s = own_s * (1 + min(self.most, _MOST))
        many_s, many = most_s, 0.0
        if left_s > 0 and self.fixed_s * span_s < most_s * left_s:
            many_s = self.fixed_s * span_s / left_s
            many = self.fixed_s * (own_s - self.fixed_s) / (left_s * left_s)
        beyond_s = many_s + self.load_s - two_s
        part = many_s / span_s - 2 if span_s > 0 else 1.0
        if part <= 0 or beyond_s <= 0:
            return two_s, two
        if part >= 1:
            return many_s + self.load_s, many
        return two_s + part * beyond_s, two + part * (many - two) + beyond_s * (many + many_s / span_s) / span_s

    def is_no_worse(self, other: "Overlap") -> bool:
        """Whether any phase that is as long alone ends as early."""
        return (
            self.slope_per_s <= other.slope_per_s
            and self.most <= other.most
            and self.load_s >= other.load_s
            and self.first_s >= other.first_s
            and (not self.fixed_s or 0 < other.fixed_s <= self.fixed_s)
        )


NONE = Overlap()


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Of many: [rows] each."""

    load_s: FloatArray
    first_s: FloatArray
    slope_per_s: FloatArray
    most: FloatArray
    fixed_s: FloatArray

    @property
    def has_many(self) -> bool:
        return bool(self.fixed_s.any())

    def some(self, rows: IntArray) -> "Overlaps":
        """Of any shape."""
        return Overlaps(
            self.load_s[rows], self.first_s[rows], self.slope_per_s[rows], self.most[rows], self.fixed_s[rows]
        )

    def end_s(self, phase_s: FloatArray, span_s: FloatArray | float) -> FloatArray:
        """Elementwise, as of one."""
        return self.end_and_rise(phase_s, span_s)[0]

    def end_and_rise(self, phase_s: FloatArray, span_s: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        """Elementwise, as of one."""
        over_s = phase_s - self.load_s - span_s
        two = np.minimum(self.slope_per_s * np.maximum(0.0, phase_s - self.first_s), self.most)
        two_s = phase_s + two * np.maximum(0.0, over_s)
        two = np.where(over_s > 0, two, 0.0)
        if not self.has_many:
            return two_s, two
        own_s, safe_s = phase_s - self.load_s, np.maximum(span_s, 1e-9)
        left_s, most_s = self.fixed_s - over_s, own_s * (1 + np.minimum(self.most, _MOST))
        is_less = (left_s > 0) & (self.fixed_s * span_s < most_s * left_s)
        left_s = np.where(is_less, left_s, 1.0)
        many_s = np.where(is_less, self.fixed_s * span_s / left_s, most_s)
        many = np.where(is_less, self.fixed_s * (own_s - self.fixed_s) / (left_s * left_s), 0.0)
        beyond_s = np.maximum(0.0, many_s + self.load_s - two_s)
        part = np.clip(many_s / safe_s - 2, 0.0, 1.0)
        part = np.where((over_s > 0) & (self.fixed_s > 0) & (self.fixed_s < own_s) & (beyond_s > 0), part, 0.0)
        more = np.where((part > 0) & (part < 1), beyond_s * (many + many_s / safe_s) / safe_s, 0.0)
        return two_s + part * beyond_s, two + part * (many - two) + more

    def knots_s(self, seconds: FloatArray, span_s: float) -> FloatArray:
        """[rows, knots]: of each knot of a grid."""
        columns = (self.load_s, self.first_s, self.slope_per_s, self.most, self.fixed_s)
        whole = Overlaps(*(each[:, None] for each in columns))
        return whole.end_s(seconds[None, :], span_s)


def overlaps_of(each: list[Overlap]) -> Overlaps:
    """As arrays."""
    return Overlaps(
        load_s=np.array([one.load_s for one in each], dtype=np.float64),
        first_s=np.array([one.first_s for one in each], dtype=np.float64),
        slope_per_s=np.array([one.slope_per_s for one in each], dtype=np.float64),
        most=np.array([one.most for one in each], dtype=np.float64),
        fixed_s=np.array([one.fixed_s for one in each], dtype=np.float64),
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
    (start_s, sooner), (end_s, later) = (mine.end_and_rise(seconds[place], span_s) for place in (at, at + 1))
    width = np.where(end_s > start_s, end_s - start_s, 1.0)
    below = samples[row, at]
    rise = (samples[row, at + 1] - below) / width
    part = (window_s - start_s) / width
    made, longer = below + part * (samples[row, at + 1] - below), rise * (sooner + part * (later - sooner))
    if (is_beyond := low == last).any():
        steady = samples[row, last] / end_s
        made, rise = np.where(is_beyond, window_s * steady, made), np.where(is_beyond, steady, rise)
        longer = np.where(is_beyond, window_s * steady / end_s * later, longer)
    is_late = low >= 0
    return np.where(is_late, made, 0.0), np.where(is_late, rise, 0.0), np.where(is_late, longer, 0.0)
