"""Tests of samples that kill their workers and of workers that hang: training goes on without them."""

from collections import deque
from dataclasses import dataclass, field

import pytest

from periplus.values.policy import Policy
from tests.support.ledger.checked import TIMEOUT_S, Desk, answer, leases_of, of
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
class Player:
    """A worker: what is in its queue, and whether its process hangs."""

    room: int
    hangs: bool = False
    queue: deque[Lease] = field(default_factory=deque)


class Stage:
    """A ledger with honest and hung workers, and a trainer that always wants a batch. Nothing here is random."""

    def __init__(self, ledger_service: Desk, *, killers: frozenset[int] = frozenset()) -> None:
        self.ledger_service = ledger_service
        self.players: dict[str, Player] = {}
        self.killers = killers  # groups whose sample 0 kills the process that produces it
        self.num_batches = self.num_deaths = 0
        self.drops: list[tuple[float, GroupDropped]] = []  # when, and which
        self._is_training = self._is_wanted = False

    def tell(self, event: Event, *, after_s: float = 0.0) -> None:
        for effect in self.ledger_service.tell(event, after_s=after_s):
            match effect:
                case GroupDropped():
                    self.drops.append((self.ledger_service.now_s, effect))
                case Granted(worker_id, leases):
                    self.players[worker_id].queue.extend(leases)
                case Revoked(worker_id, ids) if worker_id in self.players:
                    player = self.players[worker_id]
                    player.queue = deque(lease for lease in player.queue if lease.lease_id not in ids)
                case BatchReady():
                    self.num_batches, self._is_training = self.num_batches + 1, True
                case _:
                    pass

    def comes(self, worker_id: str, room: int, *, hangs: bool = False) -> None:
        self.players[worker_id] = Player(room, hangs)
        self.tell(WorkerJoined(worker_id))
        self.tell(PolicyReached(worker_id, self.ledger_service.policy))
        self.tell(RoomOffered(worker_id, room))

    def trains(self) -> None:
        if self._is_training:
            self._is_training = self._is_wanted = False
            self.tell(StepDone())
            for worker_id in self.players:
                self.tell(PolicyReached(worker_id, self.ledger_service.policy))
        elif not self._is_wanted and self.ledger_service.policy.version < self.ledger_service.ledger.limits.steps:
            self._is_wanted = True
            self.tell(BatchWanted())

    def works(self, worker_id: str, num_at_once: int) -> None:
        """Generate one batch of at most `num_at_once` leases, by group; a lease that must be alone is alone."""
        player = self.players[worker_id]
        if player.hangs:
            return
        able = sorted(
            (x for x in player.queue if x.start_at <= self.ledger_service.policy), key=lambda x: (x.group, x.sample)
        )
        batch = able[:1] if able and able[0].alone else [x for x in able if not x.alone][:num_at_once]
        if not batch:
            return
        player.queue = deque(lease for lease in player.queue if lease not in batch)
        self.tell(LeasesStarted(worker_id, tuple(lease.lease_id for lease in batch), self.ledger_service.policy))
        if any(lease.group in self.killers and lease.sample == 0 for lease in batch):
            self.num_deaths += 1
            self.tell(WorkerLeft(worker_id))
            self.comes(worker_id, player.room)
            return
        for lease in batch:
            self.tell(ResultArrived(answer(lease, self.ledger_service.policy, worker_id)))

    def goes_on(self, rounds: int, round_s: float, num_at_once: int = 4) -> None:
        for _ in range(rounds):
            self.trains()
            for worker_id in sorted(self.players):
                self.works(worker_id, num_at_once)
            self.tell(ClockTicked(), after_s=round_s)


# ---- a sample that kills its worker ----------------------------------------------------------------------------------


def test_the_death_of_a_worker_is_an_attempt_at_what_it_had_started_and_at_nothing_else() -> None:
    ledger_service = Desk(group_size=2, steps=1, max_attempts=2)
    for attempt, name in enumerate(("a", "b")):
        started, queued = ledger_service.worker(name, 2)
        ledger_service.tell(LeasesStarted(name, (started.lease_id,), ledger_service.policy))
        effects = ledger_service.tell(WorkerLeft(name))
        assert of(effects, LeaseLost) == [
            LeaseLost(started, name, Loss.WORKER_DIED),
            LeaseLost(queued, name, Loss.WORKER_GONE),
        ]
        assert bool(of(effects, GroupDropped)) == (attempt == 1)
    assert of(tuple(ledger_service.effects), GroupDropped) == [GroupDropped(0, Drop.FAILED, ())]


