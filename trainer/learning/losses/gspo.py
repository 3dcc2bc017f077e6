"""GSPO: group sequence policy optimisation (Zheng et al., arXiv 2507.18071, equations 5 to 7).

    s_i = exp(1/n_i sum_t (log pi_theta - log pi_prox))                    geometric mean of the token ratios
    l_i = -min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)
    L   = 1/S sum_i l_i                                                    mean over sequences

The advantages are GRPO's. The reward is that of a whole sequence, so ratio and clip are too. The token ratios of a
sequence scatter widely and their mean hardly does, so clip ranges are far narrower (the paper: 3e-4 and 4e-4). Each
token carries the loss l_i of its sequence: the mean over sequences of the mean over their tokens is then L.
*Assumption*: n_i counts the tokens that the policy sampled.

Shapes: B rows (samples), T completion columns.
"""

import torch

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes
from trainer.learning.losses.grpo import grpo_advantages
from trainer.learning.losses.log_ratio import bounded_ratio
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_ratio


def gspo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token, BT: l_i of its sequence in the module's formula."""
    # The mean log-ratio over the sampled tokens of each sequence, B1, is the logarithm of s_i.
    log_ratio_BT = (logprobs_BT - proximal_BT) * mask_BT
    log_ratio_B1 = log_ratio_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
    # Every token of a sequence carries the ratio of the sequence.
    return clipped_ratio(bounded_ratio(log_ratio_B1).expand_as(logprobs_BT), advantages_BT, clip)


def gspo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return GRPO's advantages, which GSPO uses unchanged."""
    return grpo_advantages(outcomes, settings)
