"""Tests of samples that kill their workers and of workers that hang: training goes on without them."""

from collections import deque
from dataclasses import dataclass, field

import pytest

from periplus.values.policy import Policy
from tests.support.ledger.checked import TIMEOUT_S, CheckedLedger, answer, leases_of, of_kind
from tests.support.ledger.oracle import next_due_s
from trainer.ledger.state import SPARE_DEADLINES
from trainer.ledger.values import (
    BatchReady,
    BatchWanted,
    ClockTicked,
    Drop,
    EvalAsked,
    EvalReady,
    Event,
    Granted,
    GroupDropped,
    Lease,
    LeaseLost,
    LeasesStarted,
    Loss,
    PolicyReached,
    ResultArrived,
    Revoked,
    RoomOffered,
    StepDone,
    WorkerJoined,
    WorkerLeft,
)


@dataclass(slots=True)
class SimulatedWorker:
    """A worker's queue, and whether its process hangs."""

    room: int
    hangs: bool = False
    queue: deque[Lease] = field(default_factory=deque)


class Simulation:
    """A ledger with honest and hung workers, and a trainer that always wants a batch. Nothing here is random."""

    def __init__(self, ledger: CheckedLedger, *, killers: frozenset[int] = frozenset()) -> None:
        self.ledger = ledger
        self.workers: dict[str, SimulatedWorker] = {}
        self.killers = killers  # groups whose sample 0 kills the process that produces it
        self.num_batches = self.num_deaths = 0
        self.drops: list[tuple[float, GroupDropped]] = []  # when, and which
        self._is_training = self._is_wanted = False

    def tell(self, event: Event, *, after_s: float = 0.0) -> None:
        for effect in self.ledger.tell(event, after_s=after_s):
            match effect:
                case GroupDropped():
                    self.drops.append((self.ledger.now_s, effect))
                case Granted(worker_id, leases):
                    self.workers[worker_id].queue.extend(leases)
                case Revoked(worker_id, ids) if worker_id in self.workers:
                    worker = self.workers[worker_id]
                    worker.queue = deque(lease for lease in worker.queue if lease.lease_id not in ids)
                case BatchReady():
                    self.num_batches, self._is_training = self.num_batches + 1, True
                case _:
                    pass

    def join(self, worker_id: str, room: int, *, hangs: bool = False) -> None:
        self.workers[worker_id] = SimulatedWorker(room, hangs)
        self.tell(WorkerJoined(worker_id))
        self.tell(PolicyReached(worker_id, self.ledger.policy))
        self.tell(RoomOffered(worker_id, room))

    def train(self) -> None:
        if self._is_training:
            self._is_training = self._is_wanted = False
            self.tell(StepDone())
            for worker_id in self.workers:
                self.tell(PolicyReached(worker_id, self.ledger.policy))
        elif not self._is_wanted and self.ledger.policy.version < self.ledger.machine.limits.steps:
            self._is_wanted = True
            self.tell(BatchWanted())

    def work(self, worker_id: str, num_at_once: int) -> None:
        """Generate one batch of at most `num_at_once` leases, by group; a lease that must be alone is alone."""
        worker = self.workers[worker_id]
        if worker.hangs:
            return
        able = sorted((x for x in worker.queue if x.start_at <= self.ledger.policy), key=lambda x: (x.group, x.sample))
        batch = able[:1] if able and able[0].alone else [x for x in able if not x.alone][:num_at_once]
        if not batch:
            return
        worker.queue = deque(lease for lease in worker.queue if lease not in batch)
        self.tell(LeasesStarted(worker_id, tuple(lease.lease_id for lease in batch), self.ledger.policy))
        if any(lease.group in self.killers and lease.sample == 0 for lease in batch):
            self.num_deaths += 1
            self.tell(WorkerLeft(worker_id))
            self.join(worker_id, worker.room)
            return
        for lease in batch:
            self.tell(ResultArrived(answer(lease, self.ledger.policy, worker_id)))

    def run(self, rounds: int, round_s: float, num_at_once: int = 4) -> None:
        for _ in range(rounds):
            self.train()
            for worker_id in sorted(self.workers):
                self.work(worker_id, num_at_once)
            self.tell(ClockTicked(), after_s=round_s)


# ---- a sample that kills its worker ----------------------------------------------------------------------------------


def test_the_death_of_a_worker_is_an_attempt_at_what_it_had_started_and_at_nothing_else() -> None:
    ledger = CheckedLedger(group_size=2, steps=1, max_attempts=2)
    for attempt, name in enumerate(("a", "b")):
        started, queued = ledger.worker(name, 2)
        ledger.tell(LeasesStarted(name, (started.lease_id,), ledger.policy))
        effects = ledger.tell(WorkerLeft(name))
        assert of_kind(effects, LeaseLost) == [
            LeaseLost(started, name, Loss.WORKER_DIED),
            LeaseLost(queued, name, Loss.WORKER_GONE),
        ]
        assert bool(of_kind(effects, GroupDropped)) == (attempt == 1)
    assert of_kind(tuple(ledger.effects), GroupDropped) == [GroupDropped(0, Drop.FAILED, ())]