def test_a_lost_way_to_a_worker_is_no_death() -> None:
    ledger_service = Desk(group_size=1, steps=1, max_attempts=1)
    for _ in range(3):
        (lease,) = ledger_service.worker("a", 1)
        ledger_service.tell(LeasesStarted("a", (lease.lease_id,), ledger_service.policy))
        assert of(ledger_service.tell(WorkerLeft("a", is_dead=False)), LeaseLost) == [
            LeaseLost(lease, "a", Loss.WORKER_GONE)
        ]
    assert of(tuple(ledger_service.effects), GroupDropped) == []


@pytest.mark.parametrize(("epoch", "is_death"), [(7, False), (8, True), (0, True)])
def test_a_worker_that_says_hello_again_has_died_unless_it_is_the_same_process(epoch: int, is_death: bool) -> None:
    ledger_service = Desk(group_size=1, steps=1, max_attempts=1)
    ledger_service.tell(WorkerJoined("a", 7))
    (lease,) = leases_of(ledger_service.tell(RoomOffered("a", 1)))
    ledger_service.tell(LeasesStarted("a", (lease.lease_id,), ledger_service.policy))
    assert bool(of(ledger_service.tell(WorkerJoined("a", epoch)), GroupDropped)) == is_death


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_sample_that_kills_its_workers_costs_its_own_group_and_all_batches_come(
    num_workers: int, attempts: int
) -> None:
    """Each killer's group is dropped after `attempts` deaths; with several attempts no other group is."""
    stage = Stage(Desk(group_size=4, groups_per_step=2, steps=10, max_attempts=attempts), killers=frozenset({1, 6}))
    for number in range(num_workers):
        stage.comes(f"w{number}", 8)
    stage.goes_on(200, 0.5)
    assert stage.num_batches == 10
    assert stage.num_deaths == 2 * attempts
    assert {drop.why for _, drop in stage.drops} == {Drop.FAILED}
    dropped = {drop.group for _, drop in stage.drops}
    assert dropped == {1, 6} if attempts > 1 else {1, 6} <= dropped


def test_the_last_attempt_at_a_sample_is_made_alone() -> None:
    ledger_service = Desk(group_size=2, steps=1, max_attempts=3)
    alone: list[list[bool]] = []
    for number in range(3):
        leases = ledger_service.worker(f"w{number}", 2)
        alone.append([lease.alone for lease in leases])
        ledger_service.tell(
            LeasesStarted(f"w{number}", tuple(lease.lease_id for lease in leases), ledger_service.policy)
        )
        ledger_service.tell(WorkerLeft(f"w{number}"))
    assert alone == [[False, False], [False, False], [True, True]]


def test_a_problem_that_kills_its_workers_leaves_the_evaluation() -> None:
    ledger_service = Desk(max_attempts=1)
    ledger_service.worker("a", 9)
    lease = leases_of(ledger_service.tell(EvalAsked((7,))))[-1]
    ledger_service.tell(LeasesStarted("a", (lease.lease_id,), ledger_service.policy))
    assert of(ledger_service.tell(WorkerLeft("a")), EvalReady) == [EvalReady(())]


# ---- a worker that hangs ---------------------------------------------------------------------------------------------


def test_a_report_that_nothing_was_started_renews_nothing() -> None:
    ledger_service = Desk(group_size=4, steps=1)
    leases = ledger_service.worker("hung", 4)
    lost: list[LeaseLost] = []
    for _ in range(4):
        ledger_service.tell(LeasesStarted("hung", (), ledger_service.policy))
        ledger_service.tell(LeasesStarted("hung", (999,), ledger_service.policy))
        lost += of(ledger_service.tick(TIMEOUT_S / 4), LeaseLost)
    assert [each.lease for each in lost] == leases


def test_a_report_of_what_was_started_before_renews_nothing() -> None:
    ledger_service = Desk(group_size=2, steps=1)
    first, queued = ledger_service.worker("hung", 2)
    ledger_service.tell(LeasesStarted("hung", (first.lease_id,), ledger_service.policy))
    ledger_service.tick(TIMEOUT_S / 2)
    ledger_service.tell(LeasesStarted("hung", (first.lease_id,), ledger_service.policy))
    assert [each.lease for each in of(ledger_service.tick(TIMEOUT_S / 2), LeaseLost)] == [first, queued]


def test_the_expiry_of_what_was_never_started_is_no_attempt() -> None:
    ledger_service = Desk(group_size=1, steps=1, max_attempts=1)
    ledger_service.worker("hung", 1)
    for _ in range(20):
        assert of(ledger_service.tick(TIMEOUT_S), GroupDropped) == []


def test_a_worker_that_let_a_lease_expire_holds_one_at_a_time_and_one_more_for_each_result() -> None:
    ledger_service = Desk(group_size=8, steps=1, intake_tokens=10_000)
    ledger_service.worker("a", 8)
    for expected in (1, 2, 4, 8):
        effects = ledger_service.tick(TIMEOUT_S) if expected == 1 else ()
        held = list(ledger_service.ledger.state.workers["a"].leases)
        assert len(held) == min(expected, 8 - len(ledger_service.ledger.state.groups[0].done)), effects
        for lease in [ledger_service.ledger.state.held[number].lease for number in held]:
            ledger_service.deliver(lease)


