"""Tests of the consumption gate: which groups are trained on, which are waited for, and which are given up."""

import pytest

from periplus.values.policy import Policy
from tests.support.ledger.checked import HOLD_S, CheckedLedger, answer, leases_of, of_kind
from tests.support.ledger.oracle import next_due_s
from trainer.ledger.consumption import LOST_HOLD_STEPS
from trainer.ledger.values import (
    AllWorkersLeft,
    Arrival,
    BatchReady,
    BatchWanted,
    Drop,
    GroupDropped,
    Holding,
    Lease,
    LeasesStarted,
    PolicyReached,
    ResultArrived,
    Revoked,
    SampleFailed,
    StepDone,
    WorkerLeft,
)


def lease_of(ledger: CheckedLedger, group: int, sample: int = 0) -> Lease:
    return next(x for x in reversed(ledger.granted()) if (x.group, x.sample) == (group, sample))


def straggling(*, steps: int = 99, lease_timeout_s: float = 1e6) -> CheckedLedger:
    """Return a ledger of bound 1, one group a step: group 0 hangs, group 1 was trained on, and group 2 is whole."""
    ledger = CheckedLedger(group_size=1, bound=1, steps=steps, lease_timeout_s=lease_timeout_s)
    assert [lease.group for lease in ledger.worker("hung", 1)] == [0]
    ledger.worker("a", 9)
    ledger.tell(LeasesStarted("hung", (1,), Policy(0, 0)))
    ledger.deliver(lease_of(ledger, 1))
    assert ledger.train().policy == Policy(0, 0)
    ledger.deliver(lease_of(ledger, 2))
    return ledger


def test_a_batch_is_whole_groups_sorted_by_group_and_sample() -> None:
    ledger = CheckedLedger(groups_per_step=2, group_size=2)
    leases = ledger.worker("a", 4)[:4]
    ledger.tell(BatchWanted())
    for lease in reversed(leases):
        effects = ledger.tell(ResultArrived(answer(lease, Policy(0, 0))))
    (batch,) = of_kind(effects, BatchReady)
    assert batch.policy == Policy(0, 0)
    assert [(x.group, x.sample) for x in batch.results] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_batch_comes_only_when_it_is_wanted_and_once() -> None:
    ledger = CheckedLedger(group_size=1)
    first, early = ledger.worker("a", 2)
    assert of_kind(ledger.deliver(first), BatchReady) == []
    assert len(of_kind(ledger.tell(BatchWanted()), BatchReady)) == 1
    ledger.tell(StepDone())
    assert of_kind(ledger.deliver(early), BatchReady) == []
    assert [x.group for x in of_kind(ledger.tell(BatchWanted()), BatchReady)[0].results] == [1]


def test_the_groups_that_expire_first_are_trained_on_first() -> None:
    ledger = CheckedLedger(group_size=1, bound=2, steps=99)
    ledger.worker("a", 9)
    ledger.deliver(lease_of(ledger, 1))
    ledger.train()
    young, old = lease_of(ledger, 0), lease_of(ledger, 2)
    ledger.tell(LeasesStarted("a", (young.lease_id,), Policy(0, 1)))
    ledger.tell(ResultArrived(answer(young, Policy(0, 1))))
    ledger.tell(ResultArrived(answer(old, Policy(0, 0))))
    assert [x.group for x in ledger.train().results] == [2], "version 0 before version 1, whatever their numbers"
    assert [x.group for x in ledger.train().results] == [0]


def test_the_trainer_holds_for_a_group_that_it_would_leave_behind_too_old() -> None:
    ledger = straggling()
    effects = ledger.tell(BatchWanted())
    assert of_kind(effects, BatchReady) == []
    assert of_kind(effects, Holding) == [Holding((0,), ledger.now_s + HOLD_S)]
    assert next_due_s(ledger.machine) == ledger.now_s + HOLD_S
    assert ledger.tick(HOLD_S - 0.1) == (), "it is said once"


def test_a_hold_ends_as_soon_as_what_is_missing_comes_in() -> None:
    ledger = straggling()
    ledger.tell(BatchWanted())
    effects = ledger.tell(ResultArrived(answer(ledger.granted()[0], Policy(0, 0), "hung")))
    assert [x.group for x in of_kind(effects, BatchReady)[0].results] == [0]
    assert of_kind(effects, GroupDropped) == []


def test_only_what_is_missing_is_dropped_after_a_hold_and_its_room_is_free_and_its_leases_revoked() -> None:
    ledger = straggling()
    ledger.tell(BatchWanted())
    effects = ledger.tick(HOLD_S)
    assert of_kind(effects, GroupDropped) == [GroupDropped(0, Drop.OVERDUE, ())]
    assert of_kind(effects, Revoked) == [Revoked("hung", (1,))]
    assert [x.group for x in of_kind(effects, BatchReady)[0].results] == [2]
    assert ledger.admit(answer(ledger.granted()[0], Policy(0, 0), "hung")) is Arrival.LATE
    assert 3 in ledger.machine.state.groups, "a young unfinished group stays"


