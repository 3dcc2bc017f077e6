"""Distributions of token counts as quantiles, made from samples or from a formula."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from planner.problem.workload import Lengths

NUM_QUANTILES = 64
"""Number of quantiles. 64 resolve the 99th percentile; more would slow down every cost evaluation."""

MOST_QUANTILES = 1024
"""Largest number of quantiles, for means far below their cap."""


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


def of_mean(mean_tokens: float, cap_tokens: float) -> Lengths:
    """Return the distribution between 0 and the cap of which nothing but the mean is known: that of largest entropy.

    Its density is exponential (E. T. Jaynes, Physical Review 106, 620, 1957). Its largest quantile is the cap. With a
    mean below 1 / MOST_QUANTILES of the cap that quantile alone lifts the mean above the one that is wanted.

    Raises: ValueError if the mean is not positive, or above the cap.
    """
    if not 0 < mean_tokens <= cap_tokens:
        raise ValueError(f"a mean of {mean_tokens} tokens is not above 0 and at most {cap_tokens}")
    # The cap is one quantile of all, and must not lift the mean above the one that is wanted.
    num = min(max(NUM_QUANTILES, math.ceil(2 * cap_tokens / mean_tokens)), MOST_QUANTILES)
    places = (np.arange(num) + 0.5) / num
    low, high = -1e4, 1e4
    while high - low > 1e-9:
        rate = (low + high) / 2
        # For a rate of 0 the density is uniform. Negative rates would overflow in the formula of positive ones.
        shares = -np.log1p(places * np.expm1(-abs(rate))) / abs(rate) if rate else places.copy()
        shares = np.sort(1 - shares) if rate < 0 else shares
        shares[-1] = 1.0
        low, high = (rate, high) if shares.mean() * cap_tokens > mean_tokens else (low, rate)
    return Lengths(quantiles=tuple((shares * cap_tokens).tolist()))


def of_samples(samples: Sequence[float], cap_tokens: float = math.inf) -> Lengths:
    """Return the distribution of these samples, cut at the cap. Raises: ValueError if there are none."""
    if not len(samples):
        raise ValueError("a distribution of lengths needs at least one sample, but there is none")
    # The middle of each of NUM_QUANTILES equal parts, as in `lognormal`.
    places = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    return Lengths(quantiles=tuple(float(q) for q in np.quantile(np.minimum(samples, cap_tokens), places)))