def test_probation_outlives_a_new_hello() -> None:
    ledger_service = Desk(group_size=4, steps=1)
    ledger_service.worker("hung", 4)
    ledger_service.tick(TIMEOUT_S)
    assert len(ledger_service.worker("hung", 4)) == 1


def test_a_worker_whose_result_arrives_after_its_lease_expired_is_trusted_again() -> None:
    """A timeout that is too short for the job delays its workers, and does not stop them."""
    ledger_service = Desk(group_size=4, steps=1)
    leases = ledger_service.worker("slow", 4)
    ledger_service.tell(LeasesStarted("slow", tuple(lease.lease_id for lease in leases), ledger_service.policy))
    ledger_service.tick(TIMEOUT_S)
    assert ledger_service.ledger.state.workers["slow"].is_late
    ledger_service.deliver(*leases, worker_id="slow")
    assert not ledger_service.ledger.state.workers["slow"].is_late


@pytest.mark.parametrize("says_that_it_starts", [False, True])
@pytest.mark.parametrize("bound", [0, 1])
def test_a_good_worker_of_one_slot_trains_on_beside_a_hung_one_of_many(bound: int, says_that_it_starts: bool) -> None:
    """With one attempt a sample. The hung worker costs what it held when it hung, and one timeout of the whole run."""
    stage = Stage(Desk(group_size=4, groups_per_step=2, bound=bound, steps=20, max_attempts=1, intake_tokens=10_000))
    stage.comes("good", 1)
    stage.comes("hung", 64, hangs=True)
    if says_that_it_starts:
        held = tuple(stage.ledger_service.ledger.state.workers["hung"].leases)
        stage.ledger_service.tell(LeasesStarted("hung", held, stage.ledger_service.policy))
    rounds = int(TIMEOUT_S / 0.5) + 20 * (8 + 2) + 8 * bound
    stage.goes_on(rounds, 0.5, num_at_once=1)
    assert stage.num_batches == 20
    assert len(stage.drops) <= 2 * (bound + 2)
    assert all(at_s <= 3 * TIMEOUT_S for at_s, _ in stage.drops)
    assert says_that_it_starts or all(drop.why is not Drop.FAILED for _, drop in stage.drops)
    assert len(stage.ledger_service.ledger.state.workers["hung"].leases) <= 1


def test_a_trial_is_taken_over_by_a_trusted_worker_that_has_nothing_else_to_do() -> None:
    ledger_service = Desk(group_size=2, steps=1)
    ledger_service.worker("hung", 2)
    ledger_service.tick(TIMEOUT_S)
    (trial,) = [
        ledger_service.ledger.state.held[number].lease for number in ledger_service.ledger.state.workers["hung"].leases
    ]
    ledger_service.tell(WorkerJoined("good"))
    effects = ledger_service.tell(RoomOffered("good", 2))
    assert of(effects, LeaseLost) == [LeaseLost(trial, "hung", Loss.WITHDRAWN)]
    assert of(effects, Revoked) == [Revoked("hung", (trial.lease_id,))]
    assert {(lease.group, lease.sample) for lease in leases_of(effects)} == {(0, 0), (0, 1)}


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_the_heap_of_deadlines_is_bounded_by_the_leases_whatever_is_started_or_delivered() -> None:
    ledger_service = Desk(
        group_size=64, groups_per_step=2, steps=1000, bound=0, intake_tokens=100_000, lease_timeout_s=86_400.0
    )
    ledger_service.worker("a", 128)
    state = ledger_service.ledger.state
    for _ in range(5):
        ledger_service.tell(BatchWanted())
        while ledger_service.ledger.state.training_since_s is None:
            lease = next(held.lease for held in state.held.values() if held.deadline_s is not None)
            ledger_service.tell(LeasesStarted("a", (lease.lease_id,), ledger_service.policy))
            ledger_service.deliver(lease)
            assert len(state.deadlines) <= 2 * len(state.held) + SPARE_DEADLINES
        ledger_service.tell(StepDone())
        ledger_service.tell(PolicyReached("a", ledger_service.policy))


def test_a_deadline_that_moved_is_kept() -> None:
    ledger_service = Desk(group_size=2, steps=1)
    first, second = ledger_service.worker("a", 2)
    ledger_service.tell(LeasesStarted("a", (first.lease_id,), Policy(0, 0)), after_s=TIMEOUT_S / 2)
    assert ledger_service.ledger.next_due_s() == ledger_service.now_s + TIMEOUT_S
    assert ledger_service.tick(TIMEOUT_S - 0.1) == ()
    assert [each.lease for each in of(ledger_service.tick(0.1), LeaseLost)] == [first, second]
