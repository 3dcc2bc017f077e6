"""The parts that advantages are computed from: group baselines, token rewards, discounted returns and whitening.

The file of each algorithm under `trainer.learning.losses` combines these parts. A *group* is the set of samples of one
prompt. The group baselines are

    GRPO, arXiv 2402.03300, section 4.1.2      A_i = (r_i - mean(r)) / (std(r) + eps)      over the samples of a group
    Dr. GRPO, arXiv 2503.20783                 A_i =  r_i - mean(r)
    RLOO, arXiv 2402.14740, equation 8         A_i =  r_i - mean_{j != i}(r_j)

The baseline comes from the group, so no critic is needed. A group of one sample, or with equal rewards, has advantages
of exactly 0. The code ensures this: the floating-point mean of equal numbers may differ from them by a rounding error,
and AdamW, which normalises gradients, would make such an error large again.

*Deviation*: the standard deviation is the population's. The GRPO paper does not say which one it means. TRL and verl
use the sample's, which makes the advantages in a group of 8 smaller by 6 %.

*Tool gaps*: tokens that the policy did not sample (mask false), such as a tool's answer, are not actions. Reward, value
and advantage pass through them unchanged and undiscounted, as if the next sampled token followed at once.

All arithmetic is in float64, over the whole step. So results do not depend on the order of arrival, on micro-batches or
on the number of processes that share the work.

Shapes: B rows (samples), T completion columns, U = T + 1 states (before each completion token, and after the last).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

import torch

EPSILON = 1e-4
"""Added to GRPO's standard deviation, in units of reward. It keeps advantages small in a group whose rewards differ by
a rounding error only. The value is TRL's."""

MAX_PENALISED_REWARD = 1e100
"""Largest magnitude of a reward after its KL penalty was subtracted. The sum of its squares over any step is still
finite in float64, which overflows at 1.8e308."""

MIN_VARIANCE = 1e-8
"""Lower bound on the variance that `whiten` divides by: numbers with a smaller variance count as nearly equal. The
value is OpenRLHF's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Input of the advantages: what the samples of one training step achieved, in the order of the batch's rows.

    - `rewards`, `groups`: reward and group of each sample.
    - `mask_BT`: true for the tokens that the policy sampled.
    - `lengths_B`: number of completion tokens, including those in tool gaps.
    - `truncated_B`: true for completions that ended neither with an end token nor with a stop string.
    - `kl_BT`: the KL penalty that is subtracted from each token's reward, coefficient included; None without one.
    - `values_BU`: the critic's values before each token and after the last; None without a critic.
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
    """Settings of all algorithms' advantages. Each algorithm reads those that it has a use for.

    - `normalise`: GRPO, GSPO, CISPO, M2PO and DAPO divide by the group's standard deviation; PPO whitens over the step.
      The other algorithms do not read it: REINFORCE++ always whitens, Dr. GRPO and RLOO never divide.
    - `gamma`: the discount per sampled token (PPO, REINFORCE++).
    - `gae_lambda`: lambda of generalised advantage estimation (PPO).
    - `bootstrap_truncated`: a truncated completion is continued with the critic's last value (PPO).
    - `overlong_filter`: truncated completions get the advantage 0 (DAPO).
    - `overlong_cache_tokens`: length of the interval before `max_tokens` in which the punishment of long completions
      grows, in tokens; 0 disables it (DAPO).
    - `max_tokens`: the completion length from which the full punishment applies (DAPO).
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
    """Advantages of tokens, BT in float64, and the values that the critic is trained towards, None without a critic."""

    advantages_BT: torch.Tensor
    returns_BT: torch.Tensor | None = None


def group_advantages(rewards: Sequence[float], groups: Sequence[int], *, normalise_std: bool) -> tuple[float, ...]:
    """Return GRPO's advantage of each sample, or Dr. GRPO's if `normalise_std` is false.

    `groups[i]` is the group of sample i. Raises: ValueError if the lengths differ, or if a reward is above
    MAX_PENALISED_REWARD in magnitude or not finite.
    """
    advantages = []
    for reward, values in zip(rewards, _group_rewards(rewards, groups), strict=True):
        # Sums are exactly rounded (fsum), so the order of samples has no effect.
        mean = _mean(values)
        std = sqrt(fsum((value - mean) ** 2 for value in values) / len(values))
        advantages.append((reward - mean) / (std + EPSILON if normalise_std else 1.0))
    return tuple(advantages)


