"""Slots that are refilled as long as there is a queue: how long they are all full, and what runs on when it is empty.

All slots begin at 0, and each begins the next sequence when one ends. With M(t) = mean ends of a slot by t,

    M(t) = P(L <= t) + E[M(t - L); L <= t],

a queue of `ratio` sequences a slot is empty at T with 1 + M(T) = ratio. A sequence that began at s runs at T + x with
P(L > T + x - s); begun have, by s, 1 + M(s). Time counts decoding steps, so that one of a slot is one token. Source:
Cox, Renewal Theory, 1962.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.cuts import FloatArray
from planner.question.workload import Lengths

RATIOS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Sequences a slot. Beyond the last, each one more takes what it takes where all slots are always full."""
_KNOTS_A_MEAN = 24
_NUM_PIECES = 48


@dataclass(frozen=True, slots=True, eq=False)
class Refilled:
    """By `RATIOS`, or by them and pieces of time from when the queue is empty until the longest sequence has ended."""

    full_tokens: FloatArray
    """Steps with all slots full."""
    full_age: FloatArray
    """Completion tokens of a running sequence, on average over them."""
    tokens: FloatArray
    """Steps of each piece."""
    alive: FloatArray
    """Share of the slots that run in it."""
    age: FloatArray
    """Their mean completion tokens."""


@lru_cache(maxsize=8)
def refilled(lengths: Lengths) -> Refilled:
    """Of completions of these lengths."""
    quantiles = np.asarray(lengths.quantiles)
    step = lengths.mean / _KNOTS_A_MEAN
    time: FloatArray = step * np.arange(int(np.ceil((RATIOS[-1] + 1) * _KNOTS_A_MEAN)) + 1, dtype=np.float64)
    ends = _ends(quantiles, time)
    begun_at = np.concatenate([[0.0], (time[1:] + time[:-1]) / 2])
    begun = np.concatenate([[1.0], np.diff(ends)])
    edges: FloatArray = np.linspace(0.0, float(quantiles[-1]), _NUM_PIECES + 1).astype(np.float64)
    middle = (edges[1:] + edges[:-1]) / 2
    ratios = np.array(RATIOS)
    alive, age = np.empty((len(ratios), len(middle))), np.empty((len(ratios), len(middle)))
    empty_at = np.interp(ratios - 1, ends + 1e-9 * time / time[-1], time)
    for i, (ratio, at) in enumerate(zip(ratios, empty_at, strict=True)):
        some = np.diff(np.minimum(np.concatenate([[0.0], np.cumsum(begun)]), ratio))
        num = int(np.searchsorted(time, at)) + 1
        ages = np.maximum(0.0, at - begun_at[:num]) + middle[:, None]
        runs = some[:num] * _survive(quantiles, ages)
        running = runs.sum(axis=1)
        alive[i] = np.minimum(1.0, running)
        age[i] = np.where(running > 0, (runs * ages).sum(axis=1) / np.maximum(running, 1e-300), quantiles[-1])
    tokens = np.diff(edges)
    full_tokens = np.maximum(0.0, ratios * lengths.mean - alive @ tokens)  # no token is lost or made twice
    return Refilled(
        full_tokens=full_tokens, full_age=_mean_age(quantiles, time, begun_at, begun, empty_at), tokens=tokens,
        alive=alive, age=age,
    )  # fmt: skip


def _survive(quantiles: FloatArray, tokens: FloatArray) -> FloatArray:
    longer: FloatArray = 1 - np.searchsorted(quantiles, tokens, side="right") / len(quantiles)
    return longer


def _ends(quantiles: FloatArray, time: FloatArray) -> FloatArray:
    """M at each time."""
    ends = np.zeros(len(time))
    for k in range(1, len(time)):
        past = time[k] - quantiles[: np.searchsorted(quantiles, time[k], side="right")]
        ends[k] = (1 + np.interp(past, time[:k], ends[:k])).sum() / len(quantiles)
    return np.maximum.accumulate(ends)


def _mean_age(
    quantiles: FloatArray, time: FloatArray, begun_at: FloatArray, begun: FloatArray, until: FloatArray
) -> FloatArray:
    """Of what runs on full slots, on average from 0 to each of `until`."""
    after = np.maximum(0.0, time[:, None] - begun_at) * (begun_at <= time[:, None])
    runs = np.where(begun_at <= time[:, None], begun * _survive(quantiles, after), 0.0)
    age = (runs * after).sum(axis=1) / np.maximum(runs.sum(axis=1), 1e-300)
    total = np.concatenate([[0.0], np.cumsum((age[1:] + age[:-1]) / 2 * np.diff(time))])
    mean: FloatArray = np.interp(until, time, total) / np.maximum(until, 1e-300)
    return mean
