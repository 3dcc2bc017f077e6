"""The vote of real ranks before an update."""

from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from periplus.errors import NonFiniteLoss, RankLost
from tests.support.trainer.gloo import run_on_ranks
from trainer.distributed.verdict import Ballot, refusing, vote_of

pytestmark = pytest.mark.processes


def voted(against: tuple[int, ...]) -> str:
    agree, rank = vote_of(dist.new_group(backend="gloo")), dist.get_rank()
    agree(None)
    try:
        agree(NonFiniteLoss(f"rank {rank} found NaN") if rank in against else None)
    except NonFiniteLoss as error:
        agree(None)  # the next update has a vote of its own
        return str(error).partition(":")[0]
    return "applied"


def test_one_rank_that_found_something_wrong_keeps_all_from_applying() -> None:
    others = "rank 1 of 3 found a loss or gradient that is not finite"
    assert run_on_ranks(voted, 3, (1,)) == [others, "rank 1 found NaN", others]
    assert run_on_ranks(voted, 3, ()) == ["applied"] * 3
    assert run_on_ranks(voted, 2, (0, 1)) == ["rank 0 found NaN", "rank 1 found NaN"]


def without_rank_1() -> str:
    group = dist.new_group(backend="gloo")
    dist.barrier()  # no rank leaves before all are in the group
    # The vote alone is short: on a busy machine the group takes longer to form.
    distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    agree = vote_of(group)
    if dist.get_rank() == 1:
        return "did not vote"
    try:
        agree(None)
    except RankLost as error:
        return str(error)
    return "applied"


def test_no_rank_applies_an_update_on_which_one_did_not_vote() -> None:
    first, silent, last = run_on_ranks(without_rank_1, 3)
    assert silent == "did not vote"
    assert first.startswith("not all of the trainer's 3 ranks voted on an update, so it was not applied")
    assert last == first


def test_ballots_against_are_named_in_order() -> None:
    assert refusing([Ballot.READY, Ballot.NON_FINITE, Ballot.READY, Ballot.NON_FINITE]) == [1, 3]
    assert refusing([Ballot.READY]) == []
