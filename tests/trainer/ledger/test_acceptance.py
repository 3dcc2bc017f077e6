"""Tests of which results are accepted: the first valid one of each sample, if it can be consumed in time."""

from typing import Any

import pytest

from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import PolicyRun, Purpose
from tests.support.ledger.checked import HOLD_S, MAX_TOKENS, CheckedLedger, answer, leases_of, of_kind
from trainer.ledger.values import (
    EVAL_GROUPS_START,
    Arrival,
    BatchWanted,
    EvalAsked,
    GroupDropped,
    LeasesStarted,
    ResultArrived,
)

HERE = Policy(0, 0)


def test_the_first_valid_result_of_a_sample_wins_and_later_ones_are_duplicates_for_ever() -> None:
    ledger = CheckedLedger(group_size=1)
    first, _ = ledger.worker("a", 2)
    ledger.deliver(first)
    assert ledger.admit(answer(first, HERE)) is Arrival.DUPLICATE
    assert ledger.admit(answer(first, HERE, lease_id=99)) is Arrival.DUPLICATE
    ledger.train()
    assert ledger.admit(answer(first, HERE)) is Arrival.DUPLICATE


@pytest.mark.parametrize(
    ("changed", "arrival"),
    [
        ({"item": 1}, Arrival.UNFIT),
        ({"purpose": Purpose.EVAL}, Arrival.UNFIT),
        ({"policies": (), "num_tokens": 0}, Arrival.UNFIT),
        ({"num_tokens": 0}, Arrival.UNFIT),
        ({"num_tokens": MAX_TOKENS + 1}, Arrival.UNFIT),
        ({"policies": (PolicyRun(Policy(0, 1), 3),)}, Arrival.UNFIT),
        ({"policies": (PolicyRun(HERE, 1), PolicyRun(Policy(0, 1), 2))}, Arrival.UNFIT),
        ({"policies": (PolicyRun(Policy(1, 0), 3),)}, Arrival.DEAD_BRANCH),
        ({"policies": (PolicyRun(HERE, 1), PolicyRun(Policy(1, 0), 2))}, Arrival.DEAD_BRANCH),
    ],
)
def test_what_is_not_what_was_leased_is_refused_and_leased_again(changed: dict[str, Any], arrival: Arrival) -> None:
    ledger = CheckedLedger(group_size=1, steps=1)
    (lease,) = ledger.worker("a", 1)
    assert ledger.admit(answer(lease, HERE, **changed)) is arrival
    again = ledger.granted()[-1]
    assert (again.group, again.sample) == (lease.group, lease.sample)
    assert again.lease_id != lease.lease_id


def test_a_refused_result_of_another_worker_ends_no_lease() -> None:
    ledger = CheckedLedger(group_size=1, steps=1)
    (lease,) = ledger.worker("a", 1)
    assert ledger.admit(answer(lease, HERE, "liar", item=1)) is Arrival.UNFIT
    assert list(ledger.machine.state.held) == [lease.lease_id]


@pytest.mark.parametrize(
    "changed", [{"group": 99}, {"group": -1}, {"sample": 2}, {"sample": -1}, {"group": EVAL_GROUPS_START}]
)
def test_what_was_never_leased_is_unknown(changed: dict[str, Any]) -> None:
    ledger = CheckedLedger()
    lease, *_ = ledger.worker("a", 2)
    assert ledger.admit(answer(lease, HERE, **changed)) is Arrival.UNKNOWN
    assert lease.lease_id in ledger.machine.state.held


def test_samples_that_a_finished_group_never_had_are_unknown() -> None:
    ledger = CheckedLedger(group_size=1)
    first, _ = ledger.worker("a", 2)
    ledger.deliver(first)
    ledger.train()
    assert ledger.admit(answer(first, HERE, sample=1)) is Arrival.UNKNOWN


