"""Slow-down of generation where the windows of consecutive versions overlap on the same engines.

At staleness bound eta >= 1 a version's generation window may be longer than a step. When the next version arrives, the
last sequences of this one still run. From then on both compete: decoding steps take as long as the sequences of both
together need, or sequences wait for occupied slots. Suppose a phase takes s seconds on an idle engine. Beside its
neighbour it ends after

    two(s) = s + extra(s) x (s - load - span),   extra(s) = min(slope x (s - first), most)

- `span`: seconds of a step that are left for generation. So s - load - span is how long the windows overlap.
- `first`: the end of a phase of one sample. It is nearly all fixed cost (weights read, kernel launches); the rest, s -
  first, grows with the number of sequences. `extra` is the cost of the other version's sequences in a decoding step,
  relative to the fixed part.
- `most`: the value of `extra` with all slots full, where old sequences keep new ones out of their slots.

At eta >= 2 a phase may last longer than two spans, so more than two versions run. Then the engine is a shared processor
(Kleinrock 1967): each span brings the sequences of one version, which take s - load - fixed seconds of it. Here `fixed`
is the time of the longest sequence's decoding steps without the part that sequences add. The rest of each span works on
that fixed part:

    many(s) = load + fixed x span / (span + fixed - (s - load))

It is limited to the value with all slots full. many(s) is an average over spans, which two(s) is not. The model moves
linearly from two(s) to many(s), where that is larger, while many(s) grows from two to three spans.

`Overlap` is one replica, `Overlaps` the same arithmetic for arrays; a test holds that both agree.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.tasks.layer_cuts import FloatArray, IntArray

_MOST = 1e6
"""Largest allowed factor between two durations of a phase; it only keeps infinities out of the arithmetic."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Parameters of the slow-down of one replica. They do not depend on the number of slots."""

    load_s: float = 0.0
    """Seconds from a version's arrival until the engines have loaded it; until then they continue with the older
    version."""
    first_s: float = 0.0
    """Seconds until a phase of one sample ends, `load_s` included."""
    slope_per_s: float = 0.0
    """Growth of `extra` per second of the phase beyond `first_s`."""
    most: float = 0.0
    """Upper limit of `extra`, a factor. inf means no limit."""
    fixed_s: float = 0.0
    """Seconds of the longest sequence's decoding steps without the part that sequences add. 0 means that at most two
    versions overlap, as with eta <= 1."""

    def end_s(self, phase_s: float, span_s: float) -> float:
        """Return when a phase ends beside its neighbours if it takes `phase_s` alone and a step leaves `span_s`."""
        return self.end_and_rise(phase_s, span_s)[0]

    def end_and_rise(self, phase_s: float, span_s: float) -> tuple[float, float]:
        """Return (end of the phase in seconds, seconds that it ends earlier per second of longer span).

        The second value is never negative: with a longer span a phase never ends later.
        """
        own_s = phase_s - self.load_s
        over_s = own_s - span_s
        if over_s <= 0:
            return phase_s, 0.0
        # Two versions overlap: the formula two(s) of the module docstring.
        two = min(self.slope_per_s * max(0.0, phase_s - self.first_s), self.most)
        two_s = phase_s + two * over_s
        if not 0 < self.fixed_s < own_s:
            return two_s, two
        # More versions: processor sharing, limited to the duration with all slots full (`most_s`, which the span does
        # not change).
        left_s = span_s + self.fixed_s - own_s
        most_s = own_s * (1 + min(self.most, _MOST))
        many_s, many = most_s, 0.0
        if left_s > 0 and self.fixed_s * span_s < most_s * left_s:
            many_s = self.fixed_s * span_s / left_s
            many = self.fixed_s * (own_s - self.fixed_s) / (left_s * left_s)
        # Move from two(s) to many(s) while many(s) grows from two to three spans.
        beyond_s = many_s + self.load_s - two_s
        part = many_s / span_s - 2 if span_s > 0 else 1.0
        if part <= 0 or beyond_s <= 0:
            return two_s, two
        if part >= 1:
            return many_s + self.load_s, many
        return two_s + part * beyond_s, two + part * (many - two) + beyond_s * (many + many_s / span_s) / span_s

    def is_no_worse(self, other: "Overlap") -> bool:
        """Return whether every phase that takes as long on an idle engine ends as early here as with `other`."""
        # The slow-down grows no faster, has no higher limit and begins no earlier; without `fixed_s` it stays that of
        # two versions.
        return (
            self.slope_per_s <= other.slope_per_s
            and self.most <= other.most
            and self.load_s >= other.load_s
            and self.first_s >= other.first_s
            and (not self.fixed_s or 0 < other.fixed_s <= self.fixed_s)
        )


NONE = Overlap()
"""A replica whose phases never slow each other down."""


