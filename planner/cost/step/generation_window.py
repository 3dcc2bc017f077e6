"""Least step time at which pools that only generate make a step's samples, for one placement.

A version reaches region r after lag_r (weights there, trajectories back). Its samples may be trained on until eta steps
later. So each region has a *window* to make a version's samples:

    y_r = (eta + 1) tau - before - lag_r

tau is the time of a step. `before` is training, scoring and, at eta >= 1, once what the other tasks of generation's
group (`others`) take of a step. Within its window a unit makes what its phase table says. At eta >= 1 it makes at most
its full rate times tau - others, and less where the window is longer than that, because it then also works for the next
version (`planner.cost.tasks.version_overlap`). Routes to the trainer's region and its downlink limit how many samples
arrive.

The number of samples never falls as tau grows, and is piecewise linear or nearly so. The least tau is found by Newton
steps from both sides of a bracket, and by bisection where tables jump. `planner.cost.batched.batched_windows` is the
same for arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost.tasks.phase_tables import JUMP_TOLERANCE, PhaseTable

REL_TOLERANCE = 1e-12
"""Relative tolerance of the step time, and of the number of samples that counts as enough."""
MOST_S = 1e30
"""Longest step in seconds; where no shorter one is enough the result is infinite."""
MAX_ITERATIONS = 200
"""Most iterations of the search for the step time. Chosen by hand."""
FRESH = 0.95
"""Fraction of the time at full rates with which the search starts: new sequences have short contexts and are faster. It
affects only the first guess. Chosen by hand."""

Made = tuple[float, float]
"""(Samples, additional samples per second of longer step.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratingUnits:
    """The units of one pool that generates."""

    count: int
    """Number of units."""
    rate: float
    """Samples per second of one unit at its full rate."""
    table: PhaseTable
    """Phase table of one unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWindows:
    """Pools of a placement that only generate, by region, with all constants of their windows."""

    units: Mapping[str, Sequence[GeneratingUnits]]
    """Pools by region name."""
    trainer_region: str
    """Name of the trainer's region."""
    lag_s: Mapping[str, float]
    """Seconds by region for weights to arrive and trajectories to return."""
    caps: Mapping[str, float]
    """Samples per second by region that its route to the trainer's region carries."""
    down_per_s: float
    """Samples per second that may enter the trainer's region."""
    before_s: float
    """Seconds of training, scoring and `others_s` that precede every window."""
    others_s: float
    """Seconds of a step that the other tasks of generation's group take; 0 at eta 0."""
    eta: int
    """Staleness bound."""
    samples: float
    """Samples of one step."""

    def window_s(self, region: str, step_s: float) -> float:
        """Return the length of the region's window in seconds, at least 0, for this step time."""
        return max(0.0, (self.eta + 1) * step_s - self.before_s - self.lag_s[region])

    def full_s(self) -> float:
        """Return the seconds in which all pools make a step's samples at their full rates, without `others_s`."""
        rates = {name: sum(each.count * each.rate for each in units) for name, units in self.units.items()}
        far = sum(min(rate, self.caps[name]) for name, rate in rates.items() if name != self.trainer_region)
        return self.samples / max(rates.get(self.trainer_region, 0.0) + min(far, self.down_per_s), 1e-300)

    def made(self, step_s: float) -> dict[str, Made]:
        """Return the samples per step of each region by name, before the downlink's limit."""
        return {name: self._made_in(name, step_s) for name in self.units}

    def total(self, step_s: float) -> Made:
        """Return the samples per step of all regions together, within the limit of the downlink."""
        made = self.made(step_s)
        here, here_more = made.pop(self.trainer_region, (0.0, 0.0))
        far, far_more = sum(each[0] for each in made.values()), sum(each[1] for each in made.values())
        # The downlink carries all remote samples during the longest of their windows.
        if far:
            carried_s, longer = self._carried_s(
                max(self.window_s(name, step_s) for name in made if made[name][0]), step_s
            )
            if self.down_per_s * carried_s < far:
                far, far_more = self.down_per_s * carried_s, self.down_per_s * longer
        return here + far, here_more + far_more

    def least_s(self) -> float:
        """Return the least step time in seconds; inf where no step is long enough."""
        enough, most = self.samples * (1 - REL_TOLERANCE), self.samples * (1 + 2 * REL_TOLERANCE)
        full_s = self.full_s()
        # No step is shorter than this: full rates at eta >= 1, training and scoring at eta 0.
        low = full_s + self.others_s if self.eta else self.before_s
        made, more = self.total(low)
        if made >= enough:
            return low
        # `low` is always too short. `above` is the shortest step known to be long enough, with its samples and slope.
        above: tuple[float, float, float] | None = None
        at = max(low, (self.before_s + FRESH * full_s) / (self.eta + 1))
        for turn in range(1, MAX_ITERATIONS):
            if low > MOST_S:
                break
            at_made, at_more = self.total(at)
            if at_made >= enough:
                above = (at, at_made, at_more)
                if at_made <= most:
                    return at
            else:
                low, made, more = at, at_made, at_more
            if above is not None and low >= above[0] * (1 - REL_TOLERANCE):
                return above[0]
            at = self._next((low, made, more), above, turn)
        return above[0] if above is not None else float("inf")

    def _next(self, below: tuple[float, float, float], above: tuple[float, float, float] | None, turn: int) -> float:
        """Return the next step time to try: Newton from below, Newton from above and bisection, in rotation.

        A Newton step that leaves the bracket is replaced by the middle, or by four times the lower end without an upper
        one.
        """
        at, made, more = above if above is not None and turn % 3 == 1 else below
        if turn % 3 < 2 and more > 0:
            at += (self.samples - made) / more
            if below[0] < at < (above[0] if above is not None else float("inf")):
                return at
        return (below[0] + above[0]) / 2 if above is not None else 4 * below[0]

    def _made_in(self, region: str, step_s: float) -> Made:
        """Return the samples of one region."""
        window_s = self.window_s(region, step_s)
        span_s = max(0.0, step_s - self.others_s)
        made, more = 0.0, 0.0
        for each in self.units[region]:
            if self.eta:
                one, more_window, more_span = each.table.overlapped_samples(window_s, span_s)
                rise = more_window * (self.eta + 1) + more_span
                # The full rate for all of a step is an upper limit.
                if each.rate * span_s < one:
                    one, rise = each.rate * span_s, each.rate
            else:
                one, rise = each.table.samples_and_slope(window_s)
            made, more = made + each.count * one, more + each.count * rise
        # A remote region delivers at most what its route carries.
        carried_s, longer = self._carried_s(window_s, step_s)
        if region != self.trainer_region and made and self.caps[region] * carried_s < made:
            return self.caps[region] * carried_s, self.caps[region] * longer
        return made, more

    def _carried_s(self, window_s: float, step_s: float) -> tuple[float, float]:
        """Return (seconds of a step in which routes carry samples, change per second of longer step)."""
        span_s = max(0.0, step_s - self.others_s)
        return (span_s, 1.0) if self.eta and span_s < window_s else (window_s, self.eta + 1.0)


def makes(table: PhaseTable, window_s: float) -> bool:
    """Return whether a unit finishes any sample within a window; one that ends exactly with the window counts."""
    return table.samples_within(window_s * (1 + JUMP_TOLERANCE)) > 0
