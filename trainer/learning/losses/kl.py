"""Estimators of KL(pi || pi_ref) from tokens sampled by pi (joschu.net/blog/kl-approx.html), and where they may stand.

With k = log pi - log pi_ref of a sampled token:

    k1 = k                      unbiased; may be negative
    k2 = k^2 / 2                biased; its *gradient* is in expectation that of the KL
    k3 = exp(-k) - 1 + k        unbiased, never negative, low variance

- *In the reward* (RLHF; RLOO; REINFORCE++): the coefficient times the estimate, without gradient, is taken off each
  token's reward. k1 gives the gradient of the exact penalty.
- *In the loss* (GRPO, arXiv 2402.03300, equation 4, with k3): the coefficient times the estimate is added to the loss,
  after the importance weight, and is differentiated. k1 would be pointless there: its gradient is that of log pi, of
  which the expectation is 0. The gradient of k3 is that of the reversed KL(pi_ref || pi).

k1 and k2 are exact. The exponential of k3 is bounded where k < -20 (log_ratio.py says why 20): its value and its
derivative stay those at -20, so a policy that has gone further is still pulled back, with a finite force.
"""

from enum import StrEnum
from typing import assert_never

import torch

from trainer.learning.losses.log_ratio import LOG_RATIO_LIMIT, bounded_k3


class KlEstimator(StrEnum):
    """The names are those of the note above."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


def kl_estimate(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, estimator: KlEstimator) -> torch.Tensor:
    """The estimate of each token, in nats, shaped like its arguments."""
    k = logprobs_BT - reference_BT
    match estimator:
        case KlEstimator.K1:
            return k
        case KlEstimator.K2:
            return 0.5 * k.square()
        case KlEstimator.K3:
            return bounded_k3(-_held(k))
        case _:
            assert_never(estimator)


def _held(k: torch.Tensor) -> torch.Tensor:
    # The value is clamped, and the gradient passes as if it were not: k - k.detach() is exactly 0.
    return k.detach().clamp(min=-LOG_RATIO_LIMIT) + (k - k.detach())
