"""Exponentials of log-probability ratios that stay finite in float32, for all finite log-probabilities.

    ratio(x) = exp(min(x, 20))              x = log pi_new - log pi_old of a token, or of a sequence
    k3(x)    = ratio(x) - 1 - min(x, 20)

A behaviour log-probability of -200 is legal, but exp(200) overflows in float32. At 20 nats a token is 4.9e8 times as
likely under the new policy as under the old one. Policies a few training steps apart do not differ so much, so a larger
ratio means that a log-probability is wrong. Up to 20 nats the results are those of the plain formulas, bit for bit.
Towards minus infinity the ratio goes to 0 by itself.

Beyond the limit the ratio is constant and passes no gradient, so a token with wrong log-probabilities has no effect on
the weights through its ratio. (A KL penalty must pull a policy back from any distance, so it keeps its gradient: see
`trainer.learning.losses.kl`.)
"""

import torch

LOG_RATIO_LIMIT = 20.0
"""Largest log-ratio that is exponentiated, in nats. float32 overflows at 88. TRL and verl clamp the log-ratios of their
KL estimates at the same value."""


def bounded_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the ratio of probabilities with the given logarithm, at most exp(20), in the argument's shape."""
    return torch.exp(log_ratio.clamp(max=LOG_RATIO_LIMIT))


def bounded_k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Estimate KL(old || new) at each token by k3, in nats.

    `log_ratio` is log pi_new - log pi_old of tokens that the old policy sampled. The result has its shape.
    """
    bounded = log_ratio.clamp(max=LOG_RATIO_LIMIT)
    return bounded.exp() - 1.0 - bounded
