"""Tests of the admission gate: which groups are opened, when, and for which version."""

import pytest

from periplus.errors import StateError
from periplus.values.policy import Policy
from tests.support.ledger.checked import MAX_TOKENS, TIMEOUT_S, CheckedLedger, leases_of, limits
from tests.support.ledger.oracle import next_due_s
from trainer.ledger.values import (
    BatchWanted,
    EvalAsked,
    LeasesStarted,
    PolicyReached,
    RoomOffered,
    SampleFailed,
    StepDone,
    WorkerJoined,
    WorkerLeft,
)


def versions(ledger: CheckedLedger) -> dict[int, int]:
    """Return, for each group that was ever leased, the version from which it may start."""
    return {lease.group: lease.start_at.version for lease in ledger.granted()}


def test_a_full_pipeline_is_what_the_bound_allows_and_one_step_of_early_leases() -> None:
    ledger = CheckedLedger(groups_per_step=2, group_size=1, bound=2)
    ledger.worker("a", 99)
    assert versions(ledger) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 1, 7: 1}


def test_at_bound_zero_leases_of_the_next_version_travel_early_and_may_not_start_yet() -> None:
    ledger = CheckedLedger(group_size=1)
    first, early = ledger.worker("a", 99)
    assert (first.start_at, early.start_at) == (Policy(0, 0), Policy(0, 1))
    assert (first.consume_by_version, early.consume_by_version) == (0, 1)


def test_while_a_step_trains_only_the_next_version_is_leased_at_bound_zero() -> None:
    ledger = CheckedLedger(group_size=1)
    (first,) = ledger.worker("a", 1)
    ledger.deliver(first)
    ledger.tell(BatchWanted())
    assert [lease.start_at.version for lease in leases_of(ledger.tell(RoomOffered("a", 9)))] == []
    assert versions(ledger) == {0: 0, 1: 1}


def test_a_depth_below_the_bound_opens_no_more_than_so_many_batches() -> None:
    ledger = CheckedLedger(groups_per_step=2, group_size=1, bound=3, depth=1.5)
    ledger.worker("a", 99)
    assert versions(ledger) == {0: 0, 1: 0, 2: 0}


def test_a_depth_beyond_the_bound_opens_no_more_than_the_bound() -> None:
    ledger = CheckedLedger(group_size=1, bound=1, depth=50.0)
    ledger.worker("a", 99)
    assert versions(ledger) == {0: 0, 1: 0, 2: 1}


def test_the_measured_depth_shrinks_when_groups_are_much_faster_than_steps() -> None:
    ledger = CheckedLedger(group_size=1, bound=3, depth=None)
    ledger.worker("a", 99)
    assert len(ledger.machine.state.groups) == 5
    for _ in range(3):
        ledger.deliver(ledger.granted()[ledger.policy.version])
        ledger.train(for_s=100.0)
    assert len(ledger.machine.state.groups) < 4


def test_the_room_for_tokens_is_reserved_at_the_largest_size_and_given_back_as_the_true_size_is_known() -> None:
    ledger = CheckedLedger(group_size=2, bound=3, intake_tokens=2 * 2 * MAX_TOKENS)
    leases = ledger.worker("a", 99)
    assert [lease.group for lease in leases] == [0, 0, 1, 1]
    ledger.deliver(*leases[:2], num_tokens=1)
    assert len(ledger.granted()) == 4, "18 of 20 tokens are free, a group may take 20"
    ledger.train()
    assert [lease.group for lease in ledger.granted()[4:]] == [2, 2]


def test_no_more_groups_are_opened_than_the_steps_that_are_left_consume() -> None:
    ledger = CheckedLedger(groups_per_step=2, group_size=1, bound=3, steps=2)
    ledger.worker("a", 99)
    assert sorted(versions(ledger)) == [0, 1, 2, 3]
    for step in range(2):
        ledger.deliver(*ledger.granted()[2 * step : 2 * step + 2])
        ledger.train()
    assert sorted(versions(ledger)) == [0, 1, 2, 3]
    assert not ledger.machine.state.groups


def test_a_step_opens_as_many_groups_as_it_took() -> None:
    ledger = CheckedLedger(group_size=1, bound=1)
    ledger.worker("a", 99)
    ledger.deliver(ledger.granted()[0])
    ledger.train()
    assert versions(ledger) == {0: 0, 1: 0, 2: 1, 3: 2}


def test_groups_that_started_late_count_from_the_version_that_they_started_with() -> None:
    """At bound 1 two groups of version 0 fill the window; once one is known to have version 1, there is room again."""
    ledger = CheckedLedger(group_size=1, bound=1, depth=2.0, steps=99)
    first, second, early = ledger.worker("a", 99)
    ledger.deliver(first)
    ledger.tell(BatchWanted())
    ledger.tell(StepDone())
    assert dict(ledger.machine.state.classes) == {0: 1, 1: 1, 2: 1}
    ledger.tell(LeasesStarted("a", (second.lease_id,), Policy(0, 1)))
    assert dict(ledger.machine.state.classes) == {1: 2, 2: 1}
    ledger.deliver(second)
    assert early.start_at == Policy(0, 1)


