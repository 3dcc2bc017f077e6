"""Leases: who gets which, how they end, and that none is ever forgotten."""

from periplus.values.policy import Lineage, Policy
from tests.support.ledgers import TIMEOUT_S, Desk, answer, leases_of, of
from trainer.ledger.values import (
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
    desk = Desk(group_size=4, bound=1)
    leases = desk.worker("a", 3)
    assert [(lease.group, lease.sample) for lease in leases] == [(0, 0), (0, 1), (0, 2)]
    assert [(lease.group, lease.sample) for lease in leases_of(desk.deliver(leases[0]))] == [(0, 3)]


def test_a_worker_without_room_gets_nothing() -> None:
    for room in (0, -3):
        desk = Desk()
        assert desk.worker("a", room) == []
        assert leases_of(desk.tell(EvalAsked((1,)))) == []


def test_the_samples_of_a_group_go_to_one_worker_while_it_has_room() -> None:
    desk = Desk(group_size=2, bound=3)
    desk.worker("a", 2)
    desk.worker("b", 2)
    holder = {lease.group: grant.worker_id for grant in of(tuple(desk.effects), Granted) for lease in grant.leases}
    assert holder == {0: "a", 1: "b"}


def test_the_worker_with_the_largest_free_share_is_served_first() -> None:
    desk = Desk(group_size=1, steps=1)
    desk.worker("full", 1)
    for worker_id, room in (("large", 8), ("idle", 2)):
        desk.tell(WorkerJoined(worker_id))
        desk.tell(RoomOffered(worker_id, room))
    (granted,) = of(desk.tell(WorkerLeft("full")), Granted)
    assert granted.worker_id == "idle", "both are free: ties go by name"


def test_all_leases_that_an_event_gives_a_worker_come_as_one_grant() -> None:
    desk = Desk(group_size=1, bound=3)
    desk.tell(WorkerJoined("a"))
    (granted,) = of(desk.tell(RoomOffered("a", 9)), Granted)
    assert len(granted.leases) == 5


def test_the_leases_of_a_worker_that_left_move_to_another_whatever_room_it_has() -> None:
    desk = Desk(group_size=2)
    first = desk.worker("a", 2)
    assert {lease.start_at.version for lease in desk.worker("b", 2)} == {1}
    effects = desk.tell(WorkerLeft("a"))
    assert of(effects, LeaseLost) == [LeaseLost(lease, "a", Loss.WORKER_GONE) for lease in first]
    assert [(grant.worker_id, len(grant.leases)) for grant in of(effects, Granted)] == [("b", 2)]
    assert {(x.group, x.sample) for x in leases_of(effects)} == {(x.group, x.sample) for x in first}
    assert not {x.lease_id for x in leases_of(effects)} & {x.lease_id for x in first}, "numbers are never used again"


def test_a_worker_that_says_hello_again_has_lost_what_it_held() -> None:
    desk = Desk(group_size=2, steps=1)
    first = desk.worker("a", 2)
    assert len(of(desk.tell(WorkerJoined("a")), LeaseLost)) == 2
    assert desk.ledger.state.workers["a"].room == 0
    again = leases_of(desk.tell(RoomOffered("a", 2)))
    assert [(x.group, x.sample) for x in again] == [(x.group, x.sample) for x in first]


def test_the_leaving_of_a_stranger_changes_nothing() -> None:
    desk = Desk()
    desk.worker("a", 2)
    assert desk.tell(WorkerLeft("x")) == ()


def test_a_lease_that_expires_goes_to_another_worker_and_the_late_one_comes_last_from_then_on() -> None:
    """The healthy one is full, the hung one looks empty after the expiry: room alone would choose wrongly for ever."""
    desk = Desk(group_size=2)
    first = desk.worker("hung", 2)
    desk.worker("well", 2)
    assert desk.tick(TIMEOUT_S - 0.1) == ()
    effects = desk.tick(0.1)
    assert of(effects, LeaseLost) == [LeaseLost(lease, "hung", Loss.EXPIRED) for lease in first]
    assert [(grant.worker_id, len(grant.leases)) for grant in of(effects, Granted)] == [("well", 2)]


def test_a_late_worker_is_trusted_again_once_it_delivers() -> None:
    desk = Desk(group_size=1, bound=2)
    late, *_ = desk.worker("a", 1)
    desk.worker("b", 1)
    desk.tick(TIMEOUT_S)
    assert desk.ledger.state.workers["a"].is_late
    desk.deliver(late, worker_id="a")
    assert not desk.ledger.state.workers["a"].is_late


def test_time_counts_again_from_when_a_worker_started() -> None:
    desk = Desk(group_size=1, steps=1)
    (lease,) = desk.worker("a", 1)
    desk.tell(LeasesStarted("a", (lease.lease_id,), Policy(0, 0)), after_s=TIMEOUT_S - 1)
    assert desk.tick(TIMEOUT_S - 1) == ()
    desk.tell(LeasesStarted("a", (lease.lease_id,), Policy(0, 0)))
    assert of(desk.tick(1.0), LeaseLost) == [LeaseLost(lease, "a", Loss.EXPIRED)]


def test_the_time_of_an_early_lease_counts_from_when_it_may_start() -> None:
    desk = Desk(group_size=1)
    first, early = desk.worker("a", 2)
    desk.deliver(first)
    assert desk.tick(100 * TIMEOUT_S) == ()
    assert desk.ledger.next_due_s() is None
    desk.train()
    assert desk.ledger.next_due_s() == desk.now_s + TIMEOUT_S
    assert desk.tick(TIMEOUT_S / 2) == ()
    assert of(desk.tick(TIMEOUT_S / 2), LeaseLost) == [LeaseLost(early, "a", Loss.EXPIRED)]


def test_a_failing_sample_is_leased_again_and_given_up_after_so_many_attempts_and_a_fresh_group_replaces_it() -> None:
    desk = Desk(group_size=2, steps=1, max_attempts=3)
    desk.worker("a", 2)
    for attempt in range(3):
        lease = next(x for x in reversed(desk.granted()) if x.sample == 0)
        assert lease.group == 0
        effects = desk.tell(SampleFailed("a", lease.lease_id))
        assert of(effects, LeaseLost) == [LeaseLost(lease, "a", Loss.FAILED)]
        assert bool(of(effects, GroupDropped)) == (attempt == 2)
    assert of(effects, GroupDropped) == [GroupDropped(0, Drop.FAILED, ())]
    assert of(effects, Revoked) == [Revoked("a", (desk.granted()[1].lease_id,))]
    assert [(x.group, x.sample) for x in leases_of(effects)] == [(1, 0), (1, 1)]


def test_expiries_and_refused_results_count_as_attempts_too() -> None:
    desk = Desk(group_size=1, steps=1, max_attempts=2)
    (first,) = desk.worker("a", 1)
    desk.tell(LeasesStarted("a", (first.lease_id,), desk.policy))
    (second,) = leases_of(desk.tick(TIMEOUT_S))
    effects = desk.tell(ResultArrived(answer(second, Policy(0, 0), item=5)))
    assert of(effects, GroupDropped) == [GroupDropped(first.group, Drop.FAILED, ())]


def test_the_deaths_of_workers_are_no_failures_of_a_sample() -> None:
    desk = Desk(group_size=1, steps=1, max_attempts=1)
    for number in range(5):
        assert [lease.group for lease in desk.worker(f"w{number}", 1)] == [0]
        desk.tell(WorkerLeft(f"w{number}"))
    assert of(tuple(desk.effects), GroupDropped) == []


def test_only_the_holder_can_fail_a_lease() -> None:
    desk = Desk(group_size=1, steps=1)
    (lease,) = desk.worker("a", 1)
    desk.worker("b", 0)
    assert desk.tell(SampleFailed("b", lease.lease_id)) == ()
    assert desk.tell(SampleFailed("a", lease.lease_id + 1)) == ()


def test_a_worker_further_behind_than_the_bound_gets_nothing_until_it_has_caught_up() -> None:
    desk = Desk(group_size=1, bound=1, steps=99)
    desk.worker("slow", 1)
    desk.tell(WorkerLeft("slow"))
    desk.worker("a", 3)
    for _ in range(2):
        desk.deliver(next(x for x in desk.granted()[1:] if x.group == desk.policy.version))
        desk.train()
    desk.tell(WorkerLeft("a"))
    assert desk.worker("slow", 9, Policy(0, 0)) == []
    assert leases_of(desk.tell(PolicyReached("slow", Policy(0, 1)))) != []


def test_at_bound_zero_a_worker_one_version_behind_is_still_leased_to_for_its_weights_are_on_the_way() -> None:
    desk = Desk(group_size=1)
    desk.deliver(*desk.worker("a", 1))
    desk.train()
    desk.tell(WorkerLeft("a"))
    assert [lease.start_at for lease in desk.worker("b", 1, Policy(0, 0))] == [Policy(0, 1), Policy(0, 2)][:1]


def test_a_worker_with_weights_of_a_dead_branch_gets_nothing() -> None:
    desk = Desk(lineage=Lineage(1, (Policy(0, 2),)), start=2)
    assert desk.worker("a", 9, Policy(0, 3)) == []
    assert leases_of(desk.tell(PolicyReached("a", Policy(0, 2)))) != []


def test_a_newcomer_whose_weights_are_unknown_is_leased_to() -> None:
    desk = Desk()
    desk.tell(WorkerJoined("a"))
    assert leases_of(desk.tell(RoomOffered("a", 1))) != []


def test_a_worker_that_falls_behind_while_steps_go_on_gets_no_new_lease() -> None:
    desk = Desk(group_size=1, bound=0, steps=99)
    desk.worker("slow", 1)
    for _ in range(2):
        present = next(x for x in reversed(desk.granted()) if x.start_at == desk.policy)
        desk.deliver(present, worker_id="other")
        desk.train()
    assert desk.ledger.state.workers["slow"].is_behind
    before = len(desk.granted())
    desk.tell(RoomOffered("slow", 9))
    assert len(desk.granted()) == before


def test_a_sample_that_came_from_another_worker_revokes_the_lease_for_it() -> None:
    desk = Desk(group_size=1, steps=1)
    (late,) = desk.worker("a", 1)
    (again,) = desk.worker("b", 1) or leases_of(desk.tick(TIMEOUT_S))
    effects = desk.deliver(late, worker_id="a")
    assert of(effects, Revoked) == [Revoked("b", (again.lease_id,))]
    assert desk.judge(answer(again, Policy(0, 0), "b")) is Arrival.DUPLICATE
    desk.train()
    assert desk.tell(WorkerLeft("b")) == ()
    assert desk.judge(answer(again, Policy(0, 0), "b")) is Arrival.DUPLICATE


def test_room_that_shrinks_takes_no_lease_back_and_gives_none() -> None:
    desk = Desk(group_size=4, steps=1)
    leases = desk.worker("a", 3)
    assert desk.tell(RoomOffered("a", 1)) == ()
    assert leases_of(desk.deliver(leases[0])) == []
    assert leases_of(desk.deliver(leases[1])) == []
    assert len(leases_of(desk.deliver(leases[2]))) == 1


def test_nothing_happens_in_a_step_that_has_no_worker() -> None:
    desk = Desk()
    assert desk.tell(BatchWanted()) == ()
    assert desk.ledger.next_due_s() is None
    assert desk.tick(1e9) == ()


def test_the_same_events_give_equal_effects_and_equal_state() -> None:
    desk, same = Desk(group_size=2, bound=1), Desk(group_size=2, bound=1)
    for each in (desk, same):
        leases = each.worker("a", 3)
        each.worker("b", 4)
        each.deliver(*leases[:2])
        each.tell(BatchWanted())
        each.tick(TIMEOUT_S)
        each.tell(StepDone())
        each.tell(WorkerLeft("a"))
    assert desk.effects == same.effects
    assert desk.ledger.state == same.ledger.state


def test_time_for_what_a_worker_has_queued_counts_from_when_it_last_started_something() -> None:
    desk = Desk(group_size=2)
    started, queued = desk.worker("a", 2)
    desk.tell(LeasesStarted("a", (started.lease_id,), desk.policy), after_s=TIMEOUT_S - 1)
    assert of(desk.tick(TIMEOUT_S - 1), LeaseLost) == [], "it is alive and works in order"
    effects = desk.tick(1.0)
    assert [lost.lease for lost in of(effects, LeaseLost)] == [started, queued]


def test_what_expired_is_revoked_so_that_it_takes_no_room_in_its_workers_queue() -> None:
    desk = Desk(group_size=2)
    leases = desk.worker("a", 2)
    revoked = of(desk.tick(TIMEOUT_S), Revoked)
    assert [(each.worker_id, each.lease_ids) for each in revoked] == [("a", (lease.lease_id,)) for lease in leases]


def test_who_holds_a_lease_is_told_by_the_sample_too() -> None:
    desk = Desk(group_size=2)
    lease, _ = desk.worker("a", 2)
    assert desk.ledger.holds("a", lease.lease_id, lease.group, lease.sample)
    assert not desk.ledger.holds("b", lease.lease_id, lease.group, lease.sample)
    assert not desk.ledger.holds("a", lease.lease_id, lease.group + 1, lease.sample)
    assert not desk.ledger.holds("a", lease.lease_id + 9, lease.group, lease.sample)
