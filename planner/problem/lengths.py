"""Distributions of token counts as quantiles, made from samples or from a formula."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from planner.problem.workload import Lengths

NUM_QUANTILES = 64
"""Number of quantiles. 64 resolve the 99th percentile; more would slow down every cost evaluation."""


def constant(tokens: float) -> Lengths:
    """Return the distribution in which every sample has this length."""
    return Lengths(quantiles=(float(tokens),))


def lognormal(*, median_tokens: float, sigma: float, cap_tokens: float) -> Lengths:
    """Return a log-normal distribution in which longer samples are cut at the cap.

    `sigma` is the standard deviation of the logarithm.
    """
    normal = NormalDist()
    # The middle of each of NUM_QUANTILES equal parts, so that the mean of the quantiles is close to the true mean.
    places = ((i + 0.5) / NUM_QUANTILES for i in range(NUM_QUANTILES))
    return Lengths(
        quantiles=tuple(min(cap_tokens, median_tokens * math.exp(sigma * normal.inv_cdf(p))) for p in places)
    )


def of_samples(samples: Sequence[float], cap_tokens: float = math.inf) -> Lengths:
    """Return the distribution of these samples, cut at the cap. Raises: ValueError if there are none."""
    if not len(samples):
        raise ValueError("a distribution of lengths needs at least one sample, but there is none")
    # The middle of each of NUM_QUANTILES equal parts, as in `lognormal`.
    places = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    return Lengths(quantiles=tuple(float(q) for q in np.quantile(np.minimum(samples, cap_tokens), places)))
