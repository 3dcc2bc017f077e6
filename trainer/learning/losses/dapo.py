"""DAPO: decoupled clip and dynamic sampling policy optimisation (Yu et al., arXiv 2503.14476, equations 8 to 13).

    l_it = -min(rho_it A_it, clip(rho_it, 1 - clip_low, 1 + clip_high) A_it),   clip_high > clip_low ("clip-higher")
    L    = 1 / sum_i n_i  sum_i sum_t l_it                                 mean over the tokens of the step, no KL term
    r_i <- r_i + R(n_i),   R = 0                        n <= L_max - L_cache        ("soft overlong punishment")
                               (L_max - L_cache - n) / L_cache   in between
                               -1                       n > L_max

with GRPO's advantages. *Overlong filtering*: completions that were cut off at the length limit teach nothing, but count
in the mean and in their group's baseline. *Dynamic sampling* (no groups whose samples all got the same reward) is not a
loss: such a group has advantage 0 here, and whether another one is drawn in its place is the ledger's decision.
"""

from collections.abc import Sequence

import torch

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes, group_advantages, of_samples
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def dapo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """The loss of each token, l above."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def dapo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """GRPO's advantages of the rewards after the overlong punishment; 0 for what overlong filtering leaves out."""
    rewards = outcomes.rewards
    if settings.overlong_cache_tokens:
        punished = overlong_punishments(
            outcomes.lengths_B.tolist(), max_tokens=settings.max_tokens, cache_tokens=settings.overlong_cache_tokens
        )
        rewards = tuple(reward + extra for reward, extra in zip(rewards, punished, strict=True))
    advantages = group_advantages(rewards, outcomes.groups, normalise_std=settings.normalise)
    if settings.overlong_filter:
        cut = outcomes.truncated_B.tolist()
        advantages = tuple(0.0 if gone else value for gone, value in zip(cut, advantages, strict=True))
    return of_samples(advantages, outcomes.mask_BT)


def overlong_punishments(lengths: Sequence[int], *, max_tokens: int, cache_tokens: int) -> tuple[float, ...]:
    """R(n) of each completion length in tokens (equation 13)."""
    return tuple(max(-1.0, min(0.0, (max_tokens - cache_tokens - length) / cache_tokens)) for length in lengths)
