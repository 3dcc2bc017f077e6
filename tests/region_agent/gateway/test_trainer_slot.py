"""Which trainer a gateway follows, and who is fenced."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.errors import Conflict, Fenced
from region_agent.gateway.trainer_slot import FollowedTrainer, TrainerSlot


def test_only_a_newer_fork_takes_over_and_the_replaced_trainer_is_told() -> None:
    slot = TrainerSlot("job-1")
    old = slot.claim(1, "peer")
    for fork, refusal in ((0, Fenced), (1, Conflict)):
        with pytest.raises(
            Conflict, match=f"already has a trainer of fork 1 .* the one of fork {fork} is refused"
        ) as refused:
            slot.claim(fork, "peer")
        assert refused.type is refusal
    assert slot.trainer is old
    assert not old.replaced.is_set()
    new = slot.claim(2, "peer")
    assert slot.trainer is new
    assert old.replaced.is_set()


def test_a_slot_that_was_released_is_free_for_any_fork_and_no_longer_for_a_first_trainer() -> None:
    slot = TrainerSlot("job-1")
    first = slot.claim(3, "peer")
    assert first.is_first
    slot.release(first)
    assert slot.trainer is None
    assert not first.replaced.is_set()
    again = slot.claim(0, "peer")
    assert not again.is_first


def test_a_replaced_trainer_cannot_release_its_successor() -> None:
    slot = TrainerSlot("job-1")
    old, new = slot.claim(0, "peer"), slot.claim(1, "peer")
    slot.release(old)
    assert slot.trainer is new


def test_publications_of_an_older_fork_are_fenced_while_a_newer_trainer_is_followed() -> None:
    slot = TrainerSlot("job-1")
    slot.check_publisher(0, "peer")
    trainer = slot.claim(2, "peer")
    slot.check_publisher(2, "peer")
    slot.check_publisher(3, "peer")
    with pytest.raises(Fenced, match="a trainer of fork 2 took job job-1 over from fork 1; stop"):
        slot.check_publisher(1, "peer")
    slot.release(trainer)
    slot.check_publisher(1, "peer")


def test_who_waits_to_be_replaced_is_fenced_by_the_fork_that_took_over() -> None:
    async def scene() -> None:
        slot = TrainerSlot("job-1")
        old = slot.claim(0, "peer")
        waiting = asyncio.create_task(slot.until_replaced(old))
        await asyncio.sleep(0)
        assert not waiting.done()
        slot.claim(4, "peer")
        with pytest.raises(Fenced, match="fork 4 took job job-1 over from fork 0"):
            await waiting

    asyncio.run(scene())


@given(st.lists(st.one_of(st.integers(0, 4), st.none()), max_size=30))
def test_one_trainer_is_followed_and_forks_rise_until_it_leaves(claims: list[int | None]) -> None:
    """Numbers are claims of a fork; None is the end of the oldest trainer that has not left."""
    slot = TrainerSlot("job-1")
    present: list[FollowedTrainer] = []
    for fork in claims:
        before = slot.trainer
        if fork is None:
            if present:
                slot.release(left := present.pop(0))
                assert slot.trainer is (None if before is left else before)
            continue
        if before is not None and before.fork >= fork:
            with pytest.raises(Conflict):
                slot.claim(fork, "peer")
            assert slot.trainer is before
            continue
        present.append(slot.claim(fork, "peer"))
        assert slot.trainer is present[-1]
        assert [each.replaced.is_set() for each in present] == [True] * (len(present) - 1) + [False]
