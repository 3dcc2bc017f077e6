"""A world around a ledger on a fake clock: a trainer that crashes, gateways, workers, and links that keep no order.

A trainer, gateways with bounded spools, and workers with queues and engine versions exchange messages that are lost,
delayed, repeated and reordered, in both directions. Workers die, hang and lie; gateways restart with or without their
spool; the trainer restarts from any checkpoint of its history into a new fork, and replays whatever results it stored,
while the messages of its former lives still travel. Time jumps both ways. Whoever drives the world (a hypothesis state
machine, a random walk) calls the actions with small numbers that choose among what is there. Every event and effect
passes `LedgerOracle`.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from periplus.errors import StateError
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose
from tests.support.ledger.oracle import LedgerOracle
from tests.support.ledger.surroundings import Checkpoint, joining, policies_between, result_of
from trainer.ledger.machine import Ledger
from trainer.ledger.values import (
    Arrival,
    BatchReady,
    BatchWanted,
    ClockTicked,
    Effect,
    EvalAsked,
    Event,
    Granted,
    JudgedResult,
    Lease,
    LeasesStarted,
    LedgerLimits,
    PolicyReached,
    Replayed,
    Result,
    ResultArrived,
    Revoked,
    RoomOffered,
    SampleFailed,
    StepDone,
    WorkerJoined,
    WorkerLeft,
)

T = TypeVar("T")

NUM_WORKERS = 4
NUM_GATEWAYS = 2
SPOOL_FRAMES = 6
MOST_IN_FLIGHT = 40
ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of results on its way to the trainer, with its transport key."""

    gateway: int
    epoch: int
    sequence: int
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Down:
    """A message to one worker: leases, revoked leases, or weights."""

    worker_id: str
    leases: tuple[Lease, ...] = ()
    revoked: tuple[int, ...] = ()
    policy: Policy | None = None


@dataclass(slots=True)
class Gateway:
    epoch: int = 0
    next_sequence: int = 0
    spool: dict[int, Frame] = field(default_factory=dict)


@dataclass(slots=True)
class Worker:
    gateway: int
    room: int = 0
    policy: Policy | None = None
    queue: list[Lease] = field(default_factory=list)
    started: list[tuple[Lease, Policy]] = field(default_factory=list)


def nth(values: Sequence[T], n: int) -> T:
    return values[n % len(values)]


