"""The processes that share a training step, and the one thing they say to each other: sums.

Every rank is given the same batch and computes all that is cheap from all of it (order, advantages, counts); forward
and backward passes it runs for its own rows only, `rows[rank::size]`. Sums over ranks put together what each computed:
a tensor that is zero where another rank's rows are, or a gradient. So each rank holds the same numbers bit for bit,
takes the same decisions, and applies the same step. Alone, nothing is sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among `size`; `group` is a torch.distributed process group, None for the default one."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def mine(self, rows: Sequence[int]) -> Sequence[int]:
        """The rows that this rank computes."""
        return rows[self.rank :: self.size]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace the tensor's content by its sum over ranks, and return it."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor, group=self.group)
        return tensor