def test_a_dropped_group_hands_back_the_results_that_it_had() -> None:
    ledger = CheckedLedger(group_size=2, bound=1, steps=99, lease_timeout_s=1e6)
    ledger.worker("hung", 1)
    ledger.worker("a", 9)
    ledger.deliver(lease_of(ledger, 0, 1), lease_of(ledger, 1, 0), lease_of(ledger, 1, 1))
    ledger.train()
    ledger.deliver(lease_of(ledger, 2, 0), lease_of(ledger, 2, 1))
    ledger.tell(BatchWanted())
    (dropped,) = of_kind(ledger.tick(HOLD_S), GroupDropped)
    assert (dropped.group, [x.sample for x in dropped.results]) == (0, [1])


def test_a_new_hold_has_the_whole_time_again() -> None:
    ledger = straggling()
    ledger.tell(BatchWanted())
    ledger.tick(HOLD_S)
    assert ledger.machine.state.hold_since_s is None
    ledger.tell(StepDone())
    ledger.deliver(lease_of(ledger, 4))
    assert [x.group for x in ledger.train().results] == [4]
    ledger.tell(PolicyReached("a", ledger.policy))
    ledger.deliver(lease_of(ledger, 5))
    assert of_kind(ledger.tell(BatchWanted()), Holding) == [Holding((3,), ledger.now_s + HOLD_S)]


def test_nothing_is_held_for_while_what_is_left_behind_can_still_be_consumed() -> None:
    ledger = CheckedLedger(group_size=1, bound=2, steps=99)
    ledger.worker("a", 9)
    ledger.deliver(lease_of(ledger, 1))
    assert [x.group for x in ledger.train().results] == [1]
    assert of_kind(tuple(ledger.effects), Holding) == []


def test_the_trainer_does_not_hold_for_a_group_that_nobody_produces() -> None:
    """The worker of the group died with all its samples, so they will be produced from a newer version anyway."""
    ledger = CheckedLedger(group_size=1, bound=1, steps=99)
    ledger.worker("a", 9)
    ledger.tell(WorkerLeft("a"))
    ledger.deliver(lease_of(ledger, 1))
    ledger.train()
    ledger.deliver(lease_of(ledger, 2))
    effects = ledger.tell(BatchWanted())
    assert of_kind(effects, Holding) == []
    assert [x.group for x in of_kind(effects, BatchReady)[0].results] == [2]
    assert of_kind(effects, GroupDropped) == []
    ledger.tell(StepDone())
    assert {lease.start_at.version for lease in ledger.worker("b", 1) if lease.group == 0} == {2}


def test_a_hold_for_nothing_but_what_a_dead_worker_had_is_short() -> None:
    """The lost sample is produced again from its start; no live lease is ended, and no other sample waits for it."""
    ledger = CheckedLedger(group_size=2, bound=1, steps=99, lease_timeout_s=1e6, max_hold_s=1e3)
    ledger.worker("dies", 1)
    ledger.worker("a", 9)
    ledger.deliver(lease_of(ledger, 0, 1), lease_of(ledger, 1, 0), lease_of(ledger, 1, 1))
    ledger.train(for_s=8.0)
    ledger.deliver(lease_of(ledger, 2, 0), lease_of(ledger, 2, 1))
    ledger.tell(WorkerLeft("dies"))
    assert of_kind(ledger.tell(BatchWanted()), Holding)
    soon_s = 8.0 * LOST_HOLD_STEPS
    assert next_due_s(ledger.machine) == ledger.now_s + soon_s
    assert ledger.tick(soon_s - 0.1) == ()
    effects = ledger.tick(0.2)
    assert [(x.group, x.why) for x in of_kind(effects, GroupDropped)] == [(0, Drop.OVERDUE)]
    assert len(of_kind(effects, BatchReady)) == 1


def test_a_hold_for_what_was_on_its_way_when_the_connection_was_lost_is_not_short() -> None:
    ledger = CheckedLedger(group_size=2, bound=1, steps=99, lease_timeout_s=1e6, max_hold_s=1e3)
    ledger.worker("b", 1)
    ledger.worker("a", 9)
    ledger.deliver(lease_of(ledger, 0, 1), lease_of(ledger, 1, 0), lease_of(ledger, 1, 1))
    ledger.train(for_s=8.0)
    ledger.deliver(lease_of(ledger, 2, 0), lease_of(ledger, 2, 1))
    ledger.tell(AllWorkersLeft())
    ledger.worker("a", 9)
    assert of_kind(ledger.tell(BatchWanted()), Holding)
    assert ledger.tick(8.0) == ()
    effects = ledger.deliver(lease_of(ledger, 0, 0))
    assert of_kind(effects, GroupDropped) == []
    assert len(of_kind(effects, BatchReady)) == 1


