"""Tests of hedges: the oldest samples of a silent worker are leased a second time while the trainer waits for them."""

from typing import Any

import pytest

from tests.support.ledger.checked import CheckedLedger, answer, leases_of, of_kind
from tests.support.ledger.fleet import Fleet
from trainer.ledger import hedging
from trainer.ledger.values import (
    Arrival,
    BatchReady,
    BatchWanted,
    Drop,
    EvalAsked,
    Granted,
    GroupDropped,
    Lease,
    LeaseLost,
    LeasesStarted,
    Loss,
    PolicyReached,
    Revoked,
    RoomOffered,
    SampleFailed,
    StepDone,
    WorkerJoined,
    WorkerLeft,
)


def joins(ledger: CheckedLedger, worker_id: str, room: int, region: str) -> list[Lease]:
    ledger.tell(WorkerJoined(worker_id, 1, region))
    ledger.tell(PolicyReached(worker_id, ledger.policy))
    return leases_of(ledger.tell(RoomOffered(worker_id, room)))


def silent_ledger(**changed: Any) -> tuple[CheckedLedger, Lease]:
    """A batch lacks one sample, which worker a of region eu has started, and of which nothing is heard any more.

    Worker b of the same region and worker c of region us have room, and have delivered a sample each.
    """
    settings: dict[str, Any] = {
        "groups_per_step": 1,
        "group_size": 4,
        "steps": 1,
        "lease_timeout_s": 60.0,
        "max_hold_s": 600.0,
    }
    ledger = CheckedLedger(**{**settings, **changed})
    (mine, late) = joins(ledger, "a", 2, "eu")
    (of_b,) = joins(ledger, "b", 1, "eu")
    (of_c,) = joins(ledger, "c", 1, "us")
    ledger.tell(BatchWanted())
    for worker_id, lease in (("a", mine), ("b", of_b), ("c", of_c)):
        ledger.tell(LeasesStarted(worker_id, (lease.lease_id,), ledger.policy))
    ledger.tell(LeasesStarted("a", (late.lease_id,), ledger.policy))
    ledger.now_s += 0.5
    for worker_id, lease in (("a", mine), ("b", of_b), ("c", of_c)):
        ledger.deliver(lease, worker_id=worker_id)
    return ledger, late


def hedge_of(ledger: CheckedLedger, seconds: int = 6) -> tuple[str, Lease]:
    """The clock ticks each second until a sample is leased twice."""
    for _ in range(seconds):
        if granted := of_kind(ledger.tick(1.0), Granted):
            ((worker_id, (lease,)),) = [(each.worker_id, each.leases) for each in granted]
            return worker_id, lease
    raise AssertionError("nothing was leased twice")


def test_the_late_sample_of_a_silent_worker_is_leased_to_a_worker_of_another_region() -> None:
    ledger, late = silent_ledger()
    silent_since_s = ledger.now_s
    worker_id, hedge = hedge_of(ledger)
    assert (worker_id, hedge.hedges) == ("c", late.lease_id)
    assert (hedge.group, hedge.sample, hedge.item) == (late.group, late.sample, late.item)
    assert (hedge.start_at, hedge.consume_by_version) == (late.start_at, late.consume_by_version)
    assert ledger.now_s - silent_since_s <= hedging.PATIENCE_S + 2.0


def test_with_one_region_another_worker_gets_the_hedge() -> None:
    ledger, _ = silent_ledger()
    ledger.tell(WorkerLeft("c", is_dead=False))
    assert hedge_of(ledger)[0] == "b"


def test_the_first_result_wins_and_the_other_lease_is_revoked_and_its_result_a_duplicate() -> None:
    for first, second in (("a", "c"), ("c", "a")):
        ledger, late = silent_ledger()
        _, hedge = hedge_of(ledger)
        leases = {"a": late, "c": hedge}
        told = ledger.deliver(leases[first], worker_id=first)
        assert [(each.worker_id, each.lease_ids) for each in of_kind(told, Revoked)] == [
            (second, (leases[second].lease_id,))
        ]
        assert of_kind(told, BatchReady)
        assert ledger.admit(answer(leases[second], ledger.policy, second)) is Arrival.DUPLICATE


def test_a_sample_is_hedged_once_whatever_becomes_of_the_hedge() -> None:
    ledger, _ = silent_ledger()
    _, hedge = hedge_of(ledger)
    ledger.tell(SampleFailed("c", hedge.lease_id))
    for _ in range(20):
        assert leases_of(ledger.tick(1.0)) == []


def test_a_hedge_that_fails_is_no_attempt_while_the_first_lease_goes_on() -> None:
    ledger, late = silent_ledger(max_attempts=1)
    _, hedge = hedge_of(ledger)
    told = ledger.tell(SampleFailed("c", hedge.lease_id))
    assert [lost.why for lost in of_kind(told, LeaseLost)] == [Loss.FAILED]
    assert not of_kind(told, GroupDropped)
    assert of_kind(ledger.deliver(late), BatchReady)


def test_a_hedge_takes_the_place_of_a_first_lease_that_ends_and_counts_from_then() -> None:
    ledger, late = silent_ledger(max_attempts=2)
    _, hedge = hedge_of(ledger)
    assert hedge.alone, "it may become the last attempt"
    told = ledger.tell(SampleFailed("a", late.lease_id))
    assert leases_of(told) == [], "the hedge goes on"
    told = ledger.tell(SampleFailed("c", hedge.lease_id))
    assert [drop.why for drop in of_kind(told, GroupDropped)] == [Drop.FAILED]


