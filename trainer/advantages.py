"""Group-relative advantages: how much better a sample did than the other samples of its prompt.

    A_i = (r_i - mean(r)) / (std(r) + eps)        GRPO, arXiv 2402.03300, section 4.1.2
    A_i =  r_i - mean(r)                          without `normalise_std`: Dr. GRPO, arXiv 2503.20783

The mean over the group is the baseline, so no critic is needed. A group of one, or with equal rewards, teaches nothing:
its advantages are 0. *Deviation*: the standard deviation is the population's; the paper does not say which.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import fsum, sqrt

EPSILON = 1e-4  # bounds the advantage of a group whose rewards differ by a rounding error only


def group_advantages(rewards: Sequence[float], groups: Sequence[int], *, normalise_std: bool) -> tuple[float, ...]:
    """The advantage of each sample, in the order given; `groups[i]` names the group of sample i."""
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards for {len(groups)} samples")
    members: dict[int, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    statistics = {group: _mean_and_std(values) for group, values in members.items()}
    advantages = []
    for reward, group in zip(rewards, groups, strict=True):
        mean, std = statistics[group]
        advantages.append((reward - mean) / (std + EPSILON if normalise_std else 1.0))
    return tuple(advantages)


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    mean = fsum(values) / len(values)
    return mean, sqrt(fsum((value - mean) ** 2 for value in values) / len(values))
