"""The loss of a policy: an algorithm's loss of each token, weighted for staleness, averaged, with a KL penalty.

    L = mean_t( w_t l_t(pi_theta, pi_prox, A_t) ) + beta mean_t( kl_t(pi_theta, pi_ref) )

- *decoupled*: pi_prox is the policy at the start of the step, and w corrects from the behaviour policy to it
  (`trainer.learning.losses.importance`). With one optimizer step a batch r = 1, and the gradient is that of w A log pi.
- *coupled* (correction `none`): pi_prox is the behaviour policy and w = 1. The clip then also limits how far the policy
  may be from the one that sampled, and with stale samples many tokens fall outside.

The mean is `trainer.learning.losses.aggregate`'s. The penalty is added after the weight (as TRL does): it holds the
policy to the reference on the tokens at hand, whoever sampled them. Tokens outside the mask are replaced before any
arithmetic, so padding may hold anything, NaN included.

Shapes: B rows, T completion columns.
"""

from dataclasses import dataclass, fields

import torch

from trainer.learning.losses.aggregate import Aggregation, StepCounts, aggregate
from trainer.learning.losses.importance import Correction, Importance, importance_weights
from trainer.learning.losses.kl import KlEstimator, kl_estimate
from trainer.learning.losses.log_ratio import bounded_k3, bounded_ratio
from trainer.learning.losses.surrogate import Clip, TokenLossFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """`kl_coefficient` is beta, of a penalty in the loss; `constant_tokens` is the C of a constant mean."""

    clip: Clip
    importance: Importance
    aggregation: Aggregation
    constant_tokens: float = 1.0
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = KlEstimator.K3


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """Sums over the tokens that the loss sees, so that micro-batches add up; divide by their count.

    `ratio` and `approx_kl` compare the current with the behaviour policy: the latter is k3 of KL(behaviour || current).
    Both are bounded a token (log_ratio.py), so that one wrong log-probability does not make a metric infinite.
    `weight` sums the importance weights, `cut` counts those truncated or masked, `clipped` the tokens that a clip
    decided.
    """

    clipped: float = 0.0
    ratio: float = 0.0
    approx_kl: float = 0.0
    weight: float = 0.0
    cut: float = 0.0

    def plus(self, other: "LossSums") -> "LossSums":
        return LossSums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


def policy_loss(
    token_loss: TokenLossFunction,
    logprobs_BT: torch.Tensor,
    *,
    proximal_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    reference_BT: torch.Tensor | None,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    counts: StepCounts,
    settings: LossSettings,
) -> tuple[torch.Tensor, LossSums]:
    """The loss (a scalar: this micro-batch's share) and its sums. Only `logprobs_BT` is differentiated.

    `reference_BT` is needed with a KL coefficient above 0. Raises: ValueError for a step without tokens.
    """
    hidden_BT = ~mask_BT
    current_BT = logprobs_BT.masked_fill(hidden_BT, 0.0)
    behaviour_BT = behaviour_BT.masked_fill(hidden_BT, 0.0)
    advantages_BT = advantages_BT.masked_fill(hidden_BT, 0.0)
    coupled = settings.importance.correction is Correction.NONE
    proximal_BT = behaviour_BT if coupled else proximal_BT.detach().masked_fill(hidden_BT, 0.0)
    weight_BT, cut_BT = importance_weights(proximal_BT, behaviour_BT, mask_BT, settings.importance)
    tokens = token_loss(current_BT, proximal_BT, advantages_BT, mask_BT, settings.clip)

    def mean(values_BT: torch.Tensor) -> torch.Tensor:
        return aggregate(values_BT, mask_BT, settings.aggregation, counts, constant_tokens=settings.constant_tokens)

    loss = mean(weight_BT * tokens.loss_BT)
    if settings.kl_coefficient:
        assert reference_BT is not None
        kl_BT = kl_estimate(current_BT, reference_BT.masked_fill(hidden_BT, 0.0), settings.kl_estimator)
        loss = loss + settings.kl_coefficient * mean(kl_BT)
    with torch.no_grad():
        log_ratio_BT = current_BT - behaviour_BT
        sums = LossSums(
            clipped=_total(tokens.clipped_BT, mask_BT),
            ratio=_total(bounded_ratio(log_ratio_BT), mask_BT),
            approx_kl=_total(bounded_k3(log_ratio_BT), mask_BT),
            weight=_total(weight_BT, mask_BT),
            cut=_total(cut_BT, mask_BT),
        )
    return loss, sums


def _total(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> float:
    return float((values_BT * mask_BT).sum())
