"""REINFORCE++ (Hu, arXiv 2501.03262, section 3): PPO's loss without a critic, normalised over the whole step.

    r_it = 1[t is the last] r_i - beta k1_it                               the KL penalty is part of the token's reward
    G_it = sum_{s >= t} gamma^(s - t) r_is
    A_it = (G_it - mean(G)) / std(G)                                       over all tokens of the step
    l_it = -min(rho_it A_it, clip(rho_it, 1 - clip_low, 1 + clip_high) A_it)

beta is the coefficient of the KL penalty. The baseline is the mean over the step, so a prompt needs no group of
samples. A prompt that is always solved can still have positive advantages, whereas a baseline from its own group would
make them 0. *Assumption*: the rewards of different prompts have the same scale.

Shapes: B rows (samples), T completion columns.
"""

import torch

from trainer.learning.advantages import (
    Advantages,
    AdvantageSettings,
    Outcomes,
    discounted_returns,
    token_rewards,
    whiten,
)
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def reinforce_plus_plus_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token, BT: l_it of the module's formula."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def reinforce_plus_plus_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return the advantage of each token, BT: A_it of the module's formula. It is always whitened."""
    returns_BT = discounted_returns(token_rewards(outcomes), outcomes.mask_BT, gamma=settings.gamma)
    return Advantages(advantages_BT=whiten(returns_BT, outcomes.mask_BT))
