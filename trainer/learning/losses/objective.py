"""The policy loss of a micro-batch: token losses times importance weights, averaged, plus a KL penalty.

    L = mean_t( w_t l_t(pi_theta, pi_prox, A_t) ) + beta mean_t( kl_t(pi_theta, pi_ref) )

l_t is the algorithm's loss of a token (files beside this one), and w_t the importance weight. There are two cases:
- *decoupled*: pi_prox is the policy at the start of the step, and w corrects from the behaviour policy to it
  (`trainer.learning.losses.importance`). With one optimizer update per step the ratio pi_theta / pi_prox is 1, and the
  gradient is that of w A log pi.
- *coupled* (correction `none`): pi_prox is the behaviour policy, and w = 1. The clip then also limits the distance from
  the policy that sampled, so with stale samples many tokens would be clipped.

`trainer.learning.losses.aggregate` defines the mean. The importance weight does not apply to the KL penalty (as in
TRL): the penalty keeps the policy near the reference on the given tokens, whichever policy sampled them. Values outside
the mask are replaced before any arithmetic, so padding may hold anything, including NaN.

Shapes: B rows, T completion columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from trainer.learning.losses.aggregate import Aggregation, StepCounts, aggregate
from trainer.learning.losses.importance import Correction, Importance, importance_weights
from trainer.learning.losses.kl import KlEstimator, kl_estimate
from trainer.learning.losses.log_ratio import bounded_k3, bounded_ratio
from trainer.learning.losses.surrogate import Clip, TokenLossFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Settings of the policy loss.

    `clip`, `importance` and `aggregation` configure the modules of these names (`surrogate` for the clip).
    `constant_tokens` is C of the aggregation `constant`. `kl_coefficient` is beta, the coefficient of the KL penalty in
    the loss, 0 for none. `m2_threshold` is the largest second moment of an update's log-ratios that M2PO leaves, in
    nats squared; None for the other algorithms.
    """

    clip: Clip
    importance: Importance
    aggregation: Aggregation
    constant_tokens: float = 1.0
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = KlEstimator.K3
    m2_threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """Sums of figures over the tokens that the loss sees. Updates add up; divide by the number of tokens.

    - `clipped_low`, `clipped_high`: number of tokens whose ratio the loss's clip found below or above its range. With
      M2PO the number of masked tokens with a ratio below or above 1.
    - `ratio`: sum of the ratio of the current to the behaviour policy.
    - `approx_kl`: sum of k3, which estimates KL(behaviour || current).
    - `weight`: sum of importance weights. `cut`: number of weights that were truncated or masked.

    `ratio` and `approx_kl` are bounded for each token (log_ratio.py), so one wrong log-probability cannot make a metric
    infinite.
    """

    clipped_low: float = 0.0
    clipped_high: float = 0.0
    ratio: float = 0.0
    approx_kl: float = 0.0
    weight: float = 0.0
    cut: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "LossSums":
        """Return the sums whose values are given in the order of the fields."""
        return cls(**dict(zip((f.name for f in fields(cls)), values, strict=True)))

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
    untrusted_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this micro-batch's share of the policy loss, a scalar, and sums of figures over its tokens.

    The sums are a vector in float64 on the same device, in the order of the fields of `LossSums`. Micro-batches add
    up; the caller reads them once for all micro-batches.

    The other arguments ending in `_BT` are constants: only `logprobs_BT` is differentiated. `counts` are those of the
    whole update. `reference_BT` is required if the KL coefficient is above 0. `untrusted_BT` are tokens that get no
    policy loss but count in the mean (M2PO). Raises: ValueError if the update has no tokens.
    """
    # Replace what is outside the mask, which may be NaN, by 0.
    hidden_BT = ~mask_BT
    current_BT = logprobs_BT.masked_fill(hidden_BT, 0.0)
    behaviour_BT = behaviour_BT.masked_fill(hidden_BT, 0.0)
    advantages_BT = advantages_BT.masked_fill(hidden_BT, 0.0)
    # Coupled: clip around the behaviour policy. Decoupled: clip around the proximal one, and weight the tokens.
    coupled = settings.importance.correction is Correction.NONE
    proximal_BT = behaviour_BT if coupled else proximal_BT.detach().masked_fill(hidden_BT, 0.0)
    weight_BT, cut_BT = importance_weights(proximal_BT, behaviour_BT, mask_BT, settings.importance)
    tokens = token_loss(current_BT, proximal_BT, advantages_BT, mask_BT, settings.clip)
    if untrusted_BT is not None:
        tokens = tokens.without(untrusted_BT, current_BT - behaviour_BT)

    def mean(values_BT: torch.Tensor) -> torch.Tensor:
        return aggregate(values_BT, mask_BT, settings.aggregation, counts, constant_tokens=settings.constant_tokens)

    loss = mean(weight_BT * tokens.loss_BT)
    if settings.kl_coefficient:
        assert reference_BT is not None
        kl_BT = kl_estimate(current_BT, reference_BT.masked_fill(hidden_BT, 0.0), settings.kl_estimator)
        loss = loss + settings.kl_coefficient * mean(kl_BT)
    with torch.no_grad():
        log_ratio_BT = current_BT - behaviour_BT
        clipped = (tokens.clipped_low_BT, tokens.clipped_high_BT)
        figures = (*clipped, bounded_ratio(log_ratio_BT), bounded_k3(log_ratio_BT), weight_BT, cut_BT)
        sums = torch.stack([(values_BT * mask_BT).sum(dtype=torch.float64) for values_BT in figures])
    return loss, sums