def leave_one_out_advantages(rewards: Sequence[float], groups: Sequence[int]) -> tuple[float, ...]:
    """Return RLOO's advantage of each sample; 0 in a group of one.

    Reward minus the mean of the other n - 1 samples equals n / (n - 1) times the reward minus the group's mean.
    `groups[i]` is the group of sample i. Raises: ValueError as `group_advantages` does.
    """
    advantages = []
    for reward, values in zip(rewards, _group_rewards(rewards, groups), strict=True):
        mean = _mean(values)
        advantages.append((reward - mean) * len(values) / (len(values) - 1) if len(values) > 1 else 0.0)
    return tuple(advantages)


def of_samples(advantages: Sequence[float], mask_BT: torch.Tensor) -> Advantages:
    """Give each token of a sample the sample's advantage, BT."""
    advantages_B1 = torch.tensor(advantages, dtype=torch.float64, device=mask_BT.device)[:, None]
    return Advantages(advantages_BT=advantages_B1.expand(mask_BT.shape))


def penalised_rewards(outcomes: Outcomes) -> tuple[float, ...]:
    """Return the reward of each sample minus the sum of its tokens' KL penalties."""
    if outcomes.kl_BT is None:
        return outcomes.rewards
    penalty_B = outcomes.kl_BT.double().masked_fill(~outcomes.mask_BT, 0.0).sum(1).tolist()
    return tuple(reward - penalty for reward, penalty in zip(outcomes.rewards, penalty_B, strict=True))


def token_rewards(outcomes: Outcomes) -> torch.Tensor:
    """Return the reward of each token, BT.

    The last token that the policy sampled gets the sample's reward. The KL penalty of each token is subtracted.
    """
    mask_BT = outcomes.mask_BT
    rewards_B1 = torch.tensor(outcomes.rewards, dtype=torch.float64, device=mask_BT.device)[:, None]
    left_BT = mask_BT.long().flip(1).cumsum(1).flip(1)  # number of sampled tokens from this column to the end
    rewards_BT = torch.where(mask_BT & (left_BT == 1), rewards_B1, torch.zeros_like(rewards_B1))
    if outcomes.kl_BT is not None:
        rewards_BT = rewards_BT - outcomes.kl_BT.double().masked_fill(~mask_BT, 0.0)
    return rewards_BT


def discounted_returns(rewards_BT: torch.Tensor, mask_BT: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """Return the discounted sum of future rewards, G_t = r_t + gamma G_{t+1} over sampled tokens, BT.

    A column outside the mask has the return of the next sampled token.
    """
    returns_BT = torch.zeros_like(rewards_BT)
    following_B = torch.zeros_like(rewards_BT[:, 0])
    # Backwards through the columns; a column outside the mask passes the return on.
    for t in reversed(range(rewards_BT.shape[1])):
        following_B = torch.where(mask_BT[:, t], rewards_BT[:, t] + gamma * following_B, following_B)
        returns_BT[:, t] = following_B
    return returns_BT


def whiten(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return (x - mean) / std over the tokens in the mask, with the population's variance; 0 outside the mask."""
    count = mask_BT.sum().clamp(min=1)
    mean = values_BT.masked_fill(~mask_BT, 0.0).sum() / count
    # Hidden values are replaced before they are squared, since they may be large.
    centred_BT = (values_BT - mean).masked_fill(~mask_BT, 0.0)
    return centred_BT * (centred_BT.square().sum() / count).clamp(min=MIN_VARIANCE).rsqrt()


def _mean(values: Sequence[float]) -> float:
    # Exactly the common value if all are equal.
    return values[0] if min(values) == max(values) else fsum(values) / len(values)


def _group_rewards(rewards: Sequence[float], groups: Sequence[int]) -> list[list[float]]:
    # The rewards of each sample's own group, in the order of samples.
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards for {len(groups)} samples")
    # A NaN fails this comparison too.
    if not all(abs(reward) <= MAX_PENALISED_REWARD for reward in rewards):
        raise ValueError(
            f"rewards from {min(rewards)} to {max(rewards)} are not finite, or their squares overflow; scale the "
            f"rewards to at most {MAX_PENALISED_REWARD:g}"
        )
    members: dict[int, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    return [members[group] for group in groups]
