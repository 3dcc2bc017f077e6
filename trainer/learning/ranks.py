"""The processes (ranks) that share a training step by data parallelism. Sums over ranks are all that they exchange.

Every rank gets the same batch, and computes from all of it what is cheap: the order of rows, advantages and counts. It
runs forward and backward passes for its own rows only, `rows[rank::size]`. A sum over ranks then combines the results:
gradients, or tensors that are zero in the rows of other ranks. So all ranks hold the same numbers bit for bit, take the
same decisions, and apply the same update. A single process sends nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Position of this process among the `size` processes that share a step.

    `group` is a torch.distributed process group; None means the default one. It is not used if `size` is 1.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    def mine(self, rows: Sequence[int]) -> Sequence[int]:
        """Return those of the rows that this rank computes."""
        return rows[self.rank :: self.size]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace the tensor's content in place by its sum over all ranks, and return the tensor."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor, group=self.group)
        return tensor
