"""Keyed sampling: a token is a function of its logits and of the key (seed, version, group, sample, position).

The key gives one uniform number for each token (periplus/values/keyed_draws.py), and inversion of the cumulative
distribution turns it into the token. What a row may draw (top_k, top_p) is a function of its own logits too.

Shapes: R rows of a batch, V vocabulary.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Nucleus:
    """Which tokens each row draws from: the `top_k_R` likeliest, 0 for all, and of these the nucleus of `top_p_R`.

    *Shapes*: top_k_R int64 from 0; top_p_R float64 above 0, at most 1.
    """

    top_k_R: torch.Tensor
    top_p_R: torch.Tensor


def choose(
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
    greedy_R: torch.Tensor,
    uniform_R: torch.Tensor,
    nucleus: Nucleus | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's token, and its log-probability under the distribution that it was drawn from.

    Greedy rows take the largest logit and report its log-probability at temperature 1; their `nucleus` must be all
    tokens. None is all tokens for every row.

    *Shapes*: logits_RV float; temperature_R float; greedy_R bool; uniform_R float64 in [0, 1). Returns tokens R (int64)
    and logprobs R (float32).
    """
    # Greedy rows use temperature 1, so that an ignored temperature of 0 cannot divide.
    scale_R = torch.where(greedy_R, torch.ones_like(temperature_R), temperature_R)
    scaled_RV = logits_RV.float() / scale_R[:, None]
    if nucleus is not None:
        scaled_RV = scaled_RV.masked_fill(~drawable(scaled_RV, nucleus), -torch.inf)
    logprobs_RV = torch.log_softmax(scaled_RV, dim=-1)
    # Inversion in float64: the token is the number of cumulative sums up to the uniform number. That is scaled by
    # the total, because rounding may keep the total from being exactly 1.
    cdf_RV = logprobs_RV.double().exp().cumsum(dim=-1)
    drawn_R = (cdf_RV <= uniform_R[:, None] * cdf_RV[:, -1:]).sum(dim=-1)
    tokens_R = torch.where(greedy_R, logits_RV.argmax(dim=-1), drawn_R)
    return tokens_R, logprobs_RV.gather(1, tokens_R[:, None])[:, 0]


def drawable(logits_RV: torch.Tensor, nucleus: Nucleus) -> torch.Tensor:
    """Return which tokens each row may draw.

    First come the top_k likeliest tokens, and those that are as likely as the last of them. Of these, a token stays if
    all likelier ones together, after division by the sum of what top_k has left, have less than top_p. Among equally
    likely tokens, those with lower ids come first.

    *Shapes*: logits_RV float32, after division by the temperature; returns bool R x V. *Source*: top_p is nucleus
    sampling (Holtzman et al., arXiv 1904.09751).
    """
    size = logits_RV.shape[1]
    sorted_RV, order_RV = logits_RV.sort(dim=-1, descending=True, stable=True)
    # top_k: the logit at place k - 1 is the lowest that stays.
    lowest_R1 = sorted_RV.gather(1, (nucleus.top_k_R.clamp(1, size) - 1)[:, None])
    kept_RV = (sorted_RV >= lowest_R1) | (nucleus.top_k_R == 0)[:, None]
    # top_p: in float64, so that the sum over a large vocabulary is exact enough. A row of 1 keeps all, whatever the sum
    # is rounded to, and every row keeps its likeliest token.
    weights_RV = sorted_RV.double().masked_fill(~kept_RV, -torch.inf).softmax(dim=-1)
    likelier_RV = weights_RV.cumsum(dim=-1) - weights_RV
    top_p_R1 = nucleus.top_p_R[:, None]
    kept_RV &= (likelier_RV < top_p_R1) | (top_p_R1 == 1)
    kept_RV[:, 0] = True
    # Back to the order of ids.
    return torch.zeros_like(kept_RV).scatter_(1, order_RV, kept_RV)
