"""Dr. GRPO: GRPO done right (Liu et al., arXiv 2503.20783, section 3.2).

    A_it = r_i - mean(r)                                                   no standard deviation
    l_it = -min(rho_it A_it, clip(rho_it, 1 - clip_low, 1 + clip_high) A_it)
    L    = 1 / (S C) sum_i sum_t l_it                                      S completions, C a constant: the longest

Dividing by a group's standard deviation favours prompts that are nearly always or nearly never solved. Dividing by a
completion's length favours short right answers and long wrong ones. Without both divisions the gradient is that of the
expected reward. *Assumption*: C is the same in each step (`loss_constant_tokens`, by default sampling.max_new_tokens).

Shapes: B rows (samples), T completion columns.
"""

import torch

from trainer.learning.advantages import (
    Advantages,
    AdvantageSettings,
    Outcomes,
    group_advantages,
    of_samples,
    penalised_rewards,
)
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def dr_grpo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token, BT: l_it of the module's formula."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def dr_grpo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return the advantage of each token, BT: A_it of the module's formula, after the KL penalty in the reward."""
    return of_samples(
        group_advantages(penalised_rewards(outcomes), outcomes.groups, normalise_std=False), outcomes.mask_BT
    )
