"""Tests of a ledger that continues from a checkpoint: a new fork, with group numbers and results of the earlier one."""

from typing import Any

import pytest

from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import PolicyRun, Purpose
from tests.support.ledger.checked import MAX_TOKENS, CheckedLedger, item_of, leases_of, of_kind
from trainer.ledger.values import (
    Arrival,
    BatchReady,
    BatchWanted,
    GroupDropped,
    JudgedResult,
    Replayed,
    Result,
    StepDone,
)

PARENT = Policy(0, 2)
LINEAGE = Lineage(1, (PARENT,))


def restored(**changed: Any) -> CheckedLedger:
    """Return a ledger restored from version 2, where groups 3 and 5 of the numbers below 6 were open."""
    defaults: dict[str, Any] = {"group_size": 1, "bound": 1, "open_groups": (3, 5), "next_group": 6}
    return CheckedLedger(lineage=LINEAGE, start=2, **{**defaults, **changed})


def stored(group: int, policy: Policy = PARENT, sample: int = 0, **changed: Any) -> Result:
    fields: dict[str, Any] = {
        "lease_id": 1,
        "group": group,
        "sample": sample,
        "item": item_of(group),
        "purpose": Purpose.TRAIN,
        "worker_id": "gone",
        "policies": (PolicyRun(policy, 2),),
        "num_tokens": 2,
        "outcome": 0.0,
    }
    return Result(**{**fields, **changed})


def replay(ledger: CheckedLedger, *results: Result) -> list[Arrival]:
    return [judged.arrival for judged in of_kind(ledger.tell(Replayed(results)), JudgedResult)]


def test_open_groups_of_the_checkpoint_are_opened_again_before_new_ones_and_start_in_the_new_fork() -> None:
    ledger = restored(bound=2)
    leases = ledger.worker("a", 9)
    assert [lease.group for lease in leases] == [3, 5, 6, 7]
    assert {lease.start_at for lease in leases[:3]} == {Policy(1, 2)}
    assert [lease.item for lease in leases] == [item_of(group) for group in (3, 5, 6, 7)]


def test_a_checkpoint_holds_what_is_open_and_what_was_to_be_opened_again() -> None:
    ledger = restored()
    assert (ledger.machine.open_groups, ledger.machine.next_group) == ((3, 5), 6)
    ledger.worker("a", 9)
    assert (ledger.machine.open_groups, ledger.machine.next_group) == ((3, 5, 6), 7)


def test_a_checkpoint_within_a_step_counts_what_is_trained_as_not_consumed() -> None:
    ledger = restored()
    first, *_ = ledger.worker("a", 9)
    ledger.deliver(first)
    ledger.tell(BatchWanted())
    assert 3 in ledger.machine.open_groups
    ledger.tell(StepDone())
    assert 3 not in ledger.machine.open_groups


def test_results_that_were_in_store_are_taken_in_and_trained_on() -> None:
    ledger = restored()
    assert replay(ledger, stored(3)) == [Arrival.ACCEPTED]
    (batch,) = of_kind(ledger.tell(BatchWanted()), BatchReady)
    assert (batch.policy, [x.group for x in batch.results]) == (Policy(1, 2), [3])


def test_what_is_missing_of_a_replayed_group_is_leased() -> None:
    ledger = restored(group_size=2)
    assert replay(ledger, stored(3, sample=1)) == [Arrival.ACCEPTED]
    assert [(x.group, x.sample) for x in ledger.worker("a", 1)] == [(3, 0)]


def test_groups_that_the_earlier_fork_opened_after_the_checkpoint_are_taken_in_too_and_no_number_is_lost() -> None:
    ledger = restored(bound=3)
    assert replay(ledger, stored(7)) == [Arrival.ACCEPTED]
    assert ledger.machine.open_groups == (3, 5, 6, 7)
    assert [lease.group for lease in ledger.worker("a", 9)] == [3, 5, 6, 8]


@pytest.mark.parametrize(
    ("result", "arrival"),
    [
        (stored(3, Policy(0, 3)), Arrival.DEAD_BRANCH),
        (stored(3, Policy(7, 2)), Arrival.DEAD_BRANCH),
        (stored(3, Policy(0, 0)), Arrival.TOO_OLD),
        (stored(4), Arrival.DUPLICATE),
        (stored(6 + 3 * 1), Arrival.UNKNOWN),
        (stored(10**9), Arrival.UNKNOWN),
        (stored(3, Policy(1, 3)), Arrival.UNKNOWN),
        (stored(3, item=1), Arrival.UNKNOWN),
        (stored(3, sample=1), Arrival.UNKNOWN),
        (stored(3, purpose=Purpose.EVAL), Arrival.UNKNOWN),
        (stored(3, policies=(), num_tokens=0), Arrival.UNKNOWN),
        (stored(3, num_tokens=MAX_TOKENS + 1), Arrival.UNKNOWN),
    ],
)
def test_what_this_history_cannot_use_is_refused_and_opens_nothing(result: Result, arrival: Arrival) -> None:
    ledger = restored()
    assert replay(ledger, result) == [arrival]
    assert not ledger.machine.state.groups
    assert (ledger.machine.open_groups, ledger.machine.next_group) == ((3, 5), 6)


def test_a_result_that_stands_in_the_store_twice_is_taken_once() -> None:
    ledger = restored()
    assert replay(ledger, stored(3), stored(3, lease_id=9)) == [Arrival.ACCEPTED, Arrival.DUPLICATE]
    ledger.train()
    assert replay(ledger, stored(3)) == [Arrival.DUPLICATE]


def test_no_more_is_taken_in_than_the_bound_allows_to_be_consumed() -> None:
    ledger = restored(bound=1)
    old = Policy(0, 1)
    assert replay(ledger, stored(3, old), stored(5, old)) == [Arrival.ACCEPTED, Arrival.TOO_OLD]


def test_no_more_is_taken_in_than_there_is_room_for() -> None:
    ledger = restored(bound=3, group_size=2, intake_tokens=2 * MAX_TOKENS)
    assert replay(ledger, stored(3), stored(5)) == [Arrival.ACCEPTED, Arrival.TOO_OLD]


def test_no_more_is_taken_in_than_the_steps_that_are_left_consume() -> None:
    ledger = restored(bound=3, steps=3)
    assert replay(ledger, stored(3), stored(5)) == [Arrival.ACCEPTED, Arrival.TOO_OLD]


def test_a_replayed_group_may_be_filtered_like_any_other() -> None:
    ledger = restored(filter_uniform=True)
    effects = ledger.tell(Replayed((stored(3),)))
    assert [x.group for x in of_kind(effects, GroupDropped)] == [3]
    assert 3 not in ledger.machine.open_groups


def test_the_caller_can_ask_which_groups_are_worth_replaying() -> None:
    ledger = restored()
    assert [group for group in range(20) if ledger.machine.may_want(group)] == [3, 5, 6, 7, 8]
    ledger.worker("a", 1)
    assert ledger.machine.may_want(3)


def test_a_group_of_an_older_version_than_the_fork_is_leased_from_where_the_fork_begins() -> None:
    ledger = restored(group_size=2, bound=1)
    replay(ledger, stored(3, Policy(0, 1)))
    lease, *_ = ledger.worker("a", 1)
    assert (lease.group, lease.start_at, lease.consume_by_version) == (3, Policy(1, 2), 2)
    assert leases_of(tuple(ledger.effects))[0] == lease
