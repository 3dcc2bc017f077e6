"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al., arXiv 2402.14740, equation 8).

    A_i  = r_i - beta sum_t k1_it - 1/(n - 1) sum_{j != i} (the same of j)
    l_it = -rho_it A_i,   rho = pi_theta / pi_prox                          unclipped unless the job sets a clip
    L    = 1/S sum_i sum_t l_it                                            a completion is one action

n is the size of the group, S the number of completions, beta the coefficient of the KL penalty in the reward. At the
start of a step rho = 1, and the gradient is that of A log pi(completion), as in REINFORCE. The mean of the other
samples is a baseline that does not depend on the sample itself, so the estimate is unbiased. In a group of one, A = 0.
*Deviation*: with several optimizer updates per step, rho is the ratio of a token and not of the whole completion: the
product of many ratios has too much variance to be of use.

Shapes: B rows (samples), T completion columns.
"""

import torch

from trainer.learning.advantages import (
    Advantages,
    AdvantageSettings,
    Outcomes,
    leave_one_out_advantages,
    of_samples,
    penalised_rewards,
)
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def rloo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token, BT: l_it of the module's formula."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def rloo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return the advantage of each token, BT: A_i of its sample in the module's formula."""
    return of_samples(leave_one_out_advantages(penalised_rewards(outcomes), outcomes.groups), outcomes.mask_BT)