@dataclass(frozen=True, slots=True)
class Overlaps:
    """The parameters of many replicas; each array is `[num_rows]`. The meaning of each field is that of `Overlap`."""

    load_s: FloatArray
    first_s: FloatArray
    slope_per_s: FloatArray
    most: FloatArray
    fixed_s: FloatArray

    @property
    def has_many(self) -> bool:
        """Whether any replica may run more than two versions at a time (eta >= 2)."""
        return bool(self.fixed_s.any())

    def some(self, rows: IntArray) -> "Overlaps":
        """Return the parameters at `rows`, an index array of any shape; the result has its shape."""
        return Overlaps(
            self.load_s[rows], self.first_s[rows], self.slope_per_s[rows], self.most[rows], self.fixed_s[rows]
        )

    def end_s(self, phase_s: FloatArray, span_s: FloatArray | float) -> FloatArray:
        """Return `Overlap.end_s` elementwise; the arguments broadcast against the rows."""
        return self.end_and_rise(phase_s, span_s)[0]

    def end_and_rise(self, phase_s: FloatArray, span_s: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        """Return `Overlap.end_and_rise` elementwise; the arguments broadcast against the rows."""
        over_s = phase_s - self.load_s - span_s
        # Two versions overlap.
        two = np.minimum(self.slope_per_s * np.maximum(0.0, phase_s - self.first_s), self.most)
        two_s = phase_s + two * np.maximum(0.0, over_s)
        two = np.where(over_s > 0, two, 0.0)
        if not self.has_many:
            return two_s, two
        # More versions: processor sharing where it is below the limit with all slots full, else that limit.
        own_s, safe_s = phase_s - self.load_s, np.maximum(span_s, 1e-9)
        left_s, most_s = self.fixed_s - over_s, own_s * (1 + np.minimum(self.most, _MOST))
        is_less = (left_s > 0) & (self.fixed_s * span_s < most_s * left_s)
        left_s = np.where(is_less, left_s, 1.0)
        many_s = np.where(is_less, self.fixed_s * span_s / left_s, most_s)
        many = np.where(is_less, self.fixed_s * (own_s - self.fixed_s) / (left_s * left_s), 0.0)
        # Weight of many(s) against two(s): 0 at two spans, 1 at three. It is 0 where windows do not overlap.
        beyond_s = np.maximum(0.0, many_s + self.load_s - two_s)
        part = np.clip(many_s / safe_s - 2, 0.0, 1.0)
        part = np.where((over_s > 0) & (self.fixed_s > 0) & (self.fixed_s < own_s) & (beyond_s > 0), part, 0.0)
        more = np.where((part > 0) & (part < 1), beyond_s * (many + many_s / safe_s) / safe_s, 0.0)
        return two_s + part * beyond_s, two + part * (many - two) + more

    def knots_s(self, seconds: FloatArray, span_s: float) -> FloatArray:
        """Return `[num_rows, num_knots]`: when a phase ends that takes each knot's seconds on an idle engine."""
        columns = (self.load_s, self.first_s, self.slope_per_s, self.most, self.fixed_s)
        whole = Overlaps(*(each[:, None] for each in columns))
        return whole.end_s(seconds[None, :], span_s)


def overlaps_of(each: list[Overlap]) -> Overlaps:
    """Return the parameters of several replicas as arrays, `[num_replicas]`."""
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
    """Return (samples in the window, samples per second of longer window, samples per second of longer span).

    Each result is `[num_entries]`, like `row`, `window_s` and `span_s`. `samples` is `[num_rows, num_knots]` over the
    grid `seconds`; `row` says which row of `samples` and `overlaps` an entry uses. Between the shifted ends of two
    knots a table is linear in the window, as in `PhaseTable.overlapped_samples`.
    """
    mine, last = overlaps.some(row), len(seconds) - 1
    # Bisect for the last knot whose shifted end is within the window. A phase never ends earlier than on an idle engine
    # (`high`), and knots before the overlap begins are not shifted (`low`).
    high = np.searchsorted(seconds, window_s, side="right") - 1
    low = np.minimum(np.searchsorted(seconds, np.minimum(window_s, mine.load_s + span_s), side="right") - 1, high)
    while (high > low).any():
        middle = (low + high + 1) // 2
        is_over = mine.end_s(seconds[middle], span_s) <= window_s
        low, high = np.where(is_over, middle, low), np.where(is_over, high, middle - 1)
    # Interpolate between the shifted ends of this knot and the next one.
    at = np.clip(low, 0, last - 1)
    (start_s, sooner), (end_s, later) = (mine.end_and_rise(seconds[place], span_s) for place in (at, at + 1))
    width = np.where(end_s > start_s, end_s - start_s, 1.0)
    below = samples[row, at]
    rise = (samples[row, at + 1] - below) / width
    part = (window_s - start_s) / width
    # A longer span shifts both ends to earlier times; `longer` is the samples that this adds per second.
    made, longer = below + part * (samples[row, at + 1] - below), rise * (sooner + part * (later - sooner))
    # Beyond the last knot samples grow in proportion to the window.
    if (is_beyond := low == last).any():
        steady = samples[row, last] / end_s
        made, rise = np.where(is_beyond, window_s * steady, made), np.where(is_beyond, steady, rise)
        longer = np.where(is_beyond, window_s * steady / end_s * later, longer)
    is_late = low >= 0
    return np.where(is_late, made, 0.0), np.where(is_late, rise, 0.0), np.where(is_late, longer, 0.0)
