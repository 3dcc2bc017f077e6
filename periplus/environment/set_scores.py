"""Mean@k and pass@k of an evaluation set, each with a 95 % interval.

*Mean@k* is the mean over problems of the share of a problem's samples that are right. *Pass@k* is the mean over
problems of the unbiased estimate of the probability that at least one of k samples is right.

*Source*: Chen et al. 2021 (arXiv 2107.03374), section 2.1, equation 1: 1 - C(n - c, k) / C(n, k) for c right ones of n
samples.

Samples of one problem are alike, so that an interval over all samples as if they were independent would be too narrow.
The interval here is Wilson's (Wilson 1927) with the effective number of samples that the variance between problems
gives: n_eff = p (1 - p) / (s^2 / N) for N problems whose values have the mean p and the variance s^2. With values of 0
and 1 alone, such as one sample a problem, n_eff = N and it is Wilson's interval itself. If all problems have the same
value, nothing is known of the variance between others, and n_eff = N.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959963984540054
"""Quantile of the normal distribution for an interval of 95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean of values from 0 to 1, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScores:
    """The scores of an evaluation set: mean@k of `num_samples` samples a problem, and pass@`k`."""

    num_prompts: int
    num_samples: int
    k: int
    mean: Estimate
    passed: Estimate


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k samples is right.

    Raises: ValueError unless 0 <= num_right <= num_samples and 1 <= k <= num_samples.
    """
    if not (0 <= num_right <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"{num_right} right ones of {num_samples} samples, and k is {k}")
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def interval(values: Sequence[float]) -> Estimate:
    """Return the mean of the problems' values, from 0 to 1, with its interval. Raises: ValueError without values."""
    if not values:
        raise ValueError("no problem has a value")
    num = len(values)
    mean = math.fsum(values) / num
    variance = math.fsum((value - mean) ** 2 for value in values) / num
    # Rounding may leave a variance that is not quite zero, or a little above that of values 0 and 1.
    effective = num if variance < 1e-12 else max(num, mean * (1 - mean) * num / variance)
    # Wilson's interval: where the score test would not reject the mean.
    centre = (mean + Z * Z / (2 * effective)) / (1 + Z * Z / effective)
    half = Z * math.sqrt(mean * (1 - mean) / effective + (Z / (2 * effective)) ** 2) / (1 + Z * Z / effective)
    return Estimate(value=mean, low=min(mean, max(0.0, centre - half)), high=max(mean, min(1.0, centre + half)))


def scores_of(num_right: Sequence[int], *, num_samples: int, k: int) -> SetScores:
    """Return the scores of a set, given how many of `num_samples` samples of each problem are right."""
    return SetScores(
        num_prompts=len(num_right),
        num_samples=num_samples,
        k=k,
        mean=interval([right / num_samples for right in num_right]),
        passed=interval([pass_at_k(num_samples, right, k) for right in num_right]),
    )