def test_a_hold_for_lost_and_for_live_work_lasts_for_the_live_one() -> None:
    ledger = CheckedLedger(group_size=2, bound=1, steps=99, lease_timeout_s=1e6, max_hold_s=1e3)
    ledger.worker("dies", 1)
    ledger.worker("a", 9)
    ledger.deliver(lease_of(ledger, 1, 0), lease_of(ledger, 1, 1))
    ledger.train(for_s=8.0)
    ledger.deliver(lease_of(ledger, 2, 0), lease_of(ledger, 2, 1))
    ledger.tell(WorkerLeft("dies"))
    ledger.tell(BatchWanted())
    assert ledger.tick(900.0) == ()


def test_a_group_whose_rewards_are_all_equal_is_replaced_where_groups_are_filtered() -> None:
    ledger = CheckedLedger(group_size=2, filter_uniform=True)
    leases = ledger.worker("a", 2)[:2]
    ledger.tell(BatchWanted())
    effects = ledger.deliver(*leases, outcome=1.0)
    assert [(x.group, x.why, len(x.results)) for x in of_kind(effects, GroupDropped)] == [(0, Drop.FILTERED, 2)]
    assert of_kind(effects, BatchReady) == []
    assert {x.start_at for x in leases_of(effects) if x.group > 1} == {Policy(0, 0)}


@pytest.mark.parametrize(("second", "is_kept"), [(None, False), (1.0, False), (0.0, True)])
def test_samples_that_no_function_judged_make_no_difference_to_the_filter(second: float | None, is_kept: bool) -> None:
    ledger = CheckedLedger(group_size=3, filter_uniform=True)
    leases = ledger.worker("a", 3)[:3]
    ledger.tell(BatchWanted())
    for lease, outcome in zip(leases, (1.0, None, second), strict=True):
        effects = ledger.deliver(lease, outcome=outcome)
    assert bool(of_kind(effects, BatchReady)) is is_kept
    assert bool(of_kind(effects, GroupDropped)) is not is_kept


def test_a_group_whose_rewards_differ_is_kept() -> None:
    ledger = CheckedLedger(group_size=2, filter_uniform=True)
    first, second, *_ = ledger.worker("a", 2)
    ledger.tell(BatchWanted())
    ledger.deliver(first, outcome=1.0)
    assert len(of_kind(ledger.deliver(second, outcome=0.0), BatchReady)) == 1


def test_filtering_ends_so_that_a_problem_set_without_signal_still_makes_steps() -> None:
    ledger = CheckedLedger(groups_per_step=1, group_size=1, filter_uniform=True, max_filtered_per_step=3)
    ledger.worker("a", 9)
    for step in range(2):
        ledger.tell(BatchWanted())
        for _ in range(4):
            present = [
                x for x in ledger.granted() if x.start_at == ledger.policy and x.group in ledger.machine.state.groups
            ]
            effects = ledger.deliver(present[0])
        assert len(of_kind(effects, BatchReady)) == 1
        assert len(of_kind(tuple(ledger.effects), GroupDropped)) == 3 * (step + 1)
        ledger.tell(StepDone())


def test_rewards_are_no_matter_where_groups_are_not_filtered() -> None:
    ledger = CheckedLedger(group_size=2)
    ledger.deliver(*ledger.worker("a", 2)[:2])
    assert len(ledger.train().results) == 2


def test_a_hold_ends_when_what_was_waited_for_is_lost_and_begins_anew_from_a_newer_version() -> None:
    ledger = straggling()
    ledger.tell(BatchWanted())
    effects = ledger.tell(SampleFailed("hung", 1))
    assert [x.group for x in of_kind(effects, BatchReady)[0].results] == [2]
    assert of_kind(effects, GroupDropped) == []
    assert lease_of(ledger, 0).start_at == Policy(0, 1), "at bound 1 it can be consumed by the step after this"


def test_a_hold_ends_when_the_group_that_was_waited_for_is_given_up() -> None:
    ledger = CheckedLedger(group_size=2, bound=1, steps=99, lease_timeout_s=1e6, max_attempts=1)
    ledger.worker("hung", 1)
    ledger.worker("a", 9)
    ledger.deliver(lease_of(ledger, 0, 1), lease_of(ledger, 1, 0), lease_of(ledger, 1, 1))
    ledger.train()
    ledger.deliver(lease_of(ledger, 2, 0), lease_of(ledger, 2, 1))
    assert of_kind(ledger.tell(BatchWanted()), Holding)
    effects = ledger.tell(SampleFailed("hung", 1))
    assert [(x.group, x.why) for x in of_kind(effects, GroupDropped)] == [(0, Drop.FAILED)]
    assert len(of_kind(effects, BatchReady)) == 1