class World:
    def __init__(self, limits: LedgerLimits) -> None:
        self.limits, self.oracle, self.now_s, self.latest_s = limits, LedgerOracle(limits, ITEMS), 0.0, 0.0
        self.workers: dict[str, Worker] = {}
        self.gateways = [Gateway() for _ in range(NUM_GATEWAYS)]
        self.ups: list[Event | Frame] = []
        self.downs: list[Down] = []
        self.stored: list[Result] = []
        self.checkpoints: list[Checkpoint] = []
        self.is_training, self.is_wanted, self.num_batches = False, False, 0
        self.num_mixed = 0  # samples in batches that several policies generated
        self._begin(Checkpoint(), None)

    def _begin(self, start: Checkpoint, parent: Policy | None) -> None:
        self._start = start
        self.ledger, self.log = self._new_ledger(), list[tuple[Event, float, tuple[Effect, ...]]]()
        self.oracle.begin(start.policy, parent, start.next_group, start.open_groups)
        self.is_training = self.is_wanted = False
        self._seen_frames: set[tuple[int, int, int]] = set()
        self.latest_s = 0.0

    def _new_ledger(self) -> Ledger:
        return self._start.ledger(self.limits, lambda group: ITEMS + group)

    # ---- the ledger -----------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        state = self.ledger.state
        match event:
            case RoomOffered(name) | PolicyReached(name) | LeasesStarted(name) | SampleFailed(name):
                if name not in self.oracle.now.reached:
                    return self._refused(event)
            case _:
                pass
        next_step = state.next_step
        self.latest_s = max(self.latest_s, self.now_s)
        self.oracle.told(event, state.policy)
        effects = self.ledger.apply(event, self.now_s)
        self.log.append((event, self.now_s, effects))
        for effect in effects:
            self.oracle.did(effect, state.policy, next_step, self.latest_s)
            self._perform(effect)
        self.oracle.check(self.ledger, self.latest_s)
        return None

    def _refused(self, event: Event) -> None:
        before = copy.deepcopy(self.ledger.state)
        with pytest.raises(StateError):
            self.ledger.apply(event, self.now_s + 1e6)
        assert self.ledger.state == before

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Granted(worker_id, leases):
                self._send_down(Down(worker_id, leases=leases))
            case Revoked(worker_id, lease_ids):
                self._send_down(Down(worker_id, revoked=lease_ids))
            case JudgedResult(result, Arrival.ACCEPTED):
                self.stored.append(result)
            case BatchReady(_, results):
                self.is_training, self.is_wanted, self.num_batches = True, False, self.num_batches + 1
                self.num_mixed += sum(len(result.policies) > 1 for result in results)
            case _:
                pass

    def check_determinism(self) -> None:
        """Check that a second ledger decides the same when it is told the same."""
        twin = self._new_ledger()
        for event, at_s, effects in self.log:
            assert twin.apply(event, at_s) == effects
        assert twin.state == self.ledger.state

    # ---- links ----------------------------------------------------------------------------------------------------

    def _send_up(self, *messages: Event | Frame) -> None:
        self.ups = [*self.ups, *messages][-MOST_IN_FLIGHT:]

    def _send_down(self, message: Down) -> None:
        self.downs = [*self.downs, message][-MOST_IN_FLIGHT:]

    def up_arrives(self, n: int, fate: int) -> None:
        """One message arrives, in any order. It may be lost, or come again later."""
        if self.ups:
            message = self.ups[n % len(self.ups)] if fate % 6 == 0 else self.ups.pop(n % len(self.ups))
            if fate % 6 != 1:
                self._hear(message)

    def down_arrives(self, n: int, fate: int) -> None:
        if self.downs:
            message = self.downs[n % len(self.downs)] if fate % 6 == 0 else self.downs.pop(n % len(self.downs))
            if fate % 6 != 1:
                self._obey(message)

    def all_arrives(self, n: int, m: int) -> None:
        """All messages of both directions arrive in order."""
        ups, self.ups = self.ups, []
        for up in ups:
            self._hear(up)
        downs, self.downs = self.downs, []
        for down in downs:
            self._obey(down)

    def link_breaks(self, n: int, m: int) -> None:
        if n % 2:
            self.ups = self.ups[: len(self.ups) // 2]
        else:
            self.downs = self.downs[len(self.downs) // 2 :]

    def _hear(self, message: Event | Frame) -> None:
        if not isinstance(message, Frame):
            return self.tell(message)
        self.gateways[message.gateway].spool.pop(message.sequence, None)  # acknowledged
        key = (message.gateway, message.epoch, message.sequence)
        if key in self._seen_frames:
            return None
        self._seen_frames.add(key)
        for result in message.results:
            self.tell(ResultArrived(result))
        return None

    def _obey(self, message: Down) -> None:
        worker = self.workers.get(message.worker_id)
        if worker is None:
            return
        worker.queue.extend(message.leases)
        worker.queue = [lease for lease in worker.queue if lease.lease_id not in message.revoked]
        if message.policy is not None and (worker.policy is None or message.policy > worker.policy):
            worker.policy = message.policy
            self._send_up(PolicyReached(message.worker_id, message.policy))

    # ---- workers and gateways -------------------------------------------------------------------------------------

    def worker_comes(self, n: int, room: int) -> None:
        """A worker starts with nothing, for the first time or after a crash."""
        worker_id = f"w{n % NUM_WORKERS}"
        self.workers[worker_id] = Worker(gateway=n % NUM_GATEWAYS, room=room)
        self._send_up(WorkerJoined(worker_id), RoomOffered(worker_id, room))
        self._send_down(Down(worker_id, policy=self.ledger.policy))

    def worker_says_it_again(self, n: int, m: int) -> None:
        """A worker's session begins anew. The ledger forgets the leases of the old one; the worker may not."""
        if self.workers:
            worker_id = nth(sorted(self.workers), n)
            worker = self.workers[worker_id]
            self._send_up(WorkerJoined(worker_id))
            if worker.policy:
                self._send_up(PolicyReached(worker_id, worker.policy))
            self._send_up(RoomOffered(worker_id, m % 4))
            if m % 2:
                worker.queue.clear()

    def worker_goes(self, n: int, m: int) -> None:
        """A worker is killed. Its gateway notices, or nobody does."""
        if self.workers:
            worker_id = nth(sorted(self.workers), n)
            del self.workers[worker_id]
            if m % 2:
                self._send_up(WorkerLeft(worker_id))

    def worker_starts(self, n: int, m: int) -> None:
        able = [
            (name, lease)
            for name, worker in sorted(self.workers.items())
            for lease in worker.queue
            if worker.policy is not None and lease.start_at <= worker.policy
        ]
        if able:
            name, lease = nth(able, n)
            worker = self.workers[name]
            assert worker.policy is not None
            worker.queue.remove(lease)
            worker.started.append((lease, worker.policy))
            self._send_up(LeasesStarted(name, (lease.lease_id,), worker.policy))

    def worker_finishes(self, n: int, m: int) -> None:
        """A worker delivers an honest result; its weights may have changed meanwhile. A full spool makes it wait."""
        busy = [name for name, worker in sorted(self.workers.items()) if worker.started]
        if busy:
            name = nth(busy, n)
            worker = self.workers[name]
            if len(self.gateways[worker.gateway].spool) < SPOOL_FRAMES:
                lease, policy = worker.started.pop(0)
                self._spool(worker.gateway, self.result(name, lease, policy, worker.policy or policy, m))

    def worker_works_off(self, n: int, m: int) -> None:
        """One worker starts and delivers all that it can, over a link that loses nothing, while the others hang."""
        if self.workers:
            name = nth(sorted(self.workers), n)
            worker = self.workers[name]
            policy = worker.policy
            if policy is not None:
                able = [lease for lease in worker.queue if lease.start_at <= policy]
                worker.queue = [lease for lease in worker.queue if lease.start_at > policy]
                for place, lease in enumerate(able):
                    # Each sample began with weights of another age, as its lease allows.
                    is_here = lease.start_at.fork == policy.fork
                    oldest = lease.start_at.version if is_here else policy.version
                    first = Policy(policy.fork, max(oldest, policy.version - (m + place) % 4))
                    self.tell(ResultArrived(self.result(name, lease, first, policy, m + place)))

    def all_goes_well(self, n: int, m: int) -> None:
        """Messages arrive, one worker works, and the trainer goes on, while the other workers hang."""
        for _ in range(2):
            self.all_arrives(n, m)
            self.worker_works_off(n, m)
            self.trainer_moves(n, m)

    def worker_fails(self, n: int, m: int) -> None:
        busy = [name for name, worker in sorted(self.workers.items()) if worker.started]
        if busy:
            name = nth(busy, n)
            lease, _ = self.workers[name].started.pop(0)
            self._send_up(SampleFailed(name, lease.lease_id))

    def result(self, worker_id: str, lease: Lease, first: Policy, last: Policy, m: int) -> Result:
        policies = policies_between(first, last, m) if first.fork == last.fork else (first,)
        num_tokens = 1 + m % self.limits.max_sample_tokens
        return result_of(lease, worker_id, *policies, num_tokens=num_tokens, reward=float(m % 2))

    def worker_lies(self, n: int, m: int) -> None:
        """A result of a recent lease arrives that is wrong in one way, past spool and deduplication."""
        known = [lease for _, _, effects in self.log for e in effects if isinstance(e, Granted) for lease in e.leases]
        if not known:
            return
        lease = known[-1 - n % min(len(known), 12)]
        policy = self.ledger.policy
        honest = self.result(f"w{n % NUM_WORKERS}", lease, max(lease.start_at, policy), policy, m)
        lie: Result = nth(LIES, m)(honest, policy)
        self._send_up(ResultArrived(lie))

    def worker_repeats(self, n: int, m: int) -> None:
        """A result comes again that the trainer has stored, under the same or another lease."""
        if self.stored:
            result = nth(self.stored, n)
            self._send_up(ResultArrived(replace(result, lease_id=result.lease_id + m % 3)))

    def gateway_sends(self, n: int, m: int) -> None:
        """A gateway sends again what was not acknowledged."""
        self._send_up(*list(nth(self.gateways, n).spool.values())[-3:])

    def gateway_restarts(self, n: int, m: int) -> None:
        gateway = nth(self.gateways, n)
        gateway.epoch, gateway.next_sequence = gateway.epoch + 1, 0
        frames = list(gateway.spool.values()) if m % 2 else []
        gateway.spool = {}
        for frame in frames:
            self._spool(n % NUM_GATEWAYS, *frame.results)
        for name, worker in self.workers.items():
            if worker.gateway == n % NUM_GATEWAYS:
                self._send_up(WorkerLeft(name))

    def _spool(self, gateway_number: int, *results: Result) -> None:
        gateway = self.gateways[gateway_number]
        frame = Frame(gateway_number, gateway.epoch, gateway.next_sequence, results)
        gateway.spool[gateway.next_sequence] = frame
        gateway.next_sequence += 1
        self._send_up(frame)

    # ---- trainer --------------------------------------------------------------------------------------------------

    def trainer_moves(self, n: int, m: int) -> None:
        if self.is_training:
            self.is_training = False
            self.tell(StepDone())
            for worker_id in self.workers:
                self._send_down(Down(worker_id, policy=self.ledger.policy))
        elif not self.is_wanted and self.ledger.policy.version < self.limits.steps:
            self.is_wanted = True
            self.tell(BatchWanted())

    def trainer_saves(self, n: int, m: int) -> None:
        self.checkpoints.append(Checkpoint.of(self.ledger))

    def trainer_crashes(self, n: int, m: int) -> None:
        """The trainer starts again in a new fork, from a checkpoint of its history or from the beginning.

        Any part of the results that it stored is replayed.
        """
        self.check_determinism()
        kept = [c for c in self.checkpoints if self.oracle.is_history(c.policy)]
        at = kept[-1 - n % min(len(kept), 3)] if kept else Checkpoint()
        self._begin(at.in_fork(len(self.oracle.forks)), at.policy)
        replayed = self.stored[m % 3 :: 1 + m % 2]
        self.tell(Replayed(tuple(reversed(replayed) if m % 5 == 0 else replayed)))
        for worker_id in self.workers:
            self._send_down(Down(worker_id, policy=self.ledger.policy))

    def asks_for_evaluation(self, n: int, m: int) -> None:
        if self.ledger.state.evaluation is None:
            self.tell(EvalAsked(tuple(range(n % 4)), is_background=m % 2 == 1))

    def time_passes(self, n: int, m: int) -> None:
        """Time passes (nothing, a little, a hold, a lease, an hour), or the clock is set back."""
        timeout_s, hold_s = self.limits.lease_timeout_s, self.limits.max_hold_s
        self.now_s += nth((0.1, 1.0, hold_s, timeout_s, 3600.0, -hold_s, -3600.0, 0.0), n)
        self.tell(ClockTicked())

    def seconds_pass(self, n: int, m: int) -> None:
        """The trainer waits, second by second, while one worker says nothing and the others may work."""
        if not self.is_training and not self.is_wanted:
            self.trainer_moves(n, m)
        for second in range(1 + n % 8):
            if m % 2 and len(self.workers) > 1:
                self.worker_works_off(n + 1 + second % (len(self.workers) - 1), m)
            self.now_s = max(self.now_s, self.latest_s) + 1.0
            self.tell(ClockTicked())

    # ---- liveness -------------------------------------------------------------------------------------------------

    def drain(self, room: int) -> None:
        """Let one honest worker finish the job while all others hang: all batches come, and nothing is left over.

        All its rewards are equal, so that groups are filtered where that is allowed.
        """
        self.all_arrives(0, 0)
        self.workers = {}
        self.now_s = self.latest_s
        self.workers["z"] = Worker(gateway=0, room=room, policy=self.ledger.policy)
        for event in joining("z", self.ledger.policy, room):
            self.tell(event)
        limits, since_batch = self.limits, 0
        samples = limits.groups_per_step * limits.group_size * (1 + limits.max_filtered_per_step)
        rounds = 40 + 2 * samples // room
        while self.ledger.policy.version < self.limits.steps or self.ledger.state.evaluation is not None:
            before = self.num_batches
            self._honest_round()
            since_batch = since_batch + 1 if self.num_batches == before else 0
            assert since_batch < rounds, "no batch comes any more"
        state = self.ledger.state
        left = (state.groups, state.held, state.waiting, state.classes, state.whole, state.idle, state.reserved_tokens)
        assert not any(left), f"left over: {left}"

    def _honest_round(self) -> None:
        self.trainer_moves(0, 0)
        self.all_arrives(0, 0)
        z = self.workers["z"]
        policy = z.policy
        assert policy is not None
        for lease in [lease for lease in z.queue if lease.start_at <= policy]:
            z.queue.remove(lease)
            self.tell(LeasesStarted("z", (lease.lease_id,), policy))
            self.tell(ResultArrived(self.result("z", lease, policy, policy, 0)))
        self.all_arrives(0, 0)
        self.now_s += self.limits.lease_timeout_s / 2
        self.tell(ClockTicked())


def _aged(result: Result, policy: Policy, by: int) -> Result:
    version = max(0, policy.version - by)
    return replace(result, policies=(PolicyRun(Policy(policy.fork, version), 1), PolicyRun(policy, 1)))


LIES: tuple[Callable[[Result, Policy], Result], ...] = (
    lambda result, policy: _aged(result, policy, 1),
    lambda result, policy: _aged(result, policy, 2),
    lambda result, policy: _aged(result, policy, 3),
    lambda result, policy: _aged(result, policy, -1),
    lambda result, policy: replace(result, policies=(PolicyRun(Policy(max(0, policy.fork - 1), policy.version), 2),)),
    lambda result, policy: replace(result, policies=(PolicyRun(Policy(policy.fork + 1, policy.version), 2),)),
    lambda result, policy: replace(result, policies=(), num_tokens=0),
    lambda result, policy: replace(result, item=result.item + 1),
    lambda result, policy: replace(result, purpose=Purpose.EVAL),
    lambda result, policy: replace(result, group=result.group + 1000),
    lambda result, policy: replace(result, group=result.group + 1, item=result.item + 1),
    lambda result, policy: replace(result, sample=result.sample + 1),
    lambda result, policy: replace(result, sample=-1),
    lambda result, policy: replace(result, num_tokens=1_000_000),
    lambda result, policy: replace(result, lease_id=0),
)
"""Ways in which a result can be wrong. A claim of the next version may be right by the time it arrives."""
