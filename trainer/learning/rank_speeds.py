"""How fast each rank of a training step is, and the shares of the rows that make all of them end together.

Ranks meet in every layer, so a slow one holds up all, and the seconds of a pass say nothing about a rank: all have the
same. So each rank times a piece of work of its own before a step, for a small part of what the last step took, and
all ranks hear of all. Without a notable difference rows are divided evenly, which makes equal batches give equal sums.

A step also has work that every rank does whatever its share, such as what passes cost anyhow. On a slow rank that
takes longer too, and its share has to be smaller. So on processors each rank tells how long its thread computed until
the end of the last step's passes, and a line through these seconds over the shares tells the constant work from the
rows'. What comes after, such as the optimizer, does not count: all ranks begin it together.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from trainer.learning.ranks import Ranks

PROBE_SHARE = 0.02
"""Part of a step that its probe takes. Chosen by hand: it costs as much, and covers some turns of the scheduler."""
PROBE_S = (0.002, 0.05)
"""Least and most seconds of a probe. Chosen by hand."""
WEIGHT = 0.3
"""Weight of the newest probe in a rank's speed. Chosen by hand: a change counts for 0.9 after seven steps."""
NOTABLE = 1.2
"""Ratio of the fastest to the slowest rank from which rows are divided unevenly. Chosen by hand: above the spread of
probes on alike devices. Two ranks that differ by less lose at most a tenth."""
KEPT = 0.9
"""Weight of a step in the line through the work of ranks, over that of the step after it. Chosen by hand."""
PRIOR = 0.05
"""Weight of the assumption that all work is of rows, over that of a rank in one step. Chosen by hand: it decides while
shares are equal, and no line can be drawn."""
SIDE = 256
"""Side of the matrices that a probe multiplies."""


class RankSpeeds:
    """Measures the ranks of a trainer whose models are on `device`. The values that it multiplies do not matter."""

    def __init__(self, device: torch.device) -> None:
        self._matrix = torch.full((SIDE, SIDE), 0.5, device=device)
        self._seconds: torch.Tensor | None = None
        self._step_began_s = 0.0
        self._probe_s = PROBE_S[0]
        self._work, self._shares = _Work(), tuple[float, ...]()
        self._computed_s, self._step_s = 0.0, 0.0

    def measured(self, ranks: Ranks) -> Ranks:
        """Return the ranks with their shares of a step's rows. All ranks call it at the same time, once a step."""
        if ranks.size == 1:
            return ranks
        began_s = time.perf_counter()
        if self._step_began_s:
            self._probe_s = min(max(PROBE_SHARE * (began_s - self._step_began_s), PROBE_S[0]), PROBE_S[1])
        self._step_began_s = began_s
        told = torch.zeros(2, ranks.size, dtype=torch.float64, device=self._matrix.device)
        told[0, ranks.rank], computed_s = self._product_s()
        if self._matrix.device.type == "cpu":
            told[1, ranks.rank] = self._step_s / computed_s
        self._computed_s, self._step_s = time.thread_time(), 0.0
        ranks.sum_(told)
        self._seconds = told[0] if self._seconds is None else self._seconds + WEIGHT * (told[0] - self._seconds)
        known, work = self._seconds.tolist(), told[1].tolist()
        if all(work):
            self._work.add(self._shares or (1 / ranks.size,) * ranks.size, work)
        is_notable = max(known) >= NOTABLE * min(known)
        self._shares = shares_of(known, self._work.constant_share()) if is_notable else ()
        return replace(ranks, shares=self._shares)

    def passed(self) -> None:
        """Note that this thread has made all of this rank's passes of an update; of several, the last one counts."""
        self._step_s = time.thread_time() - self._computed_s

    def _product_s(self) -> tuple[float, float]:
        """Return the seconds of one product, and those that its thread computed; means over the probe's time."""
        began_s, computed_s, num = time.perf_counter(), time.thread_time(), 0
        while num == 0 or time.perf_counter() - began_s < self._probe_s:
            self._matrix @ self._matrix
            if self._matrix.device.type == "cuda":
                torch.cuda.synchronize(self._matrix.device)
            num += 1
        return (time.perf_counter() - began_s) / num, (time.thread_time() - computed_s) / num


class _Work:
    """A line through the work of ranks in the last steps, in products, over their shares of the rows."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of weights, shares, work, squares of shares, and products of both

    def add(self, shares: Sequence[float], work: Sequence[float]) -> None:
        """Take in a step."""
        self._sums = [KEPT * each for each in self._sums]
        for x, y in zip(shares, work, strict=True):
            self._sums = [a + b for a, b in zip(self._sums, (1.0, x, y, x * x, x * y), strict=True)]

    def constant_share(self) -> float:
        """Return the work that each rank does whatever its share, over that of all rows; 0 if it is not known."""
        num, x, y, xx, xy = self._sums
        num += PRIOR
        slope_divisor = num * xx - x * x
        slope = (num * xy - x * y) / slope_divisor if slope_divisor > 0 else 0.0
        return max(0.0, (y - slope * x) / num / slope) if slope > 0 else 0.0


def shares_of(seconds: Sequence[float], constant: float) -> tuple[float, ...]:
    """Return the shares of the rows with which ranks end together, or the slowest ones have none.

    A rank takes `seconds` for a piece of work; `constant` is the work that it does anyhow, over that of all rows.
    """
    taking = sorted(range(len(seconds)), key=lambda rank: seconds[rank])
    while True:
        speeds = {rank: 1 / seconds[rank] for rank in taking}
        end = (1 + constant * len(taking)) / sum(speeds.values())
        shares = {rank: end * speed - constant for rank, speed in speeds.items()}
        if min(shares.values()) >= 0:
            return tuple(shares.get(rank, 0.0) for rank in range(len(seconds)))
        taking.pop()
