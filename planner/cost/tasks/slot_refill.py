"""Decoding slots that are refilled from a queue: how long all of them stay full, and how the last sequences drain.

An engine decodes one sequence in each slot and starts the next one from the queue when a sequence ends. All slots start
at time 0. Let L be the completion length and M(t) the expected number of sequences that one slot has ended by time t.
Then M solves the renewal equation (Cox, Renewal Theory, 1962)

    M(t) = P(L <= t) + E[M(t - L); L <= t].

A slot has started 1 + M(t) sequences by time t. So a queue of `ratio` sequences per slot is empty at the time T with 1
+ M(T) = ratio. A sequence that started at time s still runs at T + x with probability P(L > T + x - s).

Time is counted in decoding steps, so one unit of time is one token of each running sequence. The result depends on the
length distribution alone; `generation` turns steps into seconds.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.tasks.layer_cuts import FloatArray
from planner.problem.workload import Lengths

RATIOS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Sequences per slot for which a phase is tabulated. Beyond the last ratio each further sequence costs what it costs
with all slots full. Chosen by hand: dense at small ratios, where draining matters most."""
_KNOTS_A_MEAN = 24
"""Time steps of the numerical renewal equation in one mean completion length. Chosen by hand."""
_NUM_PIECES = 48
"""Intervals of equal length into which the drain of the last sequences is divided. Chosen by hand."""


@dataclass(frozen=True, slots=True, eq=False)
class RefilledQueue:
    """Decoding of a queue in refilled slots, for each entry of `RATIOS`: first all slots are full, then they drain.

    Time and ages are in decoding steps (tokens of one sequence). Drain intervals run from the moment when the queue is
    empty until the longest possible sequence has ended.
    """

    full_tokens: FloatArray
    """Decoding steps with all slots full, `[num_ratios]`."""
    full_age: FloatArray
    """Mean completion tokens that a running sequence has while all slots are full, `[num_ratios]`."""
    tokens: FloatArray
    """Decoding steps of each drain interval, `[num_pieces]`."""
    alive: FloatArray
    """Fraction of the slots that still run in each drain interval, `[num_ratios, num_pieces]`."""
    age: FloatArray
    """Mean completion tokens of the sequences that still run, `[num_ratios, num_pieces]`."""


@lru_cache(maxsize=8)
def refilled(lengths: Lengths) -> RefilledQueue:
    """Return the full and draining part of a queue of completions with these lengths, for each entry of `RATIOS`."""
    quantiles = np.asarray(lengths.quantiles)
    step = lengths.mean / _KNOTS_A_MEAN
    time: FloatArray = step * np.arange(int(np.ceil((RATIOS[-1] + 1) * _KNOTS_A_MEAN)) + 1, dtype=np.float64)
    # M(t) on a time grid that is long enough for the largest ratio: [num_times].
    ends = _ends(quantiles, time)
    # Sequences that one slot starts: one at time 0, then M's increment in the middle of each time step.
    begun_at = np.concatenate([[0.0], (time[1:] + time[:-1]) / 2])
    begun = np.concatenate([[1.0], np.diff(ends)])
    # Boundaries and midpoints of the drain intervals, counted from the moment when the queue is empty.
    edges: FloatArray = np.linspace(0.0, float(quantiles[-1]), _NUM_PIECES + 1).astype(np.float64)
    middle = (edges[1:] + edges[:-1]) / 2
    ratios = np.array(RATIOS)
    alive, age = np.empty((len(ratios), len(middle))), np.empty((len(ratios), len(middle)))
    # Invert 1 + M(T) = ratio. A tiny slope makes M strictly increasing, so that the inverse is unique.
    empty_at = np.interp(ratios - 1, ends + 1e-9 * time / time[-1], time)
    for i, (ratio, at) in enumerate(zip(ratios, empty_at, strict=True)):
        # Sequences started at each time, cut off when `ratio` of them have started.
        some = np.diff(np.minimum(np.concatenate([[0.0], np.cumsum(begun)]), ratio))
        num = int(np.searchsorted(time, at)) + 1
        # [num_pieces, num_starts]: age of each start in the middle of each drain interval, and how many still run.
        ages = np.maximum(0.0, at - begun_at[:num]) + middle[:, None]
        runs = some[:num] * _survive(quantiles, ages)
        running = runs.sum(axis=1)
        alive[i] = np.minimum(1.0, running)
        age[i] = np.where(running > 0, (runs * ages).sum(axis=1) / np.maximum(running, 1e-300), quantiles[-1])
    tokens = np.diff(edges)
    # The tokens of the full part are what the drain leaves, so that the total is exactly ratio x mean length.
    full_tokens = np.maximum(0.0, ratios * lengths.mean - alive @ tokens)
    return RefilledQueue(
        full_tokens=full_tokens,
        full_age=_mean_age(quantiles, time, begun_at, begun, empty_at),
        tokens=tokens,
        alive=alive,
        age=age,
    )


def _survive(quantiles: FloatArray, tokens: FloatArray) -> FloatArray:
    """Return P(L > tokens), elementwise."""
    longer: FloatArray = 1 - np.searchsorted(quantiles, tokens, side="right") / len(quantiles)
    return longer


def _ends(quantiles: FloatArray, time: FloatArray) -> FloatArray:
    """Return M(t) at each time of the grid `time`, `[num_times]`, by forward substitution in the renewal equation."""
    ends = np.zeros(len(time))
    for k in range(1, len(time)):
        # Average over the quantiles of L: each L <= t contributes the end of the first sequence and M(t - L) later
        # ones.
        past = time[k] - quantiles[: np.searchsorted(quantiles, time[k], side="right")]
        ends[k] = (1 + np.interp(past, time[:k], ends[:k])).sum() / len(quantiles)
    return np.maximum.accumulate(ends)


def _mean_age(
    quantiles: FloatArray, time: FloatArray, begun_at: FloatArray, begun: FloatArray, until: FloatArray
) -> FloatArray:
    """Return the mean age of the sequences in full slots, averaged over time from 0 to each entry of `until`."""
    # [num_times, num_starts]: age of each start at each time, and the expected number that still runs.
    after = np.maximum(0.0, time[:, None] - begun_at) * (begun_at <= time[:, None])
    runs = np.where(begun_at <= time[:, None], begun * _survive(quantiles, after), 0.0)
    age = (runs * after).sum(axis=1) / np.maximum(runs.sum(axis=1), 1e-300)
    # Integrate the mean age over time by the trapezoidal rule, then divide by the length of the interval.
    total = np.concatenate([[0.0], np.cumsum((age[1:] + age[:-1]) / 2 * np.diff(time))])
    mean: FloatArray = np.interp(until, time, total) / np.maximum(until, 1e-300)
    return mean
