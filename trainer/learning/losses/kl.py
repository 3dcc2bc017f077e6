"""Estimators of KL(pi || pi_ref) from tokens that pi sampled (joschu.net/blog/kl-approx.html), and where each one fits.

With k = log pi - log pi_ref of a sampled token, in nats:

    k1 = k                      unbiased; may be negative
    k2 = k^2 / 2                biased; its *gradient* is in expectation that of the KL
    k3 = exp(-k) - 1 + k        unbiased, never negative, low variance

- *In the reward* (RLHF, RLOO, REINFORCE++): the coefficient times the estimate, without gradient, is subtracted from
  each token's reward. k1 gives the gradient of the exact penalty.
- *In the loss* (GRPO, arXiv 2402.03300, equation 4, with k3): the coefficient times the estimate is added to the loss,
  after the importance weight, and is differentiated. k1 would have no effect there: its gradient is that of log pi,
  whose expectation is 0. The expected gradient of k3 is that of the reversed KL(pi_ref || pi).

k1 and k2 are computed as written. The exponential of k3 is bounded where k < -20 (log_ratio.py says why 20): value and
derivative stay those at -20. So a policy that is farther from the reference is still pulled back, by a finite gradient.

Shapes: B rows (samples), T completion columns.
"""

from enum import StrEnum
from typing import assert_never

import torch

from trainer.learning.losses.log_ratio import LOG_RATIO_LIMIT, bounded_k3


class KlEstimator(StrEnum):
    """Name of an estimator of the KL divergence; the module gives the formulas."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


def kl_estimate(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, estimator: KlEstimator) -> torch.Tensor:
    """Return the estimate of KL(pi || pi_ref) at each token, in nats, in the shape of the arguments."""
    k = logprobs_BT - reference_BT
    match estimator:
        case KlEstimator.K1:
            return k
        case KlEstimator.K2:
            return 0.5 * k.square()
        case KlEstimator.K3:
            # k3 takes the log-ratio of the reference to the policy, which is -k.
            return bounded_k3(-_held(k))
        case _:
            assert_never(estimator)


def _held(k: torch.Tensor) -> torch.Tensor:
    # Clamps the value and lets the gradient pass as if it were not clamped: k - k.detach() is exactly 0.
    return k.detach().clamp(min=-LOG_RATIO_LIMIT) + (k - k.detach())
