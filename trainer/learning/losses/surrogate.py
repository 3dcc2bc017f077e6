"""The clipped probability ratio of PPO, of which most algorithms here are variants, per token and before any mean.

    r = exp(log pi_theta - log pi_prox)                                 at most e^20: see log_ratio.py
    l = max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)              arXiv 1707.06347, equation 7, as a loss
    A < 0 and dual_clip c:  l = min(l, -c A)                            arXiv 1912.09729, equation 5; c > 1

The maximum makes it a pessimistic bound: a token whose probability already moved far enough in the direction of its
advantage gives no gradient, one that moved the wrong way always does. With clip_low other than clip_high it is DAPO's
clip-higher. The dual clip bounds what one token of very high ratio and negative advantage can cost; it equals the
two-sided clip of INTELLECT-2 (arXiv 2505.07291, delta = c).

Shapes: B rows, T completion columns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.learning.losses.log_ratio import bounded_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Range of the ratio, from 1 - low to 1 + high (None: no bound on that side), and PPO's dual clip c."""

    low: float | None = 0.2
    high: float | None = 0.2
    dual: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """What each token costs, and where a clip decided: there the token gives no gradient (CISPO: a bounded one)."""

    loss_BT: torch.Tensor
    clipped_BT: torch.Tensor


TokenLossFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Clip], TokenLoss]
"""(log-probabilities, proximal log-probabilities, advantages, mask: all BT; clip) -> loss of each token.

Values outside the mask are finite; what comes out there has no meaning.
"""


def clipped_surrogate(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """The loss above, token by token; the mask is not needed."""
    return clipped_ratio(bounded_ratio(logprobs_BT - proximal_BT), advantages_BT, clip)


def clipped_ratio(ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, clip: Clip) -> TokenLoss:
    """The same for a ratio that is given: of a token, or of a sequence (GSPO)."""
    plain_BT = -ratio_BT * advantages_BT
    bounded_BT = -clamp(ratio_BT, clip) * advantages_BT
    loss_BT = torch.maximum(plain_BT, bounded_BT)
    clipped_BT = bounded_BT > plain_BT
    if clip.dual is not None:
        ceiling_BT = -clip.dual * advantages_BT
        capped_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT)
        loss_BT = torch.where(capped_BT, ceiling_BT, loss_BT)
        clipped_BT = clipped_BT | capped_BT
    return TokenLoss(loss_BT=loss_BT, clipped_BT=clipped_BT)


def clamp(ratio_BT: torch.Tensor, clip: Clip) -> torch.Tensor:
    """The ratio within the range."""
    if clip.low is None and clip.high is None:
        return ratio_BT
    low = None if clip.low is None else 1.0 - clip.low
    high = None if clip.high is None else 1.0 + clip.high
    return ratio_BT.clamp(low, high)
