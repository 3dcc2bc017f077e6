"""DAPO: decoupled clip and dynamic sampling policy optimisation (Yu et al., arXiv 2503.14476, equations 8 to 13).

    l_it = -min(rho_it A_it, clip(rho_it, 1 - clip_low, 1 + clip_high) A_it),   clip_high > clip_low ("clip-higher")
    L    = 1 / sum_i n_i  sum_i sum_t l_it                                 mean over the tokens of the step, no KL term
    r_i <- r_i + R(n_i),   R = 0                        n <= L_max - L_cache        ("soft overlong punishment")
                               (L_max - L_cache - n) / L_cache   in between
                               -1                       n > L_max

The advantages are GRPO's, of the rewards after the punishment R. n_i is the length of completion i, L_max the longest
length, L_cache the length of the interval in which the punishment grows.

*Overlong filtering*: completions that were cut off at the length limit get the advantage 0. They still count in the
mean, and in their group's baseline. *Dynamic sampling* (groups whose samples all got the same reward are replaced) is
not part of the loss: such a group has the advantage 0 here, and the ledger decides whether another group replaces it.

Shapes: B rows (samples), T completion columns.
"""

from collections.abc import Sequence

import torch

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes, group_advantages, of_samples
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def dapo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token, BT: l_it of the module's formula."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def dapo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return GRPO's advantages of the rewards after the overlong punishment, 0 for samples that the filter excludes.

    There is no KL penalty in the reward: a job that asks for one with DAPO is refused.
    """
    rewards = outcomes.rewards
    if settings.overlong_cache_tokens:
        punished = overlong_punishments(
            outcomes.lengths_B.tolist(), max_tokens=settings.max_tokens, cache_tokens=settings.overlong_cache_tokens
        )
        rewards = tuple(reward + extra for reward, extra in zip(rewards, punished, strict=True))
    # Filtered samples still count in their group's baseline, so they are excluded only afterwards.
    advantages = group_advantages(rewards, outcomes.groups, normalise_std=settings.normalise)
    if settings.overlong_filter:
        cut = outcomes.truncated_B.tolist()
        advantages = tuple(0.0 if gone else value for gone, value in zip(cut, advantages, strict=True))
    return of_samples(advantages, outcomes.mask_BT)


def overlong_punishments(lengths: Sequence[int], *, max_tokens: int, cache_tokens: int) -> tuple[float, ...]:
    """Return the punishment R(n) of each completion length (equation 13), between -1 and 0. Lengths are in tokens."""
    return tuple(max(-1.0, min(0.0, (max_tokens - cache_tokens - length) / cache_tokens)) for length in lengths)
