"""Cuts the rows of an update into micro-batches, each one forward and backward pass.

A micro-batch is bounded by its rows and by its tokens. Rows are first sorted by length, so that rows of a micro-batch
are about as long as each other, and attention pads little. The results of an update do not depend on the cut, but for
the rounding of float32 sums. A row that alone is longer than the bound on tokens makes a micro-batch of its own.

Ranks that share an update by FSDP must run the same number of passes, or they wait for each other forever. So a rank
with fewer micro-batches than another gets empty ones, which compute a gradient of zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.learning.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimits:
    """Largest size of a micro-batch in rows, and in tokens of prompts and completions together."""

    rows: int
    tokens: int


def micro_batches(
    rows: Sequence[int], lengths: Sequence[int], limits: MicroBatchLimits, *, at_least: int = 0
) -> list[tuple[int, ...]]:
    """Return the rows of each micro-batch, longest rows first; each row is in exactly one of them.

    `lengths[row]` is the number of tokens of a row of the batch. Rows of equal length keep their order. If there are
    fewer than `at_least` micro-batches, empty ones follow.
    """
    parts: list[tuple[int, ...]] = []
    part: list[int] = []
    num_tokens = 0
    for row in sorted(rows, key=lambda row: -lengths[row]):
        if part and (len(part) == limits.rows or num_tokens + lengths[row] > limits.tokens):
            parts.append(tuple(part))
            part, num_tokens = [], 0
        part.append(row)
        num_tokens += lengths[row]
    if part:
        parts.append(tuple(part))
    return parts + [()] * (at_least - len(parts))


def micro_batches_of_rank(
    rows: Sequence[int], lengths: Sequence[int], limits: MicroBatchLimits, ranks: Ranks
) -> list[tuple[int, ...]]:
    """Return this rank's micro-batches of the rows of all ranks; their number is the same on every rank.

    Every rank knows the lengths of all rows, so each computes the common number by itself.
    """
    shares = [replace(ranks, rank=rank).mine(rows) for rank in range(ranks.size)]
    at_least = max(len(micro_batches(share, lengths, limits)) for share in shares)
    return micro_batches(shares[ranks.rank], lengths, limits, at_least=at_least)
