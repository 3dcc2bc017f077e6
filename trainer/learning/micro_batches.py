"""Cuts the rows of an update into micro-batches, each one forward and backward pass.

A micro-batch is bounded by its rows and by its tokens, of which those of a prompt count once for all of its rows. Rows
with the same prompt stay together, since a pass computes their prompt once (trainer/learning/forward/packing.py). Only
attention has a copy of it for each row, so the tokens with all copies are bounded too.
Prompts are sorted by their longest row, and rows of a prompt by length, so that attention pads little. The results of
an update do not depend on the cut, but for the rounding of float32 sums. A row that alone is longer than the bound on
tokens makes a micro-batch of its own.

Ranks that divide a copy of the model by FSDP must run the same number of passes, or they wait for each other forever.
So a rank with fewer micro-batches than another gets empty ones, which compute a gradient of zeros.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainer.learning.ranks import Ranks

COPIES_FACTOR = 2
"""Tokens of a micro-batch with all copies of prompts, over its bound on tokens. Chosen by hand: attention keeps a fifth
of what a layer keeps, so a pass needs at most a fifth more memory than is estimated."""


SLACKS = (1.0, 1.25, 1.5, 2.0)
"""Rows of a micro-batch over their mean, in the order in which they are tried, where rows are spread over more passes
than they need. Chosen by hand: long rows fill a pass before its share of the rows does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimits:
    """Largest size of a micro-batch in rows, and in tokens of distinct prompts and completions together."""

    rows: int
    tokens: int


class RowSize(NamedTuple):
    """Tokens of a row's prompt and completion. Rows with the same `prompt` number have the same prompt."""

    prompt: int
    num_prompt: int
    num_completion: int

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_completion


def micro_batches(
    rows: Sequence[int], sizes: Sequence[RowSize], limits: MicroBatchLimits, *, at_least: int = 0
) -> list[tuple[int, ...]]:
    """Return the rows of each micro-batch, the prompts with the longest rows first; each row is in exactly one of them.

    `sizes[row]` is the size of a row of the batch. Rows of equal size keep their order. If there are fewer than
    `at_least` micro-batches, empty ones follow.
    """
    longest: dict[int, int] = {}
    for row in rows:
        longest[sizes[row].prompt] = max(longest.get(sizes[row].prompt, 0), sizes[row].num_tokens)
    parts: list[tuple[int, ...]] = []
    part: list[int] = []
    num_tokens = num_copied = 0
    for row in sorted(rows, key=lambda row: (-longest[sizes[row].prompt], sizes[row].prompt, -sizes[row].num_tokens)):
        size = sizes[row]
        shares = bool(part) and sizes[part[-1]].prompt == size.prompt
        added = size.num_completion if shares else size.num_tokens
        is_full = num_tokens + added > limits.tokens or num_copied + size.num_tokens > COPIES_FACTOR * limits.tokens
        if part and (len(part) == limits.rows or is_full):
            parts.append(tuple(part))
            part, num_tokens, num_copied, added = [], 0, 0, size.num_tokens
        part.append(row)
        num_tokens += added
        num_copied += size.num_tokens
    if part:
        parts.append(tuple(part))
    return parts + [()] * (at_least - len(parts))


def micro_batches_of_rank(
    rows: Sequence[int], sizes: Sequence[RowSize], limits: MicroBatchLimits, ranks: Ranks
) -> list[tuple[int, ...]]:
    """Return this rank's micro-batches of the rows of all ranks. Ranks of one copy have as many, and at least one.

    Every rank knows the sizes of all rows, so each computes the common number by itself. A rank with fewer rows spreads
    them over as many passes: ranks meet in each pass, and one that has most of its rows in a few would hold up these.
    """
    shares = {rank: replace(ranks, rank=rank).mine(rows) for rank in ranks.of_copy}
    num = max(min(1, len(rows)), *(len(micro_batches(share, sizes, limits)) for share in shares.values()))
    own = shares[ranks.rank]
    for slack in SLACKS:
        most = min(limits.rows, math.ceil(slack * len(own) / max(1, num)))
        parts = micro_batches(own, sizes, replace(limits, rows=max(1, most)), at_least=num)
        if len(parts) == num:
            return parts
    return micro_batches(own, sizes, limits, at_least=num)