def test_a_lost_way_to_a_worker_is_no_death() -> None:
    ledger = CheckedLedger(group_size=1, steps=1, max_attempts=1)
    for _ in range(3):
        (lease,) = ledger.worker("a", 1)
        ledger.tell(LeasesStarted("a", (lease.lease_id,), ledger.policy))
        assert of_kind(ledger.tell(WorkerLeft("a", is_dead=False)), LeaseLost) == [
            LeaseLost(lease, "a", Loss.WORKER_GONE)
        ]
    assert of_kind(tuple(ledger.effects), GroupDropped) == []


@pytest.mark.parametrize(("epoch", "is_death"), [(7, False), (8, True), (0, True)])
def test_a_worker_that_says_hello_again_has_died_unless_it_is_the_same_process(epoch: int, is_death: bool) -> None:
    ledger = CheckedLedger(group_size=1, steps=1, max_attempts=1)
    ledger.tell(WorkerJoined("a", 7))
    (lease,) = leases_of(ledger.tell(RoomOffered("a", 1)))
    ledger.tell(LeasesStarted("a", (lease.lease_id,), ledger.policy))
    assert bool(of_kind(ledger.tell(WorkerJoined("a", epoch)), GroupDropped)) == is_death


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_sample_that_kills_its_workers_costs_its_own_group_and_all_batches_come(
    num_workers: int, attempts: int
) -> None:
    """Each killer's group is dropped after `attempts` deaths; with several attempts no other group is."""
    simulation = Simulation(
        CheckedLedger(group_size=4, groups_per_step=2, steps=10, max_attempts=attempts), killers=frozenset({1, 6})
    )
    for number in range(num_workers):
        simulation.join(f"w{number}", 8)
    simulation.run(200, 0.5)
    assert simulation.num_batches == 10
    assert simulation.num_deaths == 2 * attempts
    assert {drop.why for _, drop in simulation.drops} == {Drop.FAILED}
    dropped = {drop.group for _, drop in simulation.drops}
    assert dropped == {1, 6} if attempts > 1 else {1, 6} <= dropped


def test_the_last_attempt_at_a_sample_is_made_alone() -> None:
    ledger = CheckedLedger(group_size=2, steps=1, max_attempts=3)
    alone: list[list[bool]] = []
    for number in range(3):
        leases = ledger.worker(f"w{number}", 2)
        alone.append([lease.alone for lease in leases])
        ledger.tell(LeasesStarted(f"w{number}", tuple(lease.lease_id for lease in leases), ledger.policy))
        ledger.tell(WorkerLeft(f"w{number}"))
    assert alone == [[False, False], [False, False], [True, True]]


def test_a_problem_that_kills_its_workers_leaves_the_evaluation() -> None:
    ledger = CheckedLedger(max_attempts=1)
    ledger.worker("a", 9)
    lease = leases_of(ledger.tell(EvalAsked((7,))))[-1]
    ledger.tell(LeasesStarted("a", (lease.lease_id,), ledger.policy))
    assert of_kind(ledger.tell(WorkerLeft("a")), EvalReady) == [EvalReady(())]


# ---- a worker that hangs ---------------------------------------------------------------------------------------------


def test_a_report_that_nothing_was_started_renews_nothing() -> None:
    ledger = CheckedLedger(group_size=4, steps=1)
    leases = ledger.worker("hung", 4)
    lost: list[LeaseLost] = []
    for _ in range(4):
        ledger.tell(LeasesStarted("hung", (), ledger.policy))
        ledger.tell(LeasesStarted("hung", (999,), ledger.policy))
        lost += of_kind(ledger.tick(TIMEOUT_S / 4), LeaseLost)
    assert [each.lease for each in lost] == leases


def test_a_report_of_what_was_started_before_renews_nothing() -> None:
    ledger = CheckedLedger(group_size=2, steps=1)
    first, queued = ledger.worker("hung", 2)
    ledger.tell(LeasesStarted("hung", (first.lease_id,), ledger.policy))
    ledger.tick(TIMEOUT_S / 2)
    ledger.tell(LeasesStarted("hung", (first.lease_id,), ledger.policy))
    assert [each.lease for each in of_kind(ledger.tick(TIMEOUT_S / 2), LeaseLost)] == [first, queued]


def test_the_expiry_of_what_was_never_started_is_no_attempt() -> None:
    ledger = CheckedLedger(group_size=1, steps=1, max_attempts=1)
    ledger.worker("hung", 1)
    for _ in range(20):
        assert of_kind(ledger.tick(TIMEOUT_S), GroupDropped) == []


