"""Exponentials of log-probability ratios that stay finite in float32, whatever the log-probabilities are.

    ratio(x) = exp(min(x, 20))              x = log pi_new - log pi_old of a token, or of a sequence
    k3(x)    = ratio(x) - 1 - min(x, 20)

A behaviour log-probability of -200 is a legal number, and exp(200) is none in float32. At 20 nats the new policy finds
a token 4.9e8 times as likely as the old one did: no policy that both steps and samples came from moves so far, so a
ratio beyond it says that a log-probability is wrong, and not how large a weight should be. Up to 20 nats the results
are those of the bare formula, bit for bit; towards minus infinity the ratio goes to 0 by itself.

Beyond the limit a ratio is constant and passes no gradient: a token whose log-probabilities are wrong teaches nothing.
(A KL penalty must pull a policy back from however far, and keeps its gradient: see `trainer.learning.losses.kl`.)
"""

import torch

LOG_RATIO_LIMIT = 20.0
"""Nats. float32 overflows at 88. TRL and verl clamp log-ratios of KL estimates at the same value."""


def bounded_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """The ratio of probabilities whose logarithm is given, at most exp(20)."""
    return torch.exp(log_ratio.clamp(max=LOG_RATIO_LIMIT))


def bounded_k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Estimate KL(old || new) of each token by k3(x), from x = log pi_new - log pi_old of tokens sampled by the old."""
    bounded = log_ratio.clamp(max=LOG_RATIO_LIMIT)
    return bounded.exp() - 1.0 - bounded
