"""CISPO: clipped importance-sampling policy optimisation (MiniMax-M1, arXiv 2506.13585, equations 4 and 5).

    l_it = -sg(clip(rho_it, 1 - clip_low, 1 + clip_high)) A_it log pi_theta,   rho = pi_theta / pi_prox
    L    = 1 / sum_i n_i  sum_i sum_t l_it

The advantages are GRPO's, and sg stops the gradient. The clipped ratio is a constant weight and is not differentiated.
So no token loses its gradient, including rare but decisive ones ("however", "wait"). The paper sets no lower bound
(`clip_low: 1`) and tunes the upper one. *Trap*: TRL's epsilon_high is the bound itself, which is 1 + clip_high here (as
in verl and slime).

Shapes: B rows (samples), T completion columns.
"""

import torch

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes
from trainer.learning.losses.grpo import grpo_advantages
from trainer.learning.losses.log_ratio import bounded_ratio
from trainer.learning.losses.surrogate import Clip, TokenLoss, clamp


def cispo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token, BT: l_it of the module's formula.

    A token counts as clipped if the clip changed its ratio.
    """
    # Detached: the ratio is a constant weight, and only log pi_theta is differentiated.
    ratio_BT = bounded_ratio(logprobs_BT - proximal_BT).detach()
    weight_BT = clamp(ratio_BT, clip)
    return TokenLoss(
        loss_BT=-weight_BT * advantages_BT * logprobs_BT,
        clipped_low_BT=weight_BT > ratio_BT,
        clipped_high_BT=weight_BT < ratio_BT,
    )


def cispo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return GRPO's advantages, which CISPO uses unchanged."""
    return grpo_advantages(outcomes, settings)
