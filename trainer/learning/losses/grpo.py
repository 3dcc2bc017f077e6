"""GRPO: group relative policy optimisation (Shao et al., arXiv 2402.03300, equations 3 and 4).

    A_it = (r_i - mean(r)) / (std(r) + eps)                               over the samples of a prompt
    l_it = -min(rho_it A_it, clip(rho_it, 1 - clip_low, 1 + clip_high) A_it),   rho = pi_theta / pi_prox
    L    = mean(l) + beta mean(k3(pi_theta, pi_ref))

*Assumption*: the reward is one number for a whole completion, and each of its tokens gets the same share of it.
*Deviation*: the paper averages over tokens within each completion first (`loss_aggregation: sequence_mean`); ours is
the mean over all tokens of the step unless the job says otherwise, since the paper's gives long wrong answers less
weight (Dr. GRPO, arXiv 2503.20783).
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
    """The loss of each token, l above."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def grpo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """The advantage of each token, A above; only centred without `normalise`."""
    rewards = penalised_rewards(outcomes)
    return of_samples(group_advantages(rewards, outcomes.groups, normalise_std=settings.normalise), outcomes.mask_BT)
