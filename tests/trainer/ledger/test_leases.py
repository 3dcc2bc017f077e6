"""Tests of leases: which worker gets which, how they end, and that none is ever forgotten."""

from periplus.values.policy import Lineage, Policy
from tests.support.ledger.checked import TIMEOUT_S, CheckedLedger, answer, leases_of, of_kind
from tests.support.ledger.oracle import next_due_s
from trainer.ledger.values import (
    AllWorkersLeft,
    Arrival,
    BatchWanted,
    Drop,
    EvalAsked,
    Granted,
    GroupDropped,
    LeaseLost,
    LeasesStarted,
    Loss,
    PolicyReached,
    ResultArrived,
    Revoked,
    RoomOffered,
    SampleFailed,
    StepDone,
    WorkerJoined,
    WorkerLeft,
)


def test_a_worker_gets_as_many_leases_as_it_has_room_for_and_one_more_for_each_that_ends() -> None:
    ledger = CheckedLedger(group_size=4, bound=1)
    leases = ledger.worker("a", 3)
    assert [(lease.group, lease.sample) for lease in leases] == [(0, 0), (0, 1), (0, 2)]
    assert [(lease.group, lease.sample) for lease in leases_of(ledger.deliver(leases[0]))] == [(0, 3)]


def test_a_worker_without_room_gets_nothing() -> None:
    for room in (0, -3):
        ledger = CheckedLedger()
        assert ledger.worker("a", room) == []
        assert leases_of(ledger.tell(EvalAsked((1,)))) == []


def test_the_samples_of_a_group_go_to_one_worker_while_it_has_room() -> None:
    ledger = CheckedLedger(group_size=2, bound=3)
    ledger.worker("a", 2)
    ledger.worker("b", 2)
    holder = {
        lease.group: grant.worker_id for grant in of_kind(tuple(ledger.effects), Granted) for lease in grant.leases
    }
    assert holder == {0: "a", 1: "b"}


def test_the_worker_that_is_done_soonest_is_served_first() -> None:
    ledger = CheckedLedger(group_size=1, steps=1)
    ledger.worker("full", 1)
    for worker_id, room in (("large", 8), ("idle", 2)):
        ledger.tell(WorkerJoined(worker_id))
        ledger.tell(RoomOffered(worker_id, room))
    (granted,) = of_kind(ledger.tell(WorkerLeft("full")), Granted)
    assert granted.worker_id == "large", "both are free, and before a speed is known it goes by room"


def test_all_leases_that_an_event_gives_a_worker_come_as_one_grant() -> None:
    ledger = CheckedLedger(group_size=1, bound=3)
    ledger.tell(WorkerJoined("a"))
    (granted,) = of_kind(ledger.tell(RoomOffered("a", 9)), Granted)
    assert len(granted.leases) == 5


def test_the_leases_of_a_worker_that_left_move_to_another_whatever_room_it_has() -> None:
    ledger = CheckedLedger(group_size=2)
    first = ledger.worker("a", 2)
    assert {lease.start_at.version for lease in ledger.worker("b", 2)} == {1}
    effects = ledger.tell(WorkerLeft("a"))
    assert of_kind(effects, LeaseLost) == [LeaseLost(lease, "a", Loss.WORKER_GONE) for lease in first]
    assert [(grant.worker_id, len(grant.leases)) for grant in of_kind(effects, Granted)] == [("b", 2)]
    assert {(x.group, x.sample) for x in leases_of(effects)} == {(x.group, x.sample) for x in first}
    assert not {x.lease_id for x in leases_of(effects)} & {x.lease_id for x in first}, "numbers are never used again"


