"""The ledger against workers that join, hang, die, repeat themselves and answer late, and against other forks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from periplus.errors import StateError
from periplus.policy import Policy
from periplus.trajectory import PolicyRun, Purpose, StopReason, Trajectory
from trainer.gate import inspect
from trainer.ledger import EVAL_GROUPS_START, Arrival, Grant, Lease, Ledger, LedgerLimits, merged

TIMEOUT_S = 10.0
WORKERS = ("a", "b", "c")


def new_ledger(
    *, bound: int = 0, groups: int = 1, size: int = 2, steps: int = 3, lookahead: int = 1, start: int = 0, fork: int = 0
) -> Ledger:
    limits = LedgerLimits(
        groups_per_step=groups, group_size=size, bound=bound, steps=steps, lookahead_steps=lookahead,
        lease_timeout_s=TIMEOUT_S,
    )  # fmt: skip
    return Ledger(limits, Policy(fork, start), lambda group: 100 + group)


def result(lease: Lease, policy: Policy, worker_id: str = "a") -> Trajectory:
    return Trajectory(
        lease_id=lease.lease_id, group=lease.group, sample=lease.sample, item=lease.item, purpose=lease.purpose,
        prompt_ids=(1,), completion_ids=(2, 3), logprobs=np.zeros(2, np.float32), mask=(1, 1),
        policies=(PolicyRun(policy, 2),), reward=0.0, stop_reason=StopReason.EOS, worker_id=worker_id, generation_s=0.0,
    )  # fmt: skip


def leases_of(grants: Sequence[Grant]) -> tuple[Lease, ...]:
    return tuple(lease for grant in grants for lease in grant.leases)


def joined(ledger: Ledger, worker_id: str, capacity: int, now_s: float = 0.0) -> tuple[Lease, ...]:
    ledger.worker_joined(worker_id, now_s)
    return leases_of(ledger.has_capacity(worker_id, capacity, now_s))


def deliver(ledger: Ledger, leases: Sequence[Lease], policy: Policy, worker_id: str = "a") -> tuple[Lease, ...]:
    granted: list[Lease] = []
    for lease in leases:
        arrival, grants = ledger.arrived(result(lease, policy, worker_id), 0.0)
        assert arrival is Arrival.ACCEPTED
        granted += leases_of(grants)
    return tuple(granted)


def consume(ledger: Ledger) -> tuple[Lease, ...]:
    assert ledger.take(ledger.groups_of_step()) is not None
    return leases_of(ledger.advanced(0.0))


def startable(leases: Sequence[Lease], policy: Policy) -> tuple[Lease, ...]:
    return tuple(lease for lease in leases if lease.start_at <= policy)


class LedgerMachine(RuleBasedStateMachine):
    """The world around a ledger: what every worker really holds, hung or not, and everything that was ever granted."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, list[Lease]] = {}
        self.capacity: dict[str, int] = {}
        self.granted: list[Lease] = []
        self.accepted: set[tuple[int, int]] = set()
        self.eval_groups: tuple[int, ...] = ()
        self.now_s = 0.0

    @initialize(
        bound=st.integers(0, 2), groups=st.integers(1, 2), size=st.integers(1, 3), steps=st.integers(1, 4),
        lookahead=st.integers(0, 2), start=st.integers(0, 2), fork=st.integers(0, 1),
    )  # fmt: skip
    def begin(
        self, bound: int, groups: int, size: int, steps: int, lookahead: int, start: int, fork: int
    ) -> None:  # fmt: skip
        self.bound, self.groups, self.size = bound, groups, size
        self.fork, self.steps = fork, steps + start
        self.ledger = new_ledger(
            bound=bound, groups=groups, size=size, steps=self.steps, lookahead=lookahead, start=start, fork=fork
        )

    # ---- what may happen ------------------------------------------------------------------------------------------

    @rule(worker=st.sampled_from(WORKERS), capacity=st.integers(0, 5))
    def join(self, worker: str, capacity: int) -> None:
        self.held[worker], self.capacity[worker] = [], 0
        self.receive(self.ledger.worker_joined(worker, self.now_s), moved=True)
        self.capacity[worker] = capacity
        self.receive(self.ledger.has_capacity(worker, capacity, self.now_s))

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: str) -> None:
        self.held.pop(worker, None)
        self.receive(self.ledger.worker_gone(worker, self.now_s), moved=True)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([worker for worker, held in self.held.items() if held]))
        able = startable(self.held[worker], self.ledger.policy)
        if able:
            lease = data.draw(st.sampled_from(able))
            self.held[worker].remove(lease)
            version = data.draw(st.integers(lease.start_at.version, self.ledger.policy.version))
            self.arrive(result(lease, Policy(self.fork, version), worker))

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), age=st.integers(-2, 6), fork=st.integers(-1, 1), worker=st.sampled_from(WORKERS))
    def repeat_or_invent(self, data: st.DataObject, age: int, fork: int, worker: str) -> None:
        lease = data.draw(st.sampled_from(self.granted))
        policy = Policy(max(0, self.fork + fork), max(0, self.ledger.policy.version - age))
        self.arrive(result(lease, policy, worker))

    @rule(seconds=st.sampled_from([0.0, 1.0, TIMEOUT_S]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.receive(self.ledger.tick(self.now_s), moved=True)

    @precondition(lambda self: not self.eval_groups)
    @rule(num_items=st.integers(1, 3))
    def open_eval(self, num_items: int) -> None:
        self.eval_groups, grants = self.ledger.open_eval(tuple(range(num_items)), self.now_s)
        self.receive(grants, moved=True)

    @rule()
    def consume_what_is_there(self) -> None:
        if self.eval_groups:
            if (batch := self.ledger.take(self.eval_groups)) is not None:
                assert [t.group for t in batch] == list(self.eval_groups)
                self.eval_groups = ()
            return
        consumer = self.ledger.policy
        if consumer.version == self.steps or (batch := self.ledger.take(self.ledger.groups_of_step())) is None:
            return
        first = consumer.version * self.groups
        whole = [(group, sample) for group in range(first, first + self.groups) for sample in range(self.size)]
        assert [(t.group, t.sample) for t in batch] == whole
        assert inspect(batch, consumer, self.bound).violations == 0
        self.receive(self.ledger.advanced(self.now_s))

    # ---- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_leased_to_who_is_not_there(self) -> None:
        assert set(self.ledger.outstanding_by_worker) <= set(self.held)

    def arrive(self, trajectory: Trajectory) -> None:
        arrival, grants = self.ledger.arrived(trajectory, self.now_s)
        if arrival is Arrival.ACCEPTED:
            assert (trajectory.group, trajectory.sample) not in self.accepted
            self.accepted.add((trajectory.group, trajectory.sample))
        self.receive(grants, moved=arrival is not Arrival.ACCEPTED)

    def receive(self, grants: Sequence[Grant], *, moved: bool = False) -> None:
        for grant in grants:
            for lease in grant.leases:
                assert (lease.group, lease.sample) not in self.accepted
                assert lease.item == (100 + lease.group if lease.purpose is Purpose.TRAIN else lease.item)
                if lease.purpose is Purpose.TRAIN:
                    step = lease.group // self.groups
                    assert lease.start_at == Policy(self.fork, max(0, step - self.bound))
                    assert lease.consume_by_version == step < self.steps
            self.held[grant.worker_id] += grant.leases
            self.granted += grant.leases
            assert self.capacity[grant.worker_id] > 0
            outstanding = self.ledger.outstanding_by_worker[grant.worker_id]
            assert moved or outstanding <= self.capacity[grant.worker_id]

    def teardown(self) -> None:
        """One worker that delivers is enough to complete everything, whoever hangs beside it."""
        if not hasattr(self, "ledger"):
            return
        self.join("z", 1)
        for _ in range(40 * self.steps * self.groups * self.size):
            while able := startable(self.held["z"], self.ledger.policy):
                self.held["z"].remove(able[0])
                self.arrive(result(able[0], self.ledger.policy, "z"))
            self.consume_what_is_there()
            if self.ledger.policy.version == self.steps and not self.eval_groups:
                break
            self.time_passes(TIMEOUT_S)
        assert self.ledger.policy.version == self.steps, "a step never completed"
        assert not self.eval_groups, "the evaluation never completed"
        for worker in [*self.held]:
            assert self.ledger.worker_gone(worker, self.now_s) == (), "work was left over"


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_the_ledger_holds_its_promises_whatever_workers_do = LedgerMachine.TestCase


def test_leases_start_at_the_step_minus_the_bound() -> None:
    leases = joined(new_ledger(bound=2, size=1, steps=9, lookahead=1), "a", 99)
    assert [(lease.group, lease.start_at.version, lease.consume_by_version) for lease in leases] == [
        (0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 3),
    ]  # fmt: skip


def test_a_worker_is_granted_no_more_than_its_capacity() -> None:
    ledger = new_ledger(bound=1, size=4)
    assert len(joined(ledger, "a", 3)) == 3
    assert ledger.outstanding_by_worker == {"a": 3}


def test_a_result_makes_room_for_the_next_lease() -> None:
    ledger = new_ledger(size=4)
    leases = joined(ledger, "a", 1)
    assert len(deliver(ledger, leases, Policy(0, 0))) == 1


def test_leases_of_a_dead_worker_move_beyond_the_capacity_of_the_living() -> None:
    """The living one is full of leases that may not start: without the moved ones nothing would ever come."""
    ledger = new_ledger(bound=0, size=2)
    first = joined(ledger, "a", 2)
    assert {lease.start_at.version for lease in joined(ledger, "b", 2)} == {1}
    moved = ledger.worker_gone("a", 0.0)
    assert [(grant.worker_id, len(grant.leases)) for grant in moved] == [("b", 2)]
    assert {(lease.group, lease.sample) for lease in leases_of(moved)} == {(x.group, x.sample) for x in first}


def test_an_evaluation_goes_beyond_the_capacity_of_workers_that_wait_for_the_next_version() -> None:
    ledger = new_ledger(bound=0, size=2)
    deliver(ledger, startable(joined(ledger, "a", 2), Policy(0, 0)), Policy(0, 0))
    groups, grants = ledger.open_eval((7, 8), 0.0)
    assert [lease.item for lease in leases_of(grants)] == [7, 8]
    assert groups == (EVAL_GROUPS_START, EVAL_GROUPS_START + 1)
    deliver(ledger, leases_of(grants), Policy(0, 0))
    assert ledger.take(groups) is not None


def test_a_hung_worker_does_not_get_back_what_it_let_expire() -> None:
    """The healthy one is full, the hung one looks empty after the expiry: load alone would choose wrongly for ever."""
    ledger = new_ledger(bound=0, size=2)
    joined(ledger, "hung", 2)
    joined(ledger, "well", 2)
    assert [grant.worker_id for grant in ledger.tick(TIMEOUT_S)] == ["well"]


def test_a_worker_that_was_late_is_trusted_again_once_it_delivers() -> None:
    ledger = new_ledger(bound=2, size=1, steps=9)
    late = joined(ledger, "a", 1)
    joined(ledger, "b", 1)
    ledger.tick(TIMEOUT_S)
    arrival, _ = ledger.arrived(result(late[0], Policy(0, 0), "a"), TIMEOUT_S)
    assert arrival is Arrival.ACCEPTED
    assert "a" in {grant.worker_id for grant in ledger.worker_gone("b", TIMEOUT_S)}


def test_a_lease_that_may_not_start_yet_does_not_expire() -> None:
    ledger = new_ledger(bound=0, size=1)
    leases = joined(ledger, "a", 2)
    deliver(ledger, startable(leases, Policy(0, 0)), Policy(0, 0))
    assert ledger.tick(100 * TIMEOUT_S) == ()


def test_the_time_of_a_lease_counts_from_when_it_may_start() -> None:
    ledger = new_ledger(bound=0, size=1, lookahead=1, steps=2)
    deliver(ledger, startable(joined(ledger, "a", 2), Policy(0, 0)), Policy(0, 0))
    assert ledger.take(ledger.groups_of_step()) is not None
    ledger.advanced(50.0)
    assert ledger.tick(50.0 + TIMEOUT_S / 2) == ()
    assert len(leases_of(ledger.tick(50.0 + TIMEOUT_S))) == 1


def test_the_first_result_wins_and_later_ones_are_duplicates_even_after_they_were_consumed() -> None:
    ledger = new_ledger(size=1)
    lease = joined(ledger, "a", 1)[0]
    deliver(ledger, [lease], Policy(0, 0))
    assert ledger.arrived(result(lease, Policy(0, 0)), 0.0)[0] is Arrival.DUPLICATE
    consume(ledger)
    assert ledger.arrived(result(lease, Policy(0, 0)), 0.0)[0] is Arrival.DUPLICATE
    assert ledger.num_duplicates == 2


def test_a_lease_whose_sample_came_from_another_worker_is_not_leased_again_when_its_holder_dies() -> None:
    ledger = new_ledger(size=1, steps=1)
    late = joined(ledger, "a", 1)[0]
    joined(ledger, "b", 1)
    ledger.tick(TIMEOUT_S)
    deliver(ledger, [late], Policy(0, 0))
    assert consume(ledger) == ()
    assert ledger.worker_gone("b", TIMEOUT_S) == ()
    assert ledger.arrived(result(late, Policy(0, 0)), 0.0)[0] is Arrival.DUPLICATE


def test_a_result_of_an_older_fork_is_unknown_and_ends_no_lease_of_this_one() -> None:
    """Lease numbers start anew with each fork, so an old result may carry the number of a lease of today."""
    ledger = new_ledger(size=2, steps=1, fork=1)
    first, second = joined(ledger, "a", 2)
    stray = replace(result(first, Policy(0, 0)), lease_id=second.lease_id)
    assert ledger.arrived(stray, 0.0)[0] is Arrival.UNKNOWN
    ledger.worker_gone("a", 0.0)
    assert {(x.group, x.sample) for x in joined(ledger, "b", 2)} == {(0, 0), (0, 1)}


@pytest.mark.parametrize("version", [1, 3])
def test_a_result_of_a_policy_outside_the_lease_is_refused_and_leased_again(version: int) -> None:
    ledger = new_ledger(bound=0, size=1, steps=4, start=2)
    lease = joined(ledger, "a", 1)[0]
    arrival, grants = ledger.arrived(result(lease, Policy(0, version)), 0.0)
    assert arrival is Arrival.TOO_OLD
    assert [(x.group, x.sample) for x in leases_of(grants)] == [(lease.group, lease.sample)]


@pytest.mark.parametrize(
    "change",
    [
        {"item": 1},
        {"purpose": Purpose.EVAL},
        {"policies": (), "completion_ids": (), "mask": (), "logprobs": np.zeros(0, np.float32)},
    ],
)
def test_a_result_that_is_not_what_was_leased_is_refused_and_leased_again(change: dict[str, object]) -> None:
    ledger = new_ledger(size=1)
    lease = joined(ledger, "a", 1)[0]
    arrival, grants = ledger.arrived(replace(result(lease, Policy(0, 0)), **change), 0.0)  # type: ignore[arg-type]
    assert arrival is Arrival.UNFIT
    assert [(x.group, x.sample) for x in leases_of(grants)] == [(lease.group, lease.sample)]


def test_refused_results_do_not_wear_out_a_worker_that_is_over_its_capacity() -> None:
    """It holds moved leases beyond its room: a refused one must be leased again all the same, or its step hangs."""
    ledger = new_ledger(bound=0, size=1)
    joined(ledger, "a", 1)
    joined(ledger, "b", 1)
    (moved,) = leases_of(ledger.worker_gone("a", 0.0))
    arrival, grants = ledger.arrived(result(moved, Policy(0, 5), "b"), 0.0)
    assert arrival is Arrival.TOO_OLD
    assert len(leases_of(grants)) == 1


def test_a_sample_that_was_never_leased_is_unknown() -> None:
    ledger = new_ledger(size=1)
    lease = replace(joined(ledger, "a", 1)[0], group=10_000)
    assert ledger.arrived(result(lease, Policy(0, 0)), 0.0)[0] is Arrival.UNKNOWN


def test_a_worker_that_never_said_hello_is_told_to() -> None:
    with pytest.raises(StateError, match="hello"):
        new_ledger().has_capacity("a", 1, 0.0)


def test_a_restored_ledger_leases_from_the_checkpoints_step() -> None:
    leases = joined(new_ledger(bound=1, size=1, steps=9, start=5, fork=1), "a", 9)
    assert [(lease.group, lease.start_at) for lease in leases] == [
        (5, Policy(1, 4)),
        (6, Policy(1, 5)),
        (7, Policy(1, 6)),
    ]


def test_a_group_is_taken_whole_or_not_at_all() -> None:
    ledger = new_ledger(size=2)
    first, second = joined(ledger, "a", 2)
    deliver(ledger, [second], Policy(0, 0))
    assert ledger.take((0,)) is None
    deliver(ledger, [first], Policy(0, 0))
    batch = ledger.take((0,))
    assert batch is not None
    assert [t.sample for t in batch] == [0, 1]


def test_grants_to_one_worker_become_one_with_the_leases_in_order() -> None:
    leases = [
        Lease(
            lease_id=number, group=0, sample=number, item=0, start_at=Policy(0, 0), consume_by_version=0,
            purpose=Purpose.TRAIN,
        )
        for number in range(4)
    ]  # fmt: skip
    grants = [Grant("a", (leases[0],)), Grant("b", (leases[1],)), Grant("a", (leases[2], leases[3]))]
    assert merged(grants) == (Grant("a", (leases[0], leases[2], leases[3])), Grant("b", (leases[1],)))
    assert merged([]) == ()
