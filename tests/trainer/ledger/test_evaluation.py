"""Tests of evaluations: one greedy sample of each item, before training and while it goes on."""

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from tests.support.ledger.checked import CheckedLedger, answer, leases_of, of_kind
from trainer.ledger.values import (
    EVAL_GROUPS_START,
    Arrival,
    Drop,
    EvalAsked,
    EvalReady,
    GroupDropped,
    JudgedResult,
    ResultArrived,
    SampleFailed,
    WorkerLeft,
)


def test_an_evaluation_goes_to_workers_that_are_full_and_comes_back_in_the_order_asked_for() -> None:
    ledger = CheckedLedger(group_size=2)
    ledger.deliver(*ledger.worker("a", 2)[:2])
    leases = leases_of(ledger.tell(EvalAsked((7, 8))))
    assert [(x.item, x.group, x.purpose, x.start_at) for x in leases] == [
        (7, EVAL_GROUPS_START, Purpose.EVAL, Policy(0, 0)),
        (8, EVAL_GROUPS_START + 1, Purpose.EVAL, Policy(0, 0)),
    ]
    (ready,) = of_kind(ledger.deliver(*reversed(leases)), EvalReady)
    assert [x.item for x in ready.results] == [7, 8]
    assert not ledger.machine.state.groups.keys() & {x.group for x in leases}


def test_an_evaluation_takes_no_room_for_tokens_and_no_place_in_the_pipeline() -> None:
    ledger = CheckedLedger(group_size=1, bound=1)
    before = len(ledger.worker("a", 99)), ledger.machine.state.reserved_tokens
    (lease,) = leases_of(ledger.tell(EvalAsked((7,))))
    assert (len(ledger.granted()) - 1, ledger.machine.state.reserved_tokens) == before
    ledger.deliver(lease, num_tokens=5)
    assert ledger.machine.state.reserved_tokens == before[1]


def test_what_a_dead_worker_had_of_an_evaluation_moves() -> None:
    ledger = CheckedLedger(steps=1)
    ledger.worker("a", 2)
    (lease,) = leases_of(ledger.tell(EvalAsked((7,))))
    ledger.worker("b", 1)
    again = leases_of(ledger.tell(WorkerLeft("a")))
    assert again[0].group == lease.group, "before all training"


def test_an_evaluation_ends_without_the_samples_that_failed() -> None:
    ledger = CheckedLedger(max_attempts=2)
    ledger.worker("a", 9)
    bad, good = leases_of(ledger.tell(EvalAsked((7, 8))))
    ledger.deliver(good)
    (again,) = leases_of(ledger.tell(SampleFailed("a", bad.lease_id)))
    effects = ledger.tell(SampleFailed("a", again.lease_id))
    assert of_kind(effects, GroupDropped) == [GroupDropped(bad.group, Drop.FAILED, ())]
    assert [[x.item for x in ready.results] for ready in of_kind(effects, EvalReady)] == [[8]]


def test_an_evaluation_of_which_everything_failed_or_nothing_was_asked_is_empty() -> None:
    ledger = CheckedLedger(max_attempts=1)
    ledger.worker("a", 9)
    assert of_kind(ledger.tell(EvalAsked(())), EvalReady) == [EvalReady(())]
    ledger.tell(EvalAsked((7,)))
    lease = ledger.granted()[-1]
    assert of_kind(ledger.tell(SampleFailed("a", lease.lease_id)), EvalReady) == [EvalReady(())]


def test_rewards_of_an_evaluation_are_never_filtered() -> None:
    ledger = CheckedLedger(filter_uniform=True)
    ledger.worker("a", 9)
    (lease,) = leases_of(ledger.tell(EvalAsked((7,))))
    assert len(of_kind(ledger.deliver(lease), EvalReady)) == 1


def test_a_result_of_an_evaluation_that_is_over_is_a_duplicate_and_numbers_go_on() -> None:
    ledger = CheckedLedger()
    ledger.worker("a", 9)
    (lease,) = leases_of(ledger.tell(EvalAsked((7,))))
    ledger.deliver(lease)
    assert ledger.admit(answer(lease, Policy(0, 0))) is Arrival.DUPLICATE
    (other,) = leases_of(ledger.tell(EvalAsked((7,))))
    assert other.group == lease.group + 1


def test_an_evaluation_that_moves_after_a_step_is_of_the_newer_version() -> None:
    ledger = CheckedLedger(group_size=1)
    (first,) = ledger.worker("a", 1)[:1]
    (old,) = leases_of(ledger.tell(EvalAsked((7,))))
    ledger.deliver(first)
    ledger.train()
    ledger.tell(WorkerLeft("a"))
    moved = ledger.worker("b", 1)
    assert moved[0].group == old.group
    assert moved[0].start_at == Policy(0, 1)
    (late,) = of_kind(ledger.tell(ResultArrived(answer(old, Policy(0, 0)))), JudgedResult)
    assert late.arrival is Arrival.TOO_OLD


def test_an_evaluation_in_the_background_takes_a_small_share_and_no_room_of_training() -> None:
    ledger = CheckedLedger(group_size=1, bound=3)
    ledger.worker("a", 16)
    trained = [lease for lease in ledger.granted() if lease.purpose is Purpose.TRAIN]
    free = ledger.machine.state.workers["a"].free
    leases = leases_of(ledger.tell(EvalAsked((7, 8, 9, 7), is_background=True)))
    assert [lease.item for lease in leases] == [7, 8], "two of sixteen"
    assert ledger.machine.state.workers["a"].free == free
    assert len(trained) == len([lease for lease in ledger.granted() if lease.purpose is Purpose.TRAIN])


def test_an_evaluation_in_the_background_comes_back_in_the_order_asked_for_with_an_item_twice() -> None:
    ledger = CheckedLedger(group_size=1)
    ledger.worker("a", 8)
    (first,) = leases_of(ledger.tell(EvalAsked((7, 7), is_background=True)))
    effects = ledger.deliver(first)
    (second,) = (lease for lease in leases_of(effects) if lease.purpose is Purpose.EVAL)
    (ready,) = of_kind(ledger.deliver(second), EvalReady)
    assert [(x.item, x.group) for x in ready.results] == [(7, EVAL_GROUPS_START), (7, EVAL_GROUPS_START + 1)]


def test_a_lost_sample_of_an_evaluation_in_the_background_is_leased_to_another_worker() -> None:
    ledger = CheckedLedger(group_size=1)
    ledger.worker("a", 8)
    (lease,) = leases_of(ledger.tell(EvalAsked((7,), is_background=True)))
    ledger.worker("b", 8)
    again = [x for x in leases_of(ledger.tell(WorkerLeft("a"))) if x.purpose is Purpose.EVAL]
    assert [x.group for x in again] == [lease.group]