def test_when_all_workers_leave_at_once_no_lease_moves_between_them_and_none_counts_as_an_attempt() -> None:
    ledger = CheckedLedger(group_size=2)
    held = [*ledger.worker("a", 2), *ledger.worker("b", 2)]
    ledger.tell(LeasesStarted("a", (held[0].lease_id,), Policy(0, 0)))
    effects = ledger.tell(AllWorkersLeft())
    assert {loss.lease for loss in of_kind(effects, LeaseLost)} == set(held)
    assert {loss.why for loss in of_kind(effects, LeaseLost)} == {Loss.WORKER_GONE}
    assert leases_of(effects) == []
    assert ledger.worker("a", 2) != []
    assert ledger.machine.state.workers["a"].allowance is None


def test_a_worker_that_says_hello_again_has_lost_what_it_held() -> None:
    ledger = CheckedLedger(group_size=2, steps=1)
    first = ledger.worker("a", 2)
    assert len(of_kind(ledger.tell(WorkerJoined("a")), LeaseLost)) == 2
    assert ledger.machine.state.workers["a"].room == 0
    again = leases_of(ledger.tell(RoomOffered("a", 2)))
    assert [(x.group, x.sample) for x in again] == [(x.group, x.sample) for x in first]


def test_the_leaving_of_a_stranger_changes_nothing() -> None:
    ledger = CheckedLedger()
    ledger.worker("a", 2)
    assert ledger.tell(WorkerLeft("x")) == ()


def test_a_lease_that_expires_goes_to_another_worker_and_the_late_one_comes_last_from_then_on() -> None:
    """The healthy worker is full, and the hung one looks empty after the expiry: room alone would choose wrongly."""
    ledger = CheckedLedger(group_size=2)
    first = ledger.worker("hung", 2)
    ledger.worker("well", 2)
    assert ledger.tick(TIMEOUT_S - 0.1) == ()
    effects = ledger.tick(0.1)
    assert of_kind(effects, LeaseLost) == [LeaseLost(lease, "hung", Loss.EXPIRED) for lease in first]
    assert [(grant.worker_id, len(grant.leases)) for grant in of_kind(effects, Granted)] == [("well", 2)]


def test_a_late_worker_is_trusted_again_once_it_delivers() -> None:
    ledger = CheckedLedger(group_size=1, bound=2)
    late, *_ = ledger.worker("a", 1)
    ledger.worker("b", 1)
    ledger.tick(TIMEOUT_S)
    assert ledger.machine.state.workers["a"].is_late
    ledger.deliver(late, worker_id="a")
    assert not ledger.machine.state.workers["a"].is_late


def test_time_counts_again_from_when_a_worker_started() -> None:
    ledger = CheckedLedger(group_size=1, steps=1)
    (lease,) = ledger.worker("a", 1)
    ledger.tell(LeasesStarted("a", (lease.lease_id,), Policy(0, 0)), after_s=TIMEOUT_S - 1)
    assert ledger.tick(TIMEOUT_S - 1) == ()
    ledger.tell(LeasesStarted("a", (lease.lease_id,), Policy(0, 0)))
    assert of_kind(ledger.tick(1.0), LeaseLost) == [LeaseLost(lease, "a", Loss.EXPIRED)]


def test_the_time_of_an_early_lease_counts_from_when_it_may_start() -> None:
    ledger = CheckedLedger(group_size=1)
    first, early = ledger.worker("a", 2)
    ledger.deliver(first)
    assert ledger.tick(100 * TIMEOUT_S) == ()
    assert next_due_s(ledger.machine) is None
    ledger.train()
    assert next_due_s(ledger.machine) == ledger.now_s + TIMEOUT_S
    assert ledger.tick(TIMEOUT_S / 2) == ()
    assert of_kind(ledger.tick(TIMEOUT_S / 2), LeaseLost) == [LeaseLost(early, "a", Loss.EXPIRED)]