def test_a_start_counts_once_and_only_from_the_holder_and_from_a_policy_that_exists_and_may_start() -> None:
    ledger = CheckedLedger(group_size=1, bound=1)
    first, _, _ = ledger.worker("a", 99)
    ledger.deliver(first)
    ledger.train()
    second = ledger.granted()[1]
    ledger.worker("b", 0)
    for told in (
        LeasesStarted("b", (second.lease_id,), Policy(0, 1)),
        LeasesStarted("a", (second.lease_id,), Policy(0, 2)),
        LeasesStarted("a", (second.lease_id,), Policy(7, 1)),
        LeasesStarted("a", (999,), Policy(0, 1)),
    ):
        ledger.tell(told)
        assert not ledger.machine.state.held[second.lease_id].is_started
    early = next(lease for lease in ledger.granted() if lease.start_at == Policy(0, 2))
    ledger.tell(LeasesStarted("a", (early.lease_id,), Policy(0, 1)))
    assert not ledger.machine.state.held[early.lease_id].is_started, "it may start at version 2"
    ledger.tell(LeasesStarted("a", (second.lease_id,), Policy(0, 0)))
    ledger.tell(LeasesStarted("a", (second.lease_id,), Policy(0, 1)))
    assert ledger.machine.state.groups[second.group].version == 0, "it said that it began with version 0"


def test_early_leases_leave_room_in_the_intake_for_a_group_that_replaces_one_of_this_version() -> None:
    """Otherwise a step whose groups are filtered could only wait for leases of the step after it, and stand still."""
    ledger = CheckedLedger(
        group_size=2, bound=0, intake_tokens=4 * MAX_TOKENS - 5, filter_uniform=True, max_filtered_per_step=9
    )
    ledger.worker("a", 99)
    for _ in range(9):
        present = [lease for lease in ledger.granted() if lease.start_at == Policy(0, 0)]
        ledger.deliver(*present[-2:], num_tokens=1)
    assert len({lease.group for lease in ledger.granted() if lease.start_at == Policy(0, 0)}) == 10


def test_a_worker_full_of_early_leases_is_given_what_can_start_now() -> None:
    """Otherwise the worker would wait for a step that waits for the worker."""
    ledger = CheckedLedger(group_size=1, bound=0, filter_uniform=True)
    ledger.worker("a", 1)
    ledger.worker("b", 1)
    ledger.tell(WorkerLeft("a"))
    first, early = (ledger.machine.state.held[lease_id].lease for lease_id in ledger.machine.state.workers["b"].leases)
    if first.start_at > early.start_at:
        first, early = early, first
    assert (first.start_at, early.start_at) == (Policy(0, 0), Policy(0, 1))
    assert [lease.start_at for lease in leases_of(ledger.deliver(first, worker_id="b"))] == [Policy(0, 0)]


def test_an_early_group_that_waits_for_room_does_not_stand_in_the_way_of_what_can_start_now() -> None:
    ledger = CheckedLedger(group_size=2, bound=0, filter_uniform=True)
    ledger.worker("a", 3)
    ledger.tell(RoomOffered("a", 1))
    first, second = (lease for lease in ledger.granted() if lease.start_at == Policy(0, 0))
    ledger.deliver(first)
    assert [lease.start_at for lease in leases_of(ledger.deliver(second))] == [Policy(0, 0)]


def test_room_for_less_than_one_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="room for 19 tokens"):
        limits(intake_tokens=2 * MAX_TOKENS - 1)
    with pytest.raises(ValueError, match=r"pipeline of 0\.5"):
        limits(depth=0.5)


@pytest.mark.parametrize(
    "event",
    [
        RoomOffered("x", 1),
        PolicyReached("x", Policy(0, 0)),
        LeasesStarted("x", (1,), Policy(0, 0)),
        SampleFailed("x", 1),
        BatchWanted(),
        StepDone(),
        EvalAsked((3,)),
    ],
)
def test_an_event_that_cannot_follow_is_refused_and_changes_nothing(event: object) -> None:
    ledger, same = CheckedLedger(), CheckedLedger()
    for each in (ledger, same):
        each.worker("a", 9)
        each.tell(EvalAsked((1,)))
        each.tell(BatchWanted())
    with pytest.raises(StateError):
        ledger.machine.apply(event, 1e6)  # type: ignore[arg-type]
    assert ledger.machine.state == same.machine.state


def test_a_batch_is_not_wanted_while_one_is_trained() -> None:
    ledger = CheckedLedger()
    ledger.deliver(*ledger.worker("a", 2))
    ledger.tell(BatchWanted())
    with pytest.raises(StateError, match="in training"):
        ledger.tell(BatchWanted())


def test_the_clock_set_back_stands_still_and_nothing_expires_early_or_never() -> None:
    ledger = CheckedLedger(group_size=1, bound=0, steps=1)
    ledger.now_s = 1000.0
    ledger.tell(WorkerJoined("a"))
    ledger.tell(RoomOffered("a", 1), after_s=-900.0)
    assert next_due_s(ledger.machine) == 1000.0 + TIMEOUT_S
    assert ledger.tick(899.0 + TIMEOUT_S) == ()
    assert len(leases_of(ledger.tick(1.0))) == 1