def test_a_worker_that_let_a_lease_expire_holds_one_at_a_time_and_one_more_for_each_result() -> None:
    ledger = CheckedLedger(group_size=8, steps=1, intake_tokens=10_000)
    ledger.worker("a", 8)
    for expected in (1, 2, 4, 8):
        effects = ledger.tick(TIMEOUT_S) if expected == 1 else ()
        held = list(ledger.machine.state.workers["a"].leases)
        assert len(held) == min(expected, 8 - len(ledger.machine.state.groups[0].done)), effects
        for lease in [ledger.machine.state.held[number].lease for number in held]:
            ledger.deliver(lease)


def test_probation_outlives_a_new_hello() -> None:
    ledger = CheckedLedger(group_size=4, steps=1)
    ledger.worker("hung", 4)
    ledger.tick(TIMEOUT_S)
    assert len(ledger.worker("hung", 4)) == 1


def test_a_worker_whose_result_arrives_after_its_lease_expired_is_trusted_again() -> None:
    """A timeout that is too short for the job delays its workers, and does not stop them."""
    ledger = CheckedLedger(group_size=4, steps=1)
    leases = ledger.worker("slow", 4)
    ledger.tell(LeasesStarted("slow", tuple(lease.lease_id for lease in leases), ledger.policy))
    ledger.tick(TIMEOUT_S)
    assert ledger.machine.state.workers["slow"].is_late
    ledger.deliver(*leases, worker_id="slow")
    assert not ledger.machine.state.workers["slow"].is_late


@pytest.mark.parametrize("says_that_it_starts", [False, True])
@pytest.mark.parametrize("bound", [0, 1])
def test_a_good_worker_of_one_slot_trains_on_beside_a_hung_one_of_many(bound: int, says_that_it_starts: bool) -> None:
    """Each sample has one attempt: the hung worker costs the groups of which it held leases, and one timeout."""
    simulation = Simulation(
        CheckedLedger(group_size=4, groups_per_step=2, bound=bound, steps=20, max_attempts=1, intake_tokens=10_000)
    )
    simulation.join("good", 1)
    simulation.join("hung", 64, hangs=True)
    if says_that_it_starts:
        held = tuple(simulation.ledger.machine.state.workers["hung"].leases)
        simulation.ledger.tell(LeasesStarted("hung", held, simulation.ledger.policy))
    rounds = int(TIMEOUT_S / 0.5) + 20 * (8 + 2) + 8 * bound
    simulation.run(rounds, 0.5, num_at_once=1)
    assert simulation.num_batches == 20
    assert len(simulation.drops) <= 2 * (bound + 2)
    assert all(at_s <= 3 * TIMEOUT_S for at_s, _ in simulation.drops)
    assert says_that_it_starts or all(drop.why is not Drop.FAILED for _, drop in simulation.drops)
    assert len(simulation.ledger.machine.state.workers["hung"].leases) <= 1


def test_a_trial_is_taken_over_by_a_trusted_worker_that_has_nothing_else_to_do() -> None:
    ledger = CheckedLedger(group_size=2, steps=1)
    ledger.worker("hung", 2)
    ledger.tick(TIMEOUT_S)
    (trial,) = [ledger.machine.state.held[number].lease for number in ledger.machine.state.workers["hung"].leases]
    ledger.tell(WorkerJoined("good"))
    effects = ledger.tell(RoomOffered("good", 2))
    assert of_kind(effects, LeaseLost) == [LeaseLost(trial, "hung", Loss.WITHDRAWN)]
    assert of_kind(effects, Revoked) == [Revoked("hung", (trial.lease_id,), still_wanted=True)]
    assert {(lease.group, lease.sample) for lease in leases_of(effects)} == {(0, 0), (0, 1)}


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_the_heap_of_deadlines_is_bounded_by_the_leases_whatever_is_started_or_delivered() -> None:
    ledger = CheckedLedger(
        group_size=64, groups_per_step=2, steps=1000, bound=0, intake_tokens=100_000, lease_timeout_s=86_400.0
    )
    ledger.worker("a", 128)
    state = ledger.machine.state
    for _ in range(5):
        ledger.tell(BatchWanted())
        while ledger.machine.state.training_since_s is None:
            lease = next(held.lease for held in state.held.values() if held.deadline_s is not None)
            ledger.tell(LeasesStarted("a", (lease.lease_id,), ledger.policy))
            ledger.deliver(lease)
            assert len(state.deadlines) <= 2 * len(state.held) + SPARE_DEADLINES
        ledger.tell(StepDone())
        ledger.tell(PolicyReached("a", ledger.policy))


def test_a_deadline_that_moved_is_kept() -> None:
    ledger = CheckedLedger(group_size=2, steps=1)
    first, second = ledger.worker("a", 2)
    ledger.tell(LeasesStarted("a", (first.lease_id,), Policy(0, 0)), after_s=TIMEOUT_S / 2)
    assert next_due_s(ledger.machine) == ledger.now_s + TIMEOUT_S
    assert ledger.tick(TIMEOUT_S - 0.1) == ()
    assert [each.lease for each in of_kind(ledger.tick(0.1), LeaseLost)] == [first, second]