def test_a_failing_sample_is_leased_again_and_given_up_after_so_many_attempts_and_a_fresh_group_replaces_it() -> None:
    ledger = CheckedLedger(group_size=2, steps=1, max_attempts=3)
    ledger.worker("a", 2)
    for attempt in range(3):
        lease = next(x for x in reversed(ledger.granted()) if x.sample == 0)
        assert lease.group == 0
        effects = ledger.tell(SampleFailed("a", lease.lease_id))
        assert of_kind(effects, LeaseLost) == [LeaseLost(lease, "a", Loss.FAILED)]
        assert bool(of_kind(effects, GroupDropped)) == (attempt == 2)
    assert of_kind(effects, GroupDropped) == [GroupDropped(0, Drop.FAILED, ())]
    assert of_kind(effects, Revoked) == [Revoked("a", (ledger.granted()[1].lease_id,))]
    assert [(x.group, x.sample) for x in leases_of(effects)] == [(1, 0), (1, 1)]


def test_expiries_and_refused_results_count_as_attempts_too() -> None:
    ledger = CheckedLedger(group_size=1, steps=1, max_attempts=2)
    (first,) = ledger.worker("a", 1)
    ledger.tell(LeasesStarted("a", (first.lease_id,), ledger.policy))
    (second,) = leases_of(ledger.tick(TIMEOUT_S))
    effects = ledger.tell(ResultArrived(answer(second, Policy(0, 0), item=5)))
    assert of_kind(effects, GroupDropped) == [GroupDropped(first.group, Drop.FAILED, ())]


def test_the_deaths_of_workers_are_no_failures_of_a_sample() -> None:
    ledger = CheckedLedger(group_size=1, steps=1, max_attempts=1)
    for number in range(5):
        assert [lease.group for lease in ledger.worker(f"w{number}", 1)] == [0]
        ledger.tell(WorkerLeft(f"w{number}"))
    assert of_kind(tuple(ledger.effects), GroupDropped) == []


def test_only_the_holder_can_fail_a_lease() -> None:
    ledger = CheckedLedger(group_size=1, steps=1)
    (lease,) = ledger.worker("a", 1)
    ledger.worker("b", 0)
    assert ledger.tell(SampleFailed("b", lease.lease_id)) == ()
    assert ledger.tell(SampleFailed("a", lease.lease_id + 1)) == ()


def test_a_worker_further_behind_than_the_bound_gets_nothing_until_it_has_caught_up() -> None:
    ledger = CheckedLedger(group_size=1, bound=1, steps=99)
    ledger.worker("slow", 1)
    ledger.tell(WorkerLeft("slow"))
    ledger.worker("a", 3)
    for _ in range(2):
        ledger.deliver(next(x for x in ledger.granted()[1:] if x.group == ledger.policy.version))
        ledger.train()
    ledger.tell(WorkerLeft("a"))
    assert ledger.worker("slow", 9, Policy(0, 0)) == []
    assert leases_of(ledger.tell(PolicyReached("slow", Policy(0, 1)))) != []


def test_at_bound_zero_a_worker_one_version_behind_is_still_leased_to_for_its_weights_are_on_the_way() -> None:
    ledger = CheckedLedger(group_size=1)
    ledger.deliver(*ledger.worker("a", 1))
    ledger.train()
    ledger.tell(WorkerLeft("a"))
    assert [lease.start_at for lease in ledger.worker("b", 1, Policy(0, 0))] == [Policy(0, 1), Policy(0, 2)][:1]


def test_a_worker_with_weights_of_a_dead_branch_gets_nothing() -> None:
    ledger = CheckedLedger(lineage=Lineage(1, (Policy(0, 2),)), start=2)
    assert ledger.worker("a", 9, Policy(0, 3)) == []
    assert leases_of(ledger.tell(PolicyReached("a", Policy(0, 2)))) != []


def test_a_newcomer_whose_weights_are_unknown_is_leased_to() -> None:
    ledger = CheckedLedger()
    ledger.tell(WorkerJoined("a"))
    assert leases_of(ledger.tell(RoomOffered("a", 1))) != []


