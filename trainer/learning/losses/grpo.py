"""GRPO: group relative policy optimisation (Shao et al., arXiv 2402.03300, equations 3 and 4).

    A_it = (r_i - mean(r)) / (std(r) + eps)                               over the samples of a prompt
    l_it = -min(rho_it A_it, clip(rho_it, 1 - clip_low, 1 + clip_high) A_it),   rho = pi_theta / pi_prox
    L    = mean(l) + beta mean(k3(pi_theta, pi_ref))

*Assumption*: the reward is one number for a whole completion, and each of its tokens gets the same advantage.
*Deviation*: the paper first averages over the tokens of each completion (`loss_aggregation: sequence_mean`). By default
this code averages over all tokens of the update, because the paper's mean gives the tokens of long wrong answers less
weight (Dr. GRPO, arXiv 2503.20783).

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


def grpo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token, BT: l_it of the module's formula."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def grpo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return the advantage of each token, BT: A_it of the module's formula, after the KL penalty in the reward.

    Without `normalise` the mean is subtracted and nothing is divided.
    """
    rewards = penalised_rewards(outcomes)
    return of_samples(group_advantages(rewards, outcomes.groups, normalise_std=settings.normalise), outcomes.mask_BT)
