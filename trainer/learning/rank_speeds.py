"""How fast each rank of a training step is, and the shares of the rows that make all of them end together.

Ranks meet in every layer, so a slow one holds up all, and the seconds of a pass say nothing about a rank: all have the
same. So each rank times a piece of work of its own before a step, for a small part of what the last step took, and
all ranks hear of all. Without a notable difference rows are divided evenly, which makes equal batches give equal sums.
"""

import time
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
SIDE = 256
"""Side of the matrices that a probe multiplies."""


class RankSpeeds:
    """Measures the ranks of a trainer whose models are on `device`. The values that it multiplies do not matter."""

    def __init__(self, device: torch.device) -> None:
        self._matrix = torch.full((SIDE, SIDE), 0.5, device=device)
        self._seconds: torch.Tensor | None = None
        self._step_began_s = 0.0
        self._probe_s = PROBE_S[0]

    def measured(self, ranks: Ranks) -> Ranks:
        """Return the ranks with their shares of a step's rows. All ranks call it at the same time, once a step."""
        if ranks.size == 1:
            return ranks
        began_s = time.perf_counter()
        if self._step_began_s:
            self._probe_s = min(max(PROBE_SHARE * (began_s - self._step_began_s), PROBE_S[0]), PROBE_S[1])
        self._step_began_s = began_s
        seconds = torch.zeros(ranks.size, dtype=torch.float64, device=self._matrix.device)
        seconds[ranks.rank] = self._product_s()
        ranks.sum_(seconds)
        known = seconds if self._seconds is None else self._seconds + WEIGHT * (seconds - self._seconds)
        self._seconds = known
        speeds = (1 / known).tolist()
        if max(speeds) < NOTABLE * min(speeds):
            return replace(ranks, shares=())
        return replace(ranks, shares=tuple(speed / sum(speeds) for speed in speeds))

    def _product_s(self) -> float:
        """Return the seconds of one product, mean over those of the probe's time."""
        began_s, num = time.perf_counter(), 0
        while num == 0 or time.perf_counter() - began_s < self._probe_s:
            self._matrix @ self._matrix
            if self._matrix.device.type == "cuda":
                torch.cuda.synchronize(self._matrix.device)
            num += 1
        return (time.perf_counter() - began_s) / num
