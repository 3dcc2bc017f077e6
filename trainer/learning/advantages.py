"""What advantages are made of: group baselines, token rewards, discounted returns, whitening. Each algorithm's own file
under `trainer.learning.losses` puts them together.

    GRPO, arXiv 2402.03300, section 4.1.2      A_i = (r_i - mean(r)) / (std(r) + eps)      over the samples of a prompt
    Dr. GRPO, arXiv 2503.20783                 A_i =  r_i - mean(r)
    RLOO, arXiv 2402.14740, equation 8         A_i =  r_i - mean_{j != i}(r_j)

The mean over the group is the baseline, so no critic is needed. A group of one, or with equal rewards, teaches nothing:
its advantages are 0, exactly: a mean of equal numbers may differ from them by a rounding error, which AdamW would make
large again. *Deviation*: the standard deviation is the population's; the GRPO paper does not say which (TRL
and verl take the sample's, which makes advantages of a group of 8 smaller by 6 %).

*Tool gaps*: tokens that the policy did not sample (mask False) are no actions. Reward, value and advantage pass through
them unchanged and undiscounted, as if the next sampled token followed at once.

All arithmetic is in float64, over the whole step: no result depends on the order of arrival, on micro-batches or on
how many processes share the work. Shapes: B rows, T completion columns, U = T + 1 states.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

import torch

EPSILON = 1e-4
"""Bounds the advantage of a group whose rewards differ by a rounding error only; TRL's value."""

MAX_PENALISED_REWARD = 1e100
"""Largest magnitude of a reward less its KL penalty whose square, summed over any step, is finite in float64."""

MIN_VARIANCE = 1e-8
"""Least variance of what is whitened: below it, numbers count as equal. OpenRLHF's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What one training step is rewarded for, in the order of the batch's rows.

    `kl_BT` is the penalty that each token's reward loses, coefficient included, None without one; `values_BU` are the
    critic's, before each token and after the last, None without a critic; `lengths_B` count completion tokens, tool
    gaps included; `truncated_B` marks completions that ended at the length limit.
    """

    rewards: tuple[float, ...]
    groups: tuple[int, ...]
    mask_BT: torch.Tensor
    lengths_B: torch.Tensor
    truncated_B: torch.Tensor
    kl_BT: torch.Tensor | None = None
    values_BU: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSettings:
    """`normalise` divides by the standard deviation: of the group, or of the step for REINFORCE++ and PPO.

    `overlong_filter`, `overlong_cache_tokens` and `max_tokens` are DAPO's; `gamma`, `gae_lambda` and
    `bootstrap_truncated` those of PPO.
    """

    normalise: bool = True
    gamma: float = 1.0
    gae_lambda: float = 0.95
    bootstrap_truncated: bool = False
    overlong_filter: bool = False
    overlong_cache_tokens: int = 0
    max_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """Advantages of tokens, BT, float64; `returns_BT` is what the critic should have said, None without a critic."""

    advantages_BT: torch.Tensor
    returns_BT: torch.Tensor | None = None


def group_advantages(rewards: Sequence[float], groups: Sequence[int], *, normalise_std: bool) -> tuple[float, ...]:
    """GRPO's (Dr. GRPO's without `normalise_std`) advantage of each sample; `groups[i]` is the group of sample i."""
    advantages = []
    for reward, values in zip(rewards, _fellows(rewards, groups), strict=True):
        mean = _mean(values)
        std = sqrt(fsum((value - mean) ** 2 for value in values) / len(values))
        advantages.append((reward - mean) / (std + EPSILON if normalise_std else 1.0))
    return tuple(advantages)


def leave_one_out_advantages(rewards: Sequence[float], groups: Sequence[int]) -> tuple[float, ...]:
    """RLOO's advantage of each sample: n / (n - 1) times its distance to the group's mean; 0 in a group of one."""
    advantages = []
    for reward, values in zip(rewards, _fellows(rewards, groups), strict=True):
        mean = _mean(values)
        advantages.append((reward - mean) * len(values) / (len(values) - 1) if len(values) > 1 else 0.0)
    return tuple(advantages)


def of_samples(advantages: Sequence[float], mask_BT: torch.Tensor) -> Advantages:
    """The advantage of a sample is that of each of its tokens."""
    advantages_B1 = torch.tensor(advantages, dtype=torch.float64)[:, None]
    return Advantages(advantages_BT=advantages_B1.expand(mask_BT.shape))


def penalised_rewards(outcomes: Outcomes) -> tuple[float, ...]:
    """The reward of each sample less the KL penalty of its tokens."""
    if outcomes.kl_BT is None:
        return outcomes.rewards
    penalty_B = outcomes.kl_BT.double().masked_fill(~outcomes.mask_BT, 0.0).sum(1).tolist()
    return tuple(reward - penalty for reward, penalty in zip(outcomes.rewards, penalty_B, strict=True))


def token_rewards(outcomes: Outcomes) -> torch.Tensor:
    """The reward of each token, BT: the sample's at the last token that the policy sampled, less each token's
    penalty."""
    mask_BT = outcomes.mask_BT
    rewards_B1 = torch.tensor(outcomes.rewards, dtype=torch.float64)[:, None]
    left_BT = mask_BT.long().flip(1).cumsum(1).flip(1)  # sampled tokens from here to the end
    rewards_BT = torch.where(mask_BT & (left_BT == 1), rewards_B1, torch.zeros_like(rewards_B1))
    if outcomes.kl_BT is not None:
        rewards_BT = rewards_BT - outcomes.kl_BT.double().masked_fill(~mask_BT, 0.0)
    return rewards_BT


def discounted_returns(rewards_BT: torch.Tensor, mask_BT: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """G_t = r_t + gamma G_{t+1} over sampled tokens; a gap carries the return of what follows it."""
    returns_BT = torch.zeros_like(rewards_BT)
    following_B = torch.zeros_like(rewards_BT[:, 0])
    for t in reversed(range(rewards_BT.shape[1])):
        following_B = torch.where(mask_BT[:, t], rewards_BT[:, t] + gamma * following_B, following_B)
        returns_BT[:, t] = following_B
    return returns_BT


def whiten(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """(x - mean) / std over the tokens in the mask, with the population's variance; 0 elsewhere."""
    count = mask_BT.sum().clamp(min=1)
    mean = values_BT.masked_fill(~mask_BT, 0.0).sum() / count
    centred_BT = (values_BT - mean).masked_fill(~mask_BT, 0.0)
    return centred_BT * (centred_BT.square().sum() / count).clamp(min=MIN_VARIANCE).rsqrt()


def _mean(values: Sequence[float]) -> float:
    return values[0] if min(values) == max(values) else fsum(values) / len(values)


def _fellows(rewards: Sequence[float], groups: Sequence[int]) -> list[list[float]]:
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards for {len(groups)} samples")
    if not all(abs(reward) <= MAX_PENALISED_REWARD for reward in rewards):
        raise ValueError(
            f"rewards from {min(rewards)} to {max(rewards)} have squares that are not finite; scale the rewards to at "
            f"most {MAX_PENALISED_REWARD:g}"
        )
    members: dict[int, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    return [members[group] for group in groups]
