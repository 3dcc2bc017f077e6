"""The vote of all ranks before an update is applied: all of them apply it, or none does.

Each rank votes once for each update, after it has computed its gradient: READY, or NON_FINITE if the loss or the
gradient is not finite. If all are ready, each rank applies the update, which needs no further collective.

A rank that runs out of memory, raises another error or is killed does not vote, and leaves. Its connections close, so
the other ranks' collectives fail, or their vote does. Then no rank applies the update. A rank that hangs makes the vote
fail after the time limit of its process group.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist

from periplus.errors import NonFiniteLoss, RankLost
from trainer.learning.ranks import Vote


class Ballot(IntEnum):
    """What one rank says of the gradient of an update."""

    READY = 0
    NON_FINITE = 1


def vote_of(group: Any) -> Vote:
    """Return the vote of the ranks of a process group, which must be able to send host memory.

    The vote raises NonFiniteLoss on all ranks if it is called with one on any rank, and RankLost if a rank does not
    vote.
    """

    def agree(failure: NonFiniteLoss | None) -> None:
        ballots = _exchanged(group, Ballot.READY if failure is None else Ballot.NON_FINITE)
        if failure is not None:
            raise failure
        if against := refusing(ballots):
            raise NonFiniteLoss(
                f"rank {against[0]} of {len(ballots)} found a loss or gradient that is not finite: the step was not "
                "applied; lower the learning rate or the clip range, and check the rewards"
            )

    return agree


def refusing(ballots: Sequence[Ballot]) -> list[int]:
    """Return the ranks that voted against an update, given the ballots of all ranks in order."""
    return [rank for rank, ballot in enumerate(ballots) if ballot is not Ballot.READY]


def _exchanged(group: Any, mine: Ballot) -> list[Ballot]:
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    try:
        dist.all_gather(found, torch.tensor([int(mine)]), group=group)
    except RuntimeError as error:  # torch has no class of its own for a lost connection or a timeout of gloo
        raise RankLost(
            f"not all of the trainer's {len(found)} ranks voted on an update, so it was not applied; resume the job "
            "from its last checkpoint"
        ) from error
    return [Ballot(int(ballot)) for ballot in found]