def test_a_result_is_taken_from_whoever_has_it_even_before_its_sample_was_leased() -> None:
    ledger = CheckedLedger(group_size=3, steps=1)
    first, _ = ledger.worker("a", 2)
    ledger.deliver(first, worker_id="stranger", sample=2, lease_id=0)
    assert [(x.group, x.sample) for x in leases_of(ledger.deliver(first))] == []


def test_a_group_may_be_as_old_as_the_bound_and_no_older() -> None:
    """At bound 1 a group of version 0 fits into step 1; two of them do not."""
    ledger = CheckedLedger(group_size=1, bound=1, steps=99)
    ledger.worker("a", 9)
    ledger.deliver(ledger.granted()[1])
    ledger.train()
    zero, two = ledger.granted()[0], ledger.granted()[2]
    ledger.tell(LeasesStarted("a", (zero.lease_id, two.lease_id), Policy(0, 1)))
    assert two.start_at == Policy(0, 1)
    assert ledger.admit(answer(two, HERE)) is Arrival.ACCEPTED, "nothing else needs step 1 that badly"
    assert ledger.admit(answer(zero, HERE)) is Arrival.TOO_OLD
    assert ledger.granted()[-1].group == 0


def test_at_bound_zero_an_early_lease_that_started_too_early_is_too_old_while_its_version_is_made() -> None:
    ledger = CheckedLedger(group_size=1)
    first, early = ledger.worker("a", 2)
    ledger.deliver(first)
    ledger.tell(BatchWanted())
    assert ledger.admit(answer(early, HERE)) is Arrival.TOO_OLD


def test_the_oldest_token_of_a_result_counts() -> None:
    ledger = CheckedLedger(group_size=1, bound=1, steps=99)
    ledger.worker("a", 9)
    ledger.deliver(ledger.granted()[1])
    ledger.train()
    swapped = answer(ledger.granted()[0], HERE, policies=(PolicyRun(HERE, 1), PolicyRun(Policy(0, 1), 2)))
    ledger.tell(ResultArrived(swapped))
    assert ledger.machine.state.groups[0].version == 0


def test_what_comes_after_its_group_was_dropped_is_late_under_whatever_lease() -> None:
    ledger = CheckedLedger(group_size=1, steps=1, max_attempts=1)
    (first,) = ledger.worker("a", 1)
    ledger.tell(LeasesStarted("a", (first.lease_id,), HERE))
    assert of_kind(ledger.tick(HOLD_S * 2), GroupDropped)
    assert ledger.admit(answer(first, HERE)) is Arrival.LATE
    assert ledger.admit(answer(first, HERE, lease_id=77)) is Arrival.LATE
    fresh = ledger.granted()[-1]
    assert ledger.admit(answer(fresh, HERE)) is Arrival.ACCEPTED


def test_a_result_of_a_dead_branch_ends_no_lease_of_another_sample_that_has_its_number() -> None:
    """Lease numbers start anew with each fork."""
    ledger = CheckedLedger(lineage=Lineage(1, (HERE,)), steps=1)
    first, second = ledger.worker("a", 2)
    assert ledger.admit(answer(first, Policy(0, 1), lease_id=second.lease_id)) is Arrival.DEAD_BRANCH
    assert sorted(ledger.machine.state.held) == [first.lease_id, second.lease_id]


def test_a_sample_of_the_restored_history_is_as_good_as_one_of_this_fork() -> None:
    ledger = CheckedLedger(lineage=Lineage(1, (HERE,)), steps=1, group_size=1)
    (lease,) = ledger.worker("a", 1)
    assert ledger.admit(answer(lease, HERE)) is Arrival.ACCEPTED
    assert [x.policies[0].policy for x in ledger.train().results] == [HERE]


def test_an_evaluation_takes_no_older_version_than_it_was_asked_at() -> None:
    ledger = CheckedLedger(group_size=1, bound=1)
    ledger.deliver(ledger.worker("a", 9)[0])
    ledger.train()
    (lease,) = leases_of(ledger.tell(EvalAsked((7,))))
    assert ledger.admit(answer(lease, HERE)) is Arrival.TOO_OLD