def test_a_worker_that_falls_behind_while_steps_go_on_gets_no_new_lease() -> None:
    ledger = CheckedLedger(group_size=1, bound=0, steps=99)
    ledger.worker("slow", 1)
    for _ in range(2):
        present = next(x for x in reversed(ledger.granted()) if x.start_at == ledger.policy)
        ledger.deliver(present, worker_id="other")
        ledger.train()
    assert ledger.machine.state.workers["slow"].is_behind
    before = len(ledger.granted())
    ledger.tell(RoomOffered("slow", 9))
    assert len(ledger.granted()) == before


def test_a_sample_that_came_from_another_worker_revokes_the_lease_for_it() -> None:
    ledger = CheckedLedger(group_size=1, steps=1)
    (late,) = ledger.worker("a", 1)
    (again,) = ledger.worker("b", 1) or leases_of(ledger.tick(TIMEOUT_S))
    effects = ledger.deliver(late, worker_id="a")
    assert of_kind(effects, Revoked) == [Revoked("b", (again.lease_id,))]
    assert ledger.admit(answer(again, Policy(0, 0), "b")) is Arrival.DUPLICATE
    ledger.train()
    assert ledger.tell(WorkerLeft("b")) == ()
    assert ledger.admit(answer(again, Policy(0, 0), "b")) is Arrival.DUPLICATE


def test_room_that_shrinks_takes_no_lease_back_and_gives_none() -> None:
    ledger = CheckedLedger(group_size=4, steps=1)
    leases = ledger.worker("a", 3)
    assert ledger.tell(RoomOffered("a", 1)) == ()
    assert leases_of(ledger.deliver(leases[0])) == []
    assert leases_of(ledger.deliver(leases[1])) == []
    assert len(leases_of(ledger.deliver(leases[2]))) == 1


def test_nothing_happens_in_a_step_that_has_no_worker() -> None:
    ledger = CheckedLedger()
    assert ledger.tell(BatchWanted()) == ()
    assert next_due_s(ledger.machine) is None
    assert ledger.tick(1e9) == ()


def test_the_same_events_give_equal_effects_and_equal_state() -> None:
    ledger, same = CheckedLedger(group_size=2, bound=1), CheckedLedger(group_size=2, bound=1)
    for each in (ledger, same):
        leases = each.worker("a", 3)
        each.worker("b", 4)
        each.deliver(*leases[:2])
        each.tell(BatchWanted())
        each.tick(TIMEOUT_S)
        each.tell(StepDone())
        each.tell(WorkerLeft("a"))
    assert ledger.effects == same.effects
    assert ledger.machine.state == same.machine.state


def test_time_for_what_a_worker_has_queued_counts_from_when_it_last_started_something() -> None:
    ledger = CheckedLedger(group_size=2)
    started, queued = ledger.worker("a", 2)
    ledger.tell(LeasesStarted("a", (started.lease_id,), ledger.policy), after_s=TIMEOUT_S - 1)
    assert of_kind(ledger.tick(TIMEOUT_S - 1), LeaseLost) == [], "it is alive and works in order"
    effects = ledger.tick(1.0)
    assert [lost.lease for lost in of_kind(effects, LeaseLost)] == [started, queued]


def test_what_expired_is_revoked_so_that_it_takes_no_room_in_its_workers_queue() -> None:
    ledger = CheckedLedger(group_size=2)
    leases = ledger.worker("a", 2)
    revoked = of_kind(ledger.tick(TIMEOUT_S), Revoked)
    assert [(each.worker_id, each.lease_ids) for each in revoked] == [("a", (lease.lease_id,)) for lease in leases]


def test_who_holds_a_lease_is_told_by_the_sample_too() -> None:
    ledger = CheckedLedger(group_size=2)
    lease, _ = ledger.worker("a", 2)
    assert ledger.machine.holds("a", lease.lease_id, lease.group, lease.sample)
    assert not ledger.machine.holds("b", lease.lease_id, lease.group, lease.sample)
    assert not ledger.machine.holds("a", lease.lease_id, lease.group + 1, lease.sample)
    assert not ledger.machine.holds("a", lease.lease_id + 9, lease.group, lease.sample)
