"""The clipped surrogate loss of PPO, for each token and before any mean. Most algorithms here are variants of it.

    r = exp(log pi_theta - log pi_prox)                                 at most e^20: see log_ratio.py
    l = max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)              arXiv 1707.06347, equation 7, as a loss
    A < 0 and dual_clip c:  l = min(l, -c A)                            arXiv 1912.09729, equation 5; c > 1

pi_theta is the policy that is trained, and pi_prox the one that the loss clips around. The maximum makes the loss a
pessimistic bound. A token whose probability already moved beyond the range in the direction of its advantage gives no
gradient. A token whose probability moved the wrong way always does. With clip_high above clip_low it is DAPO's
clip-higher. The dual clip bounds the loss of a token with a very high ratio and a negative advantage; it equals the
two-sided clip of INTELLECT-2 (arXiv 2505.07291, delta = c).

Shapes: B rows, T completion columns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.learning.losses.log_ratio import bounded_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Range of the ratio, from 1 - low to 1 + high, and the constant c of the dual clip. None means no such bound."""

    low: float | None = 0.2
    high: float | None = 0.2
    dual: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """The loss of each token, and where a clip took effect: below the range of the ratio, or above it.

    A token that was clipped gives no gradient, except with CISPO, where its weight is bounded instead.
    """

    loss_BT: torch.Tensor
    clipped_low_BT: torch.Tensor
    clipped_high_BT: torch.Tensor

    @property
    def clipped_BT(self) -> torch.Tensor:
        """Whether a clip took effect on either side."""
        return self.clipped_low_BT | self.clipped_high_BT

    def without(self, masked_BT: torch.Tensor, log_ratio_BT: torch.Tensor) -> "TokenLoss":
        """Return the losses with 0 for the masked tokens, which count as clipped on the side of their log-ratio."""
        return TokenLoss(
            loss_BT=self.loss_BT.masked_fill(masked_BT, 0.0),
            clipped_low_BT=self.clipped_low_BT | (masked_BT & (log_ratio_BT < 0)),
            clipped_high_BT=self.clipped_high_BT | (masked_BT & (log_ratio_BT >= 0)),
        )


TokenLossFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Clip], TokenLoss]
"""Type of an algorithm's loss: (log-probabilities, proximal log-probabilities, advantages, mask, clip) -> token losses.

The tensors are BT. Values outside the mask must be finite; results there have no meaning.
"""


def clipped_surrogate(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return PPO's clipped loss of each token, from the token's own ratio. The mask is not read."""
    return clipped_ratio(bounded_ratio(logprobs_BT - proximal_BT), advantages_BT, clip)


def clipped_ratio(ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, clip: Clip) -> TokenLoss:
    """Return the clipped loss for given ratios, which may be those of tokens or of sequences (GSPO)."""
    # Equation 7 as a loss: the larger of the unclipped and the clipped term.
    plain_BT = -ratio_BT * advantages_BT
    bounded_BT = -clamp(ratio_BT, clip) * advantages_BT
    loss_BT = torch.maximum(plain_BT, bounded_BT)
    clipped_BT = bounded_BT > plain_BT
    # Equation 5 of the dual clip, only for negative advantages.
    if clip.dual is not None:
        ceiling_BT = -clip.dual * advantages_BT
        capped_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT)
        loss_BT = torch.where(capped_BT, ceiling_BT, loss_BT)
        clipped_BT = clipped_BT | capped_BT
    # A ratio that was clipped is on one side of 1: the range holds 1, and the dual clip's constant is above it.
    return TokenLoss(
        loss_BT=loss_BT, clipped_low_BT=clipped_BT & (ratio_BT < 1), clipped_high_BT=clipped_BT & (ratio_BT >= 1)
    )


def clamp(ratio_BT: torch.Tensor, clip: Clip) -> torch.Tensor:
    """Return the ratio limited to the range of `clip`."""
    if clip.low is None and clip.high is None:
        return ratio_BT
    low = None if clip.low is None else 1.0 - clip.low
    high = None if clip.high is None else 1.0 + clip.high
    return ratio_BT.clamp(low, high)
