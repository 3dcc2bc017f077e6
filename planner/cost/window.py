"""The least step in which pools that only generate make a step's samples: of one placement.

A version reaches region r after lag_r; what is made of it may be trained on until eta steps later. Between both lies
the region's window: y_r = (eta + 1) tau - before - lag_r, where `before` is training, scoring, and at eta >= 1 what
other tasks of generation's group take of it once. In it a unit makes what its phase table says, and at eta >= 1 not
more than its full rate allows in tau - others; where its window is longer than that, less, since it works for the next
version, too (`planner.cost.overlap`). Ways home and the trainer's downlink carry samples in the window, at most.

What is made grows with tau, in pieces that are linear or nearly so: the least step is found by Newton's method from
both sides, which is quick on the last piece, and by halving where tables jump. `planner.cost.windows` does the same
for many placements at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost.phases import KNOT, PhaseTable

CLOSE = 1e-12
"""Relative: of what is known of a step, and of the samples that are enough."""
MOST_S = 1e30
"""A longer step is none."""
TURNS = 200
FRESH = 0.95
"""Of the time at full rates: fresh sequences, whose contexts are short, may be faster. Only a first guess."""

Made = tuple[float, float]
"""Samples, and what a second more adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Of one pool."""

    count: int
    rate: float
    """Samples a second of one unit at its full rate."""
    table: PhaseTable
    """Samples of one unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generating:
    """Pools that only generate, by region."""

    units: Mapping[str, Sequence[Units]]
    home: str
    lag_s: Mapping[str, float]
    """Of a region: weights and trajectories."""
    caps: Mapping[str, float]
    """Samples a second that a region's way home carries."""
    down_per_s: float
    """Samples a second that enter the trainer's region."""
    before_s: float
    others_s: float
    """What other tasks of the group take of a step; 0 at eta 0."""
    eta: int
    samples: float

    def window_s(self, region: str, step_s: float) -> float:
        return max(0.0, (self.eta + 1) * step_s - self.before_s - self.lag_s[region])

    def full_s(self) -> float:
        """The step's seconds that all of them at their full rates take, `others_s` apart."""
        rates = {name: sum(each.count * each.rate for each in units) for name, units in self.units.items()}
        far = sum(min(rate, self.caps[name]) for name, rate in rates.items() if name != self.home)
        return self.samples / max(rates.get(self.home, 0.0) + min(far, self.down_per_s), 1e-300)

    def made(self, step_s: float) -> dict[str, Made]:
        """Of each region, before the downlink's limit."""
        return {name: self._made_in(name, step_s) for name in self.units}

    def total(self, step_s: float) -> Made:
        """Of a step."""
        made = self.made(step_s)
        here, here_more = made.pop(self.home, (0.0, 0.0))
        far, far_more = sum(each[0] for each in made.values()), sum(each[1] for each in made.values())
        if far:
            carried_s, longer = self._carried_s(
                max(self.window_s(name, step_s) for name in made if made[name][0]), step_s
            )
            if self.down_per_s * carried_s < far:
                far, far_more = self.down_per_s * carried_s, self.down_per_s * longer
        return here + far, here_more + far_more

    def least_s(self) -> float:
        """Infinite where no step is long enough."""
        enough, most = self.samples * (1 - CLOSE), self.samples * (1 + 2 * CLOSE)
        full_s = self.full_s()
        low = full_s + self.others_s if self.eta else self.before_s
        made, more = self.total(low)
        if made >= enough:
            return low
        above: tuple[float, float, float] | None = None
        at = max(low, (self.before_s + FRESH * full_s) / (self.eta + 1))
        for turn in range(1, TURNS):
            if low > MOST_S:
                break
            at_made, at_more = self.total(at)
            if at_made >= enough:
                above = (at, at_made, at_more)
                if at_made <= most:
                    return at
            else:
                low, made, more = at, at_made, at_more
            if above is not None and low >= above[0] * (1 - CLOSE):
                return above[0]
            at = self._next((low, made, more), above, turn)
        return above[0] if above is not None else float("inf")

    def _next(self, below: tuple[float, float, float], above: tuple[float, float, float] | None, turn: int) -> float:
        """Where to look: along the line from below, along the line from above, in the middle, by turns."""
        at, made, more = above if above is not None and turn % 3 == 1 else below
        if turn % 3 < 2 and more > 0:
            at += (self.samples - made) / more
            if below[0] < at < (above[0] if above is not None else float("inf")):
                return at
        return (below[0] + above[0]) / 2 if above is not None else 4 * below[0]

    def _made_in(self, region: str, step_s: float) -> Made:
        window_s = self.window_s(region, step_s)
        span_s = max(0.0, step_s - self.others_s)
        made, more = 0.0, 0.0
        for each in self.units[region]:
            if self.eta:
                one, more_window, more_span = each.table.beside(window_s, span_s)
                rise = more_window * (self.eta + 1) + more_span
                if each.rate * span_s < one:
                    one, rise = each.rate * span_s, each.rate
            else:
                one, rise = each.table.around(window_s)
            made, more = made + each.count * one, more + each.count * rise
        carried_s, longer = self._carried_s(window_s, step_s)
        if region != self.home and made and self.caps[region] * carried_s < made:
            return self.caps[region] * carried_s, self.caps[region] * longer
        return made, more

    def _carried_s(self, window_s: float, step_s: float) -> tuple[float, float]:
        """(seconds of a step that a way home is used, what a second more adds)"""
        span_s = max(0.0, step_s - self.others_s)
        return (span_s, 1.0) if self.eta and span_s < window_s else (window_s, self.eta + 1.0)


def makes(table: PhaseTable, window_s: float) -> bool:
    """Whether a unit has any sample done in a window; one that is done at its end counts."""
    return table.within(window_s * (1 + KNOT)) > 0
