"""GSPO: group sequence policy optimisation (Zheng et al., arXiv 2507.18071, equations 5 to 7).

    s_i = exp(1/n_i sum_t (log pi_theta - log pi_prox))                    geometric mean of the token ratios
    l_i = -min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)
    L   = 1/S sum_i l_i                                                    mean over sequences

with GRPO's advantages. The reward belongs to the sequence, so ratio and clip do too: token ratios of one sequence
scatter, their mean hardly does, and clip ranges are therefore far narrower (the paper: 3e-4 and 4e-4). Each token
carries its sequence's l_i; the mean over sequences of the mean over their tokens is then L. *Assumption*: n_i counts
the tokens that the policy sampled.
"""

import torch

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes
from trainer.learning.losses.grpo import grpo_advantages
from trainer.learning.losses.log_ratio import bounded_ratio
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_ratio


def gspo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """The loss of each token: its sequence's l above."""
    log_ratio_BT = (logprobs_BT - proximal_BT) * mask_BT
    log_ratio_B1 = log_ratio_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
    return clipped_ratio(bounded_ratio(log_ratio_B1).expand_as(logprobs_BT), advantages_BT, clip)


def gspo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Those of GRPO."""
    return grpo_advantages(outcomes, settings)