def test_the_death_of_the_silent_worker_leaves_the_sample_to_its_hedge() -> None:
    ledger, _ = silent_ledger()
    worker_id, hedge = hedge_of(ledger)
    assert leases_of(ledger.tell(WorkerLeft("a"))) == []
    assert of_kind(ledger.deliver(hedge, worker_id=worker_id), BatchReady)


def test_a_silent_workers_lease_still_expires_and_puts_it_on_probation() -> None:
    ledger, _ = silent_ledger()
    hedge_of(ledger)
    for _ in range(62):
        ledger.tick(1.0)
    assert ledger.machine.state.workers["a"].is_late
    assert all(held.worker_id != "a" for held in ledger.machine.state.held.values())


def test_nothing_is_hedged_where_the_job_turns_it_off() -> None:
    ledger, _ = silent_ledger(hedge=False)
    assert not any(leases_of(ledger.tick(1.0)) for _ in range(30))


def test_nothing_is_hedged_while_the_trainer_does_not_wait() -> None:
    ledger = CheckedLedger(group_size=2, steps=1, lease_timeout_s=60.0)
    mine, _ = joins(ledger, "a", 2, "eu")
    joins(ledger, "c", 2, "us")
    ledger.now_s += 0.5
    ledger.deliver(mine)
    assert not any(leases_of(ledger.tick(1.0)) for _ in range(20))
    ledger.tell(BatchWanted())
    assert hedge_of(ledger)[0] == "c"


def test_a_worker_that_delivered_nothing_yet_is_not_judged() -> None:
    ledger = CheckedLedger(group_size=2, steps=1, lease_timeout_s=60.0)
    joins(ledger, "a", 2, "eu")
    joins(ledger, "c", 2, "us")
    ledger.tell(BatchWanted())
    assert not any(leases_of(ledger.tick(1.0)) for _ in range(50))


def test_a_sample_that_failed_before_is_not_hedged() -> None:
    ledger, late = silent_ledger()
    (again,) = leases_of(ledger.tell(SampleFailed("a", late.lease_id)))
    assert again.sample == late.sample
    assert not any(leases_of(ledger.tick(1.0)) for _ in range(30))


def test_a_pause_of_the_trainers_own_process_makes_no_worker_silent() -> None:
    ledger, late = silent_ledger()
    assert leases_of(ledger.tick(30.0)) == []
    assert of_kind(ledger.deliver(late), BatchReady)


def test_a_slow_worker_is_given_the_time_that_it_usually_takes() -> None:
    ledger = CheckedLedger(group_size=1, steps=9, lease_timeout_s=60.0, depth=1.0)
    (lease,) = joins(ledger, "a", 1, "eu")
    joins(ledger, "c", 1, "us")
    for _ in range(4):
        ledger.tell(BatchWanted())
        for _ in range(10):
            assert not [each for each in leases_of(ledger.tick(1.0)) if each.hedges]
        ledger.deliver(lease)
        told = ledger.tell(StepDone())
        (lease,) = [each for each in (*leases_of(told), *ledger.granted()) if each.group == lease.group + 1][:1]
        if ledger.machine.state.held[lease.lease_id].worker_id != "a":
            break


def test_the_samples_of_an_evaluation_that_the_trainer_waits_for_are_hedged() -> None:
    ledger = CheckedLedger(group_size=2, steps=9, lease_timeout_s=60.0)
    (first, _) = joins(ledger, "a", 2, "eu")
    joins(ledger, "c", 2, "us")
    ledger.now_s += 0.5
    ledger.deliver(first)
    ledger.tell(EvalAsked((1, 2)))
    hedges = [lease for _ in range(8) for lease in leases_of(ledger.tick(1.0)) if lease.hedges]
    assert {hedge.purpose for hedge in hedges} <= {"eval"}
    assert hedges


# ---- a whole job in three regions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eu", "us", "asia"])
def test_a_job_in_three_regions_pauses_for_the_patience_and_one_sample_while_one_stands_still(name: str) -> None:
    fleet = Fleet()
    fleet.run(60.0)
    fleet.stop(name, 30.0)
    fleet.run(120.0)
    assert fleet.longest_pause_s(55.0, 120.0) <= 6.0, "2.5 s until it is noticed, a slot, and a sample of up to 2 s"
    assert fleet.num_hedges > 0


def test_a_region_that_stands_still_three_times_makes_no_longer_pauses() -> None:
    fleet = Fleet()
    for begin_s in (60.0, 120.0, 180.0):
        fleet.run(begin_s)
        fleet.stop("us", 30.0)
        fleet.run(begin_s + 55.0)
        assert fleet.longest_pause_s(begin_s - 5.0, begin_s + 55.0) <= 6.5


def test_without_hedges_such_a_job_stands_still() -> None:
    fleet = Fleet(hedge=False)
    fleet.run(60.0)
    fleet.stop("eu", 30.0)
    fleet.run(120.0)
    assert fleet.longest_pause_s(55.0, 120.0) > 15.0
    assert fleet.num_hedges == 0


@pytest.mark.parametrize("bound", [0, 1, 2])
@pytest.mark.parametrize("speeds", [(1.0, 1.0, 1.0), (1.0, 0.5, 0.2)])
def test_a_healthy_job_leases_almost_nothing_twice(bound: int, speeds: tuple[float, float, float]) -> None:
    fleet = Fleet(bound=bound, speeds=speeds)
    fleet.run(150.0)
    assert fleet.num_hedges <= 0.02 * fleet.num_leases
