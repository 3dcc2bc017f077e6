"""Sampled lengths of prompts and completions, group by group, drawn from the workload's quantiles.

Completions of one prompt resemble each other. A Gaussian copula gives the quantile levels within a group an intraclass
correlation (`planner.simulate.settings`). Group i of a seed always has the same lengths, whatever the placement is and
in whichever order groups are drawn.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.problem.workload import Lengths, Workload
from planner.simulate.settings import SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPrompt:
    """Lengths of one group of samples, in tokens: of the prompt and of each completion."""

    tokens: int
    completions: tuple[int, ...]


class Draws:
    """Generator of the groups 0, 1, 2 and so on of one seed."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._seed = seed
        self._blocks: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
        # The normal distribution function on a fine grid: NumPy has none, and interpolation is much faster than
        # `math.erf` per sample. Beyond six standard deviations it is 0 or 1 for this purpose.
        self._grid = np.linspace(-6.0, 6.0, 2401)
        self._levels = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in self._grid])

    def prompt(self, group: int) -> SampledPrompt:
        """Return the group of that number."""
        block, row = divmod(group, SETTINGS.groups_per_draw)
        if block not in self._blocks:
            # Groups are drawn in blocks that depend on seed and number only, so the order of requests does not matter.
            self._blocks[block] = self._draw(block)
        prompts, completions = self._blocks[block]
        return SampledPrompt(tokens=int(prompts[row]), completions=tuple(completions[row].tolist()))

    def _draw(self, block: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        generator = np.random.default_rng([self._seed, block])
        size = self._workload.group_size
        common = generator.standard_normal((SETTINGS.groups_per_draw, 1))
        own = generator.standard_normal((SETTINGS.groups_per_draw, size))
        # Normal scores with correlation rho within a row: sqrt(rho) common + sqrt(1 - rho) own,
        # `[groups_per_draw, group_size]`.
        scores = math.sqrt(SETTINGS.group_correlation) * common + math.sqrt(1 - SETTINGS.group_correlation) * own
        # Quantile levels by the normal distribution function, interpolated on a grid.
        levels = np.interp(scores, self._grid, self._levels)
        # Prompts are drawn last, uniformly in their quantile levels and independently of the completions.
        prompts = _lengths_at(self._workload.prompt_tokens, generator.random(SETTINGS.groups_per_draw))
        return prompts, _lengths_at(self._workload.completion_tokens, levels)


def _lengths_at(lengths: Lengths, levels: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    quantiles = np.asarray(lengths.quantiles)
    # Quantile i of n stands for level (i + 1/2) / n. Levels beyond the outer two get these.
    places = (np.arange(len(quantiles)) + 0.5) / len(quantiles)
    drawn: npt.NDArray[np.int64] = np.maximum(1, np.rint(np.interp(levels, places, quantiles))).astype(np.int64)
    return drawn
