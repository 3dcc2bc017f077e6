"""Importance weights: they correct the loss for samples that an older policy generated.

A token was sampled by pi_b (the behaviour policy, with the probability that the engine reported). The training step
starts from pi_p (the proximal policy). Decoupled PPO (AReaL, arXiv 2505.24298, section 5.2; after arXiv 2110.00641)
clips around pi_p, and multiplies each token's loss by one of these weights:

    token                 w_t = pi_p(t) / pi_b(t)
    sequence              w   = prod_t pi_p(t) / pi_b(t)              the exact weight of a whole sequence
    sequence_geometric    w   = (prod_t pi_p(t) / pi_b(t))^(1/n)      its variance does not grow with the length n

Products run over the n tokens of a sequence that the loss sees. The variance of the weight is bounded in one of two
ways:

    truncated   w <- min(w, cap)                    truncated importance sampling (Espeholt et al., arXiv 1802.01561)
    masked      w <- w if low <= w <= high else 0   IcePop (Ring-1T, arXiv 2510.18855, section 2.3)

Truncation keeps every token and is biased. Masking removes a token or sequence that the proximal policy would hardly
have sampled, or would have sampled far more often. A masked token still counts in the loss's normaliser.
*Assumption*: both log-probabilities are of the sampling distribution, temperature included. No gradient passes through
the weights.

Shapes: B rows, T completion columns.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import torch

from trainer.learning.losses.log_ratio import bounded_ratio


class Correction(StrEnum):
    """How the variance of importance weights is bounded.

    `none` uses no weights. It is coupled PPO, which clips around the behaviour policy; the job's bound on staleness
    must then be 0.
    """

    NONE = "none"
    TRUNCATED = "truncated"
    MASKED = "masked"


class Level(StrEnum):
    """Unit whose probability ratio is the weight: a token, a sequence, or a sequence's geometric mean per token."""

    TOKEN = "token"
    SEQUENCE = "sequence"
    SEQUENCE_GEOMETRIC = "sequence_geometric"


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Settings of the importance weights.

    `cap` is the largest weight with `truncated`. `low` and `high` are the range of weights that `masked` keeps. All
    three are ratios of probabilities.
    """

    correction: Correction = Correction.TRUNCATED
    level: Level = Level.TOKEN
    cap: float = 2.0
    low: float = 0.5
    high: float = 5.0


def importance_weights(
    proximal_BT: torch.Tensor, behaviour_BT: torch.Tensor, mask_BT: torch.Tensor, importance: Importance
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight of each token (BT), and where a weight was truncated or masked (BT, bool).

    Values outside the mask have no effect on the weights inside it, if they are finite.
    """
    weight_BT = torch.exp(log_weights(proximal_BT, behaviour_BT, mask_BT, importance.level))  # may be infinite
    match importance.correction:
        case Correction.NONE:
            return torch.ones_like(weight_BT), torch.zeros_like(mask_BT)
        case Correction.TRUNCATED:
            return weight_BT.clamp(max=importance.cap), weight_BT > importance.cap
        case Correction.MASKED:
            outside_BT = (weight_BT < importance.low) | (weight_BT > importance.high)
            return weight_BT.masked_fill(outside_BT, 0.0), outside_BT
        case _:
            assert_never(importance.correction)


def log_weights(
    proximal_BT: torch.Tensor, behaviour_BT: torch.Tensor, mask_BT: torch.Tensor, level: Level
) -> torch.Tensor:
    """Return the logarithm of each token's weight before it is bounded, BT.

    It is that of the token's ratio, or the sum or the mean over the sampled tokens of the row, repeated in each column.
    """
    log_BT = ((proximal_BT - behaviour_BT) * mask_BT).detach()
    match level:
        case Level.TOKEN:
            return log_BT
        case Level.SEQUENCE:
            return log_BT.sum(1, keepdim=True).expand_as(log_BT)
        case Level.SEQUENCE_GEOMETRIC:
            return (log_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)).expand_as(log_BT)
        case _:
            assert_never(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpread:
    """How unequal the importance weights of a step are.

    `largest` is the largest weight before it is bounded, at most e^20 (log_ratio.py), and 1 without a correction.
    `effective_share` is the effective sample size of the bounded weights over the number of tokens, (sum w)^2 / (n sum
    w^2) with n tokens: 1 if all weights are equal, 1/n if one of them outweighs all others, 0 if all are masked.
    """

    largest: float
    effective_share: float


def spread_of_weights(
    proximal_BT: torch.Tensor, behaviour_BT: torch.Tensor, mask_BT: torch.Tensor, importance: Importance
) -> WeightSpread:
    """Return the spread of the weights of all tokens that the loss sees; there is at least one.

    Padding may hold anything. The figures are computed on the tensors' device, and read from there at once.
    """
    hidden_BT = ~mask_BT
    logs = (proximal_BT.masked_fill(hidden_BT, 0.0), behaviour_BT.masked_fill(hidden_BT, 0.0), mask_BT)
    weight_BT = importance_weights(*logs, importance)[0].masked_fill(hidden_BT, 0.0).double()
    largest = torch.ones((), dtype=torch.float64, device=mask_BT.device)
    if importance.correction is not Correction.NONE:
        log_BT = log_weights(*logs, importance.level).masked_fill(hidden_BT, -torch.inf)
        largest = bounded_ratio(log_BT).max().double()
    found = torch.stack([largest, weight_BT.sum(), (weight_BT**2).sum(), mask_BT.sum().double()])
    largest_weight, total, squares, num_tokens = found.tolist()
    return WeightSpread(largest=largest_weight, effective_share=total**2 / (num_tokens * squares) if squares else 0.0)
