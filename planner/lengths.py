"""Distributions of token counts as quantiles: of samples, or of a formula."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from planner.question.workload import Lengths

NUM_QUANTILES = 64
"""Enough for the 99th percentile; more slow every cost evaluation down."""


def constant(tokens: float) -> Lengths:
    """Every sample has this length."""
    return Lengths(quantiles=(float(tokens),))


def lognormal(*, median_tokens: float, sigma: float, cap_tokens: float) -> Lengths:
    """`sigma` is the standard deviation of the logarithm; longer samples are cut at the cap."""
    normal = NormalDist()
    places = ((i + 0.5) / NUM_QUANTILES for i in range(NUM_QUANTILES))
    return Lengths(
        quantiles=tuple(min(cap_tokens, median_tokens * math.exp(sigma * normal.inv_cdf(p))) for p in places)
    )


def of_samples(samples: Sequence[float], cap_tokens: float = math.inf) -> Lengths:
    """Of at least one sample; longer ones are cut at the cap."""
    if not len(samples):
        raise ValueError("no samples")
    places = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    return Lengths(quantiles=tuple(float(q) for q in np.quantile(np.minimum(samples, cap_tokens), places)))
