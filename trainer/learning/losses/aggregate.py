"""From what each token costs to one number, the same however the step is cut into micro-batches or over processes.

    token_mean       1/N   sum_i sum_t l_it            N tokens of the step (DAPO, arXiv 2503.14476, equation 8)
    sequence_mean    1/S   sum_i 1/n_i sum_t l_it      S sequences of n_i tokens (GRPO, arXiv 2402.03300, equation 3)
    constant         1/(S C) sum_i sum_t l_it          C a constant: the longest completion (Dr. GRPO, arXiv 2503.20783)

N, S and n_i count what the loss sees in everything that one optimizer step trains on, in all processes, *before*
importance weights reject anything: a mean over what is left would let a single surviving token speak for the batch. A
sequence mean gives the tokens of long answers less weight; the other two do not.

Shapes: B rows, T completion columns.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import torch


class Aggregation(StrEnum):
    """Names of the three means above."""

    TOKEN_MEAN = "token_mean"
    SEQUENCE_MEAN = "sequence_mean"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Tokens that the loss sees, and sequences, of one optimizer step: all micro-batches, all processes."""

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
    """This micro-batch's share of the mean: the shares add up. `constant_tokens` is C, for `constant` alone.

    Values outside the mask do not matter if they are finite. Raises: ValueError for a step without tokens.
    """
    if counts.num_tokens < 1 or counts.num_sequences < 1:
        raise ValueError(f"the step has {counts.num_tokens} tokens in {counts.num_sequences} sequences: no mean exists")
    shown_BT = values_BT * mask_BT
    match aggregation:
        case Aggregation.TOKEN_MEAN:
            return shown_BT.sum() / counts.num_tokens
        case Aggregation.SEQUENCE_MEAN:
            return (shown_BT.sum(1) / mask_BT.sum(1).clamp(min=1)).sum() / counts.num_sequences
        case Aggregation.CONSTANT:
            return shown_BT.sum() / (counts.num_sequences * constant_tokens)
        case _:
            assert_never(aggregation)
