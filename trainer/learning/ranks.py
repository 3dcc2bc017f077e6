"""The processes (ranks) that share a training step by data parallelism.

Every rank gets the same batch, and computes from all of it what is cheap: the order of rows, advantages and counts. It
runs forward and backward passes for its own rows only (`Ranks.mine`). FSDP2 sums gradients over ranks within the
backward pass, or the update sums them after its passes if each rank has the whole model. Other results are combined by
a sum over ranks too: tensors that are zero in the rows of other ranks, and figures. So all ranks hold the same numbers
bit for bit, and take the same decisions. Only whole copies of weights on unlike processors may differ by the rounding
of the optimizer; those of rank 0 are published. A single process sends nothing.

Each forward and backward pass of a model that is divided among ranks is a collective. So all ranks of a copy make the
same number of passes in the same order: a rank whose rows are used up gets empty micro-batches
(trainer/learning/micro_batches.py), and runs a pass of which the loss sees nothing.

Before any rank applies an update, all of them vote whether its gradient is finite (`agree`). A rank that has failed in
another way does not vote, and then no rank applies the update.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from periplus.errors import NonFiniteLoss

Vote = Callable[[NonFiniteLoss | None], None]
"""A collective that is called with what this rank found wrong, or None. It returns on all ranks or raises on all."""


def decide_alone(failure: NonFiniteLoss | None) -> None:
    """Raise what was found wrong: the vote of a single process."""
    if failure is not None:
        raise failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Position of this process among the `size` processes that share a step.

    `group` is a torch.distributed process group; None means the default one. It is not used if `size` is 1.
    `agree` is the vote of all ranks before an update is applied. `shares` are the fractions of the rows that the ranks
    compute, in their order, the same on all of them; empty for equal ones. `shards` ranks, one after the other, divide
    one copy of the model; None stands for all.
    """

    rank: int = 0
    size: int = 1
    group: Any = None
    agree: Vote = decide_alone
    shares: tuple[float, ...] = ()
    shards: int | None = None

    @property
    def of_copy(self) -> range:
        """Ranks that divide one copy of the model, this one among them."""
        shards = self.shards or self.size
        first = self.rank - self.rank % shards
        return range(first, first + shards)

    def mine(self, rows: Sequence[int]) -> Sequence[int]:
        """Return those of the rows that this rank computes."""
        if not self.shares:
            return rows[self.rank :: self.size]
        # Each row goes to the rank that lacks most of its share of the rows so far.
        given, own = [0] * self.size, []
        for number, row in enumerate(rows, 1):
            rank = max(range(self.size), key=lambda each: (self.shares[each] * number - given[each], -each))
            given[rank] += 1
            if rank == self.rank:
                own.append(row)
        return own

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace the tensor's content in place by its sum over all ranks, and return the tensor."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor, group=self.group)
        return tensor
