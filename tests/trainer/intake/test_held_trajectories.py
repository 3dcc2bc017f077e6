"""Trajectories whose results the ledger is told of without their tokens, and their way back by handle."""

from dataclasses import replace

import pytest

from periplus.spool.format import Position
from tests.periplus.values.test_trajectory import GOOD
from trainer.intake.committed import kept
from trainer.intake.held_trajectories import HeldTrajectories

FRAME = Position(epoch=1, sequence=0)


def test_a_result_says_all_that_the_ledger_judges_by() -> None:
    (one,) = kept(FRAME, (GOOD,))
    result = HeldTrajectories().hold(one)
    named = (result.lease_id, result.group, result.sample, result.item, result.purpose, result.worker_id)
    assert named == (GOOD.lease_id, GOOD.group, GOOD.sample, GOOD.item, GOOD.purpose, GOOD.worker_id)
    assert (result.policies, result.num_tokens, result.outcome) == (
        GOOD.policies,
        len(GOOD.completion_ids),
        GOOD.reward,
    )


def test_two_equal_trajectories_have_two_handles_so_that_a_duplicate_does_not_take_the_first_ones_place() -> None:
    first, again = kept(FRAME, (GOOD, GOOD))
    held = HeldTrajectories()
    accepted, duplicate = held.hold(first), held.hold(again)
    assert held.take(duplicate) is again
    assert held.look_up(accepted) is first
    assert held.take(accepted) is first
    assert len(held) == 0


def test_a_trajectory_is_handed_back_once() -> None:
    held = HeldTrajectories()
    result = held.hold(kept(FRAME, (replace(GOOD, sample=1),))[0])
    held.take(result)
    with pytest.raises(KeyError):
        held.take(result)
