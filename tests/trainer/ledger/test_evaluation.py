"""Tests of evaluations: one greedy sample of each item, before training and while it goes on."""

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from tests.support.ledger.checked import Desk, answer, leases_of, of
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
    ledger_service = Desk(group_size=2)
    ledger_service.deliver(*ledger_service.worker("a", 2)[:2])
    leases = leases_of(ledger_service.tell(EvalAsked((7, 8))))
    assert [(x.item, x.group, x.purpose, x.start_at) for x in leases] == [
        (7, EVAL_GROUPS_START, Purpose.EVAL, Policy(0, 0)),
        (8, EVAL_GROUPS_START + 1, Purpose.EVAL, Policy(0, 0)),
    ]
    (ready,) = of(ledger_service.deliver(*reversed(leases)), EvalReady)
    assert [x.item for x in ready.results] == [7, 8]
    assert not ledger_service.ledger.state.groups.keys() & {x.group for x in leases}


def test_an_evaluation_takes_no_room_for_tokens_and_no_place_in_the_pipeline() -> None:
    ledger_service = Desk(group_size=1, bound=1)
    before = len(ledger_service.worker("a", 99)), ledger_service.ledger.state.reserved_tokens
    (lease,) = leases_of(ledger_service.tell(EvalAsked((7,))))
    assert (len(ledger_service.granted()) - 1, ledger_service.ledger.state.reserved_tokens) == before
    ledger_service.deliver(lease, num_tokens=5)
    assert ledger_service.ledger.state.reserved_tokens == before[1]


def test_what_a_dead_worker_had_of_an_evaluation_moves() -> None:
    ledger_service = Desk(steps=1)
    ledger_service.worker("a", 2)
    (lease,) = leases_of(ledger_service.tell(EvalAsked((7,))))
    ledger_service.worker("b", 1)
    again = leases_of(ledger_service.tell(WorkerLeft("a")))
    assert again[0].group == lease.group, "before all training"


def test_an_evaluation_ends_without_the_samples_that_failed() -> None:
    ledger_service = Desk(max_attempts=2)
    ledger_service.worker("a", 9)
    bad, good = leases_of(ledger_service.tell(EvalAsked((7, 8))))
    ledger_service.deliver(good)
    (again,) = leases_of(ledger_service.tell(SampleFailed("a", bad.lease_id)))
    effects = ledger_service.tell(SampleFailed("a", again.lease_id))
    assert of(effects, GroupDropped) == [GroupDropped(bad.group, Drop.FAILED, ())]
    assert [[x.item for x in ready.results] for ready in of(effects, EvalReady)] == [[8]]


def test_an_evaluation_of_which_everything_failed_or_nothing_was_asked_is_empty() -> None:
    ledger_service = Desk(max_attempts=1)
    ledger_service.worker("a", 9)
    assert of(ledger_service.tell(EvalAsked(())), EvalReady) == [EvalReady(())]
    ledger_service.tell(EvalAsked((7,)))
    lease = ledger_service.granted()[-1]
    assert of(ledger_service.tell(SampleFailed("a", lease.lease_id)), EvalReady) == [EvalReady(())]


def test_rewards_of_an_evaluation_are_never_filtered() -> None:
    ledger_service = Desk(filter_uniform=True)
    ledger_service.worker("a", 9)
    (lease,) = leases_of(ledger_service.tell(EvalAsked((7,))))
    assert len(of(ledger_service.deliver(lease), EvalReady)) == 1


def test_a_result_of_an_evaluation_that_is_over_is_a_duplicate_and_numbers_go_on() -> None:
    ledger_service = Desk()
    ledger_service.worker("a", 9)
    (lease,) = leases_of(ledger_service.tell(EvalAsked((7,))))
    ledger_service.deliver(lease)
    assert ledger_service.judge(answer(lease, Policy(0, 0))) is Arrival.DUPLICATE
    (other,) = leases_of(ledger_service.tell(EvalAsked((7,))))
    assert other.group == lease.group + 1


def test_an_evaluation_that_moves_after_a_step_is_of_the_newer_version() -> None:
    ledger_service = Desk(group_size=1)
    (first,) = ledger_service.worker("a", 1)[:1]
    (old,) = leases_of(ledger_service.tell(EvalAsked((7,))))
    ledger_service.deliver(first)
    ledger_service.train()
    ledger_service.tell(WorkerLeft("a"))
    moved = ledger_service.worker("b", 1)
    assert moved[0].group == old.group
    assert moved[0].start_at == Policy(0, 1)
    (late,) = of(ledger_service.tell(ResultArrived(answer(old, Policy(0, 0)))), JudgedResult)
    assert late.arrival is Arrival.TOO_OLD
