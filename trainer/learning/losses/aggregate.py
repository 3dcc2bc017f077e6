"""Reduces the loss of each token to one number, independently of micro-batches and of the number of processes.

With l_it the loss of token t of sample i:

    token_mean       1/N   sum_i sum_t l_it            N tokens of the update (DAPO, arXiv 2503.14476, equation 8)
    sequence_mean    1/S   sum_i 1/n_i sum_t l_it      S sequences of n_i tokens (GRPO, arXiv 2402.03300, equation 3)
    constant         1/(S C) sum_i sum_t l_it          C a constant: the longest completion (Dr. GRPO, arXiv 2503.20783)

N, S and n_i count the tokens and sequences that the loss sees in one optimizer update, in all micro-batches and
processes. They are counted *before* importance weights reject anything: in a mean over the rest, a single remaining
token could stand for the whole batch. A sequence mean gives the tokens of long answers less weight; the other two do
not.

Shapes: B rows, T completion columns.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import torch


class Aggregation(StrEnum):
    """Name of a way to average token losses: over tokens, over sequences, or by a constant. The module has formulas."""

    TOKEN_MEAN = "token_mean"
    SEQUENCE_MEAN = "sequence_mean"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Numbers of tokens that the loss sees, and of sequences, in one optimizer update over all processes."""

    num_tokens: int
    num_sequences: int


def aggregate(
    values_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    aggregation: Aggregation,
    counts: StepCounts,
    *,
    constant_tokens: float,
) -> torch.Tensor:
    """Return this micro-batch's share of the mean, a scalar. The shares of all micro-batches add up to the mean.

    `counts` are those of the whole update. `constant_tokens` is C, and only `constant` reads it. Values outside the
    mask have no effect if they are finite. Raises: ValueError if the update has no tokens or no sequences.
    """
    if counts.num_tokens < 1 or counts.num_sequences < 1:
        raise ValueError(f"the step has {counts.num_tokens} tokens in {counts.num_sequences} sequences: no mean exists")
    shown_BT = values_BT * mask_BT
    match aggregation:
        case Aggregation.TOKEN_MEAN:
            return shown_BT.sum() / counts.num_tokens
        case Aggregation.SEQUENCE_MEAN:
            # A row without tokens that the loss sees has the sum 0, and is divided by 1.
            return (shown_BT.sum(1) / mask_BT.sum(1).clamp(min=1)).sum() / counts.num_sequences
        case Aggregation.CONSTANT:
            return shown_BT.sum() / (counts.num_sequences * constant_tokens)
        case _:
            assert_never(aggregation)
