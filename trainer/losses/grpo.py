"""The clipped policy-gradient loss of GRPO, right for samples of older policies.

With r = exp(log pi_theta - log pi_prox) and the group-relative advantage A, over the N completion tokens of the step:

    L = -1/N sum_t  w_t min(r_t A, clip(r_t, 1 - clip_low, 1 + clip_high) A)

Two readings of "proximal":
- *coupled* (PPO, arXiv 1707.06347; GRPO, arXiv 2402.03300): pi_prox is the behaviour policy, w = 1. The clip then also
  limits how far the policy may be from the one that sampled, and with stale samples many tokens fall outside.
- *decoupled* (AReaL, arXiv 2505.24298, section 5.2; after arXiv 2110.00641): pi_prox is the policy at the start of the
  step, and w = exp(log pi_prox - log pi_behaviour) corrects for staleness, truncated at `importance_cap` (truncated
  importance sampling). With one optimizer step a batch r = 1, and the gradient is that of w A log pi.

The normaliser is the token count of the whole step, not of a micro-batch or a sequence (Dr. GRPO, arXiv 2503.20783):
splitting into micro-batches changes nothing, and long answers are not favoured. *Assumption*: behaviour
log-probabilities are those of the sampling distribution, at the same temperature as `logprobs_BT`.

Shapes: B rows, T completion columns.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSettings:
    """Clip range of the ratio, and the cap of the importance weight (None: not truncated)."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    importance_cap: float | None = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoStats:
    """Sums over the completion tokens given, so that micro-batches add up; divide by the step's token count."""

    clipped: float
    ratio: float
    approx_kl: float

    def plus(self, other: "GrpoStats") -> "GrpoStats":
        return GrpoStats(
            clipped=self.clipped + other.clipped,
            ratio=self.ratio + other.ratio,
            approx_kl=self.approx_kl + other.approx_kl,
        )


def grpo_loss(
    logprobs_BT: torch.Tensor,
    behaviour_logprobs_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    settings: GrpoSettings,
    *,
    num_tokens: int,
    proximal_logprobs_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, GrpoStats]:
    """The loss (a scalar, this micro-batch's share) and its statistics; decoupled if proximal log-probabilities are
    given.

    *Source*: equations above. `ratio` and `approx_kl` compare the current policy with the behaviour policy; the latter
    is the estimator k3 = x - 1 - log x of KL(behaviour || current), x = pi / pi_behaviour
    (joschu.net/blog/kl-approx.html).
    """
    if num_tokens < 1:
        raise ValueError(f"the step's token count is {num_tokens}; it must be positive")
    # Padding may hold anything, NaN included: it is replaced before any arithmetic, so that no gradient passes.
    current_BT = logprobs_BT.masked_fill(~mask_BT, 0.0)
    behaviour_BT = behaviour_logprobs_BT.masked_fill(~mask_BT, 0.0)
    proximal_BT, weight_BT = behaviour_BT, torch.ones_like(behaviour_BT)
    if proximal_logprobs_BT is not None:
        proximal_BT = proximal_logprobs_BT.detach().masked_fill(~mask_BT, 0.0)
        weight_BT = torch.exp(proximal_BT - behaviour_BT)
        if settings.importance_cap is not None:
            weight_BT = weight_BT.clamp(max=settings.importance_cap)
    ratio_BT = torch.exp(current_BT - proximal_BT)
    clipped_BT = ratio_BT.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    advantages_B1 = advantages_B[:, None]
    gain_BT = torch.minimum(ratio_BT * advantages_B1, clipped_BT * advantages_B1)
    loss = -(weight_BT * gain_BT * mask_BT).sum() / num_tokens
    with torch.no_grad():
        log_ratio_BT = current_BT - behaviour_BT
        stats = GrpoStats(
            clipped=float(((clipped_BT * advantages_B1 < ratio_BT * advantages_B1) & mask_BT).sum()),
            ratio=float((log_ratio_BT.exp() * mask_BT).sum()),
            approx_kl=float(((log_ratio_BT.exp() - 1.0 - log_ratio_BT) * mask_BT).sum()),
        )
    return loss, stats
