"""An adversary of the ledger: workers that die, hang, lie, lag and repeat themselves, in fake time.

Unlike `world.py`, it does not predict what the ledger does. It knows what is true (who sampled what with which policy,
what was trained on, which history survives) and holds the ledger's promises against it, over far more events:

    safety      no token older than the bound is in a batch, whatever its sender claims of its lease; nothing is trained
                on twice in one history; a batch has whole groups, of samples that somebody really sent
    no loss     every group that was opened is consumed, dropped with a reason, or still open with each of its samples
                in, leased or waiting
    liveness    while at least one good worker is there, batches keep coming, `patience_s` apart at most
    memory      every container of the ledger is bounded in terms of open leases, workers and groups

Weights change during generation, so that many samples have tokens of several policies.

A *good* worker starts what it holds in the order of groups and delivers it within a tenth of a lease's time. The others
do what they like, and a sample of a *cursed* group kills or hangs whoever produces it, good workers too (these are
started again at once). Cancelled jobs and restored ones are new ledgers of the same history.
"""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count

from periplus.errors import StateError
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose
from tests.support.ledger.surroundings import Checkpoint, Key, joining, policies_between, result_of
from trainer.ledger.drops import DROPPED_KEPT
from trainer.ledger.state import SPARE_DEADLINES
from trainer.ledger.values import (
    BatchReady,
    BatchWanted,
    ClockTicked,
    Effect,
    EvalAsked,
    EvalReady,
    Event,
    Granted,
    GroupDropped,
    Lease,
    LeasesStarted,
    LedgerLimits,
    PolicyReached,
    Replayed,
    Result,
    ResultArrived,
    Revoked,
    SampleFailed,
    StepDone,
    WorkerLeft,
)
from trainer.ledger.workers import DOUBTED_KEPT

GOOD, SLOW, HUNG, MUTE, LIAR, FLAPPING = "good", "slow", "hung", "mute", "liar", "flapping"
KINDS = (SLOW, HUNG, MUTE, LIAR, FLAPPING)
"""`hung` starts what it gets and delivers nothing, `mute` does not even start, `flapping` dies all the time."""


@dataclass(slots=True)
class Process:
    """A worker's process, from its start to its death."""

    name: str
    kind: str
    epoch: int
    room: int
    policy: Policy
    queue: dict[int, Lease] = field(default_factory=dict)
    busy_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint, and the samples that were trained on before it."""

    checkpoint: Checkpoint
    consumed: frozenset[Key]


class Adversary:
    """A run of a trainer among bad workers. `chance` decides everything: the same seed gives the same run."""

    def __init__(self, chance: random.Random, limits: LedgerLimits, *, num_good: int, num_bad: int) -> None:
        self.chance, self.limits = chance, limits
        self.now_s, self.num_events, self.num_batches = 0.0, 0, 0
        self.num_hedges = 0  # samples leased to a second worker
        self.num_mixed = 0  # samples in batches that several policies generated
        self.drops: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self._epochs, self._forks, self._orders = count(1), count(1), count()
        self._mail: list[tuple[float, int, str, object]] = []  # heap: when, order, to whom, what
        self._sent: dict[Key, list[Result]] = {}
        self._consumed: frozenset[Key] = frozenset()
        self._saved: list[Saved] = []
        self._cursed: set[int] = set()
        self._last_batch_s = self.longest_wait_s = 0.0
        self._begin(Checkpoint())
        self.processes: dict[str, Process] = {}
        self._names = [f"region{n % 3}/good{n}" for n in range(num_good)]
        for name in self._names:
            self._start(name, GOOD)
        for n in range(num_bad):
            self._start(f"region{n % 3}/bad{n}", chance.choice(KINDS))

    # ---- the ledger -----------------------------------------------------------------------------------------------

    def _begin(self, start: Checkpoint) -> None:
        self.ledger = start.ledger(self.limits, lambda group: group % 97)
        self._opened: set[int] = set()
        self._closed: set[int] = set()
        self._is_training = self._is_wanted = False

    def tell(self, event: Event) -> None:
        self.num_events += 1
        try:
            effects = self.ledger.apply(event, self.now_s)
        except StateError:
            return  # of a worker that never said hello: the state is unchanged
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Granted(name, leases):
                self.num_hedges += sum(lease.hedges > 0 for lease in leases)
                self._opened.update(lease.group for lease in leases if lease.purpose is Purpose.TRAIN)
                self._post(name, leases)
            case Revoked(name, lease_ids):
                self._post(name, lease_ids)
            case GroupDropped(group, why, _):
                assert group not in self._closed, "dropped after its end"
                self._closed.add(group)
                self.drops[why] += 1
            case BatchReady(policy, results):
                self._take(policy, results)
            case EvalReady(results):
                assert all(result.purpose is Purpose.EVAL for result in results)
            case _:
                pass

    def _take(self, policy: Policy, results: tuple[Result, ...]) -> None:
        limits, lineage = self.limits, self.ledger.state.lineage
        groups = Counter(result.group for result in results)
        assert len(groups) == limits.groups_per_step
        assert set(groups.values()) == {limits.group_size}
        keys = frozenset((result.group, result.sample) for result in results)
        assert len(keys) == len(results)
        assert not keys & self._consumed, "trained on twice"
        assert not groups.keys() & self._closed, "trained on after its end"
        for result in results:
            assert any(result is sent for sent in self._sent[result.group, result.sample]), "nobody sent this"
            assert result.item == result.group % 97
            for run in result.policies:
                assert run.policy in lineage, "of a dead branch"
                assert 0 <= policy.version - run.policy.version <= limits.bound, "older than the bound"
        self._consumed |= keys
        self._closed.update(groups)
        self._is_training, self._is_wanted = True, False
        self.num_batches += 1
        self.num_mixed += sum(len(result.policies) > 1 for result in results)
        self._last_batch_s = self.now_s

    # ---- the links: late, repeated, reordered, lost --------------------------------------------------------------

    def _post(self, to: str, what: object, *, sure: bool = False) -> None:
        """Send a message. Unless it is `sure` or to a good worker, it may be lost or late; any may come twice."""
        is_good = to in self._names or sure
        delay_s = self.chance.uniform(0.0, 0.02 if is_good else 0.2) * self.limits.lease_timeout_s
        if not is_good and self.chance.random() < 0.05:
            return
        heapq.heappush(self._mail, (self.now_s + delay_s, next(self._orders), to, what))
        if self.chance.random() < 0.03 and not isinstance(what, BatchWanted):
            again_s = delay_s + self.chance.uniform(0.0, 2.0) * self.limits.lease_timeout_s
            heapq.heappush(self._mail, (self.now_s + again_s, next(self._orders), to, what))

    def _say(self, process: Process, event: Event) -> None:
        self._post("", event, sure=process.kind == GOOD)

    def _deliver(self) -> None:
        while self._mail and self._mail[0][0] <= self.now_s:
            _, _, to, what = heapq.heappop(self._mail)
            if not to:
                assert not isinstance(what, str)
                self.tell(what)  # type: ignore[arg-type]
                continue
            process = self.processes.get(to)
            if process is None or not isinstance(what, tuple):
                continue
            for each in what:
                if isinstance(each, Lease):
                    process.queue[each.lease_id] = each
                else:
                    process.queue.pop(each, None)

    # ---- workers ----------------------------------------------------------------------------------------------------

    def _start(self, name: str, kind: str) -> None:
        room = self.chance.choice((1, 2, 4) if kind == GOOD else (1, 8, 64))
        process = Process(name, kind, next(self._epochs), room, self.ledger.policy)
        self.processes[name] = process
        self._hello(process)

    def _hello(self, process: Process) -> None:
        """Begin a worker's session. Its stream is in order, so that nothing overtakes the hello."""
        process.queue.clear()
        for event in joining(process.name, process.policy, process.room, process.epoch):
            self.tell(event)

    def _die(self, process: Process) -> None:
        self.tell(WorkerLeft(process.name, is_dead=self.chance.random() < 0.9))
        self._start(process.name, process.kind)

    def _work(self, process: Process) -> None:
        timeout_s = self.limits.lease_timeout_s
        if process.policy < self.ledger.policy and (process.kind == GOOD or self.chance.random() < 0.3):
            process.policy = self.ledger.policy
            self._say(process, PolicyReached(process.name, process.policy))
        if process.kind == MUTE or self.now_s < process.busy_until_s:
            return
        if process.kind == FLAPPING and self.chance.random() < 0.2:
            self._die(process)
            return
        able = [x for x in process.queue.values() if x.start_at <= process.policy]
        if not able:
            return
        first = min(able, key=lambda x: (x.purpose is Purpose.TRAIN, x.group, x.sample))
        batch = [first] if first.alone else [x for x in able if not x.alone][: self.chance.randint(1, 3)]
        for lease in batch:
            del process.queue[lease.lease_id]
        started = LeasesStarted(process.name, tuple(x.lease_id for x in batch), process.policy)
        self.tell(started)  # written before generation begins
        if any(x.group in self._cursed and x.sample == 0 for x in batch):
            self._die(process)
            return
        if process.kind == HUNG:
            process.busy_until_s = self.now_s + 20.0 * timeout_s
            return
        process.busy_until_s = self.now_s + timeout_s * (3.0 if process.kind == SLOW else 0.05)
        for lease in batch:
            self._send(process, lease)

    def _send(self, process: Process, lease: Lease) -> None:
        if process.kind != GOOD and self.chance.random() < 0.1:
            self._say(process, SampleFailed(process.name, lease.lease_id))
            return
        reward = float(self.chance.randint(0, 1))
        # It began with weights of any age that its lease allows, and passed some of the versions since.
        last = process.policy
        began = lease.start_at.version if lease.start_at.fork == last.fork else last.version
        first = Policy(last.fork, self.chance.randint(min(began, last.version), last.version))
        policies = policies_between(first, last, self.chance.randint(0, 7))
        result = result_of(lease, process.name, *policies, num_tokens=3, num_sampled=3, reward=reward)
        if process.kind == LIAR and self.chance.random() < 0.7:
            result = self._lie(result)
        self._sent.setdefault((result.group, result.sample), []).append(result)
        self._say(process, ResultArrived(result))

    def _lie(self, result: Result) -> Result:
        version, fork = result.policies[0].policy.version, self.ledger.policy.fork
        others = list(self.ledger.state.held.values())
        held = self.chance.choice(others).lease if others else None
        return self.chance.choice(
            [
                replace(result, policies=(PolicyRun(Policy(fork, max(0, version - self.chance.randint(1, 4))), 3),)),
                replace(result, policies=(PolicyRun(Policy(fork, version + self.chance.randint(1, 3)), 3),)),
                replace(result, policies=(PolicyRun(Policy(fork + 1, version), 3),)),
                replace(result, policies=()),
                replace(result, item=result.item + 1),
                replace(result, sample=self.chance.choice((-1, self.limits.group_size, 0))),
                replace(result, group=result.group + self.chance.choice((-1, 1, 10**6))),
                replace(result, num_tokens=10**9),
                replace(result, lease_id=self.chance.randint(0, 10**6)),
                replace(result, lease_id=held.lease_id) if held else result,
                replace(result, group=held.group, sample=held.sample, item=held.item) if held else result,
            ]
        )

    # ---- the trainer ------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        if self._is_training:
            if self.chance.random() < 0.5:
                self._is_training = False
                self.tell(StepDone())
        elif not self._is_wanted and self.ledger.policy.version < self.limits.steps:
            self._is_wanted = True
            self.tell(BatchWanted())

    def _save(self) -> None:
        if not self._is_training:
            self._saved = [*self._saved, Saved(Checkpoint.of(self.ledger), self._consumed)][-3:]

    def _restore(self) -> None:
        """Begin a new fork from a checkpoint, as after the trainer's death or when a cancelled job is resumed."""
        at = self.chance.choice(self._saved) if self._saved else Saved(Checkpoint(), frozenset())
        if not self._saved and self.ledger.policy.fork:
            return
        self._consumed = at.consumed
        self._saved = [each for each in self._saved if each.checkpoint.policy <= at.checkpoint.policy]
        self._begin(at.checkpoint.in_fork(next(self._forks)))
        stored = [sent[0] for key, sent in self._sent.items() if key not in at.consumed and self.chance.random() < 0.5]
        self.tell(Replayed(tuple(stored)))
        self._is_training = self._is_wanted = False
        self._last_batch_s = self.now_s
        for process in self.processes.values():
            process.policy = self.ledger.policy
            self._hello(process)

    # ---- one step of the world --------------------------------------------------------------------------------------

    def goes_on(self, num_events: int, *, patience_s: float) -> None:
        """Run until so many more events were told, and check everything on the way."""
        until, rounds = self.num_events + num_events, 0
        while self.num_events < until and self.ledger.policy.version < self.limits.steps:
            self._mischief()
            self._deliver()
            for name in sorted(self.processes):
                self._work(self.processes[name])
            self._train()
            self.now_s += self.limits.lease_timeout_s * 0.02
            self.tell(ClockTicked())
            rounds += 1
            if rounds % 50 == 0:
                self.check()
            self.longest_wait_s = max(self.longest_wait_s, self.now_s - self._last_batch_s)
            assert self.longest_wait_s <= patience_s, f"no batch for {self.longest_wait_s} s"
        self.check()

    def _mischief(self) -> None:
        chance = self.chance
        if chance.random() < 0.01:
            self._cursed.add(self.ledger.next_group + chance.randint(0, 3))
        if chance.random() < 0.02:
            bad = [name for name in self.processes if name not in self._names]
            if bad:
                self._start(chance.choice(bad), chance.choice(KINDS))
        if chance.random() < 0.01:
            process = self.processes[chance.choice(sorted(self.processes))]
            self._hello(process)  # its stream broke, and it is the same process
        if chance.random() < 0.01:
            self._die(self.processes[chance.choice(sorted(self.processes))])
        if chance.random() < 0.02:
            name = chance.choice(sorted(self.processes))
            self.tell(LeasesStarted(name, (), self.ledger.policy))
        if chance.random() < 0.01 and self.ledger.state.evaluation is None:
            self.tell(EvalAsked(tuple(range(chance.randint(0, 4)))))
        if chance.random() < 0.02:
            self._save()
        if chance.random() < 0.002:
            self._restore()

    # ---- what must hold at all times -----------------------------------------------------------------------------

    def check(self) -> None:
        state, limits = self.ledger.state, self.limits
        state.check(limits.max_sample_tokens)
        still_open = {group.number for group in state.training_groups()}
        assert self._opened <= still_open | self._closed, "a group was lost"
        num_samples = sum(group.size for group in state.groups.values())
        bounds = {
            "deadlines": 2 * len(state.held) + SPARE_DEADLINES,
            "held": num_samples + sum(len(group.hedges) for group in state.groups.values()),
            "waiting": 4 * num_samples + 64,
            "groups": limits.groups_per_step * (limits.bound + 2) + 8,
            "trials": len(state.held),
            "dropped": DROPPED_KEPT,
            "doubted": DOUBTED_KEPT,
            "seats": len(self.processes),
            "early_seats": len(self.processes),
            "workers": len(self.processes),
            "classes": limits.bound + 3,
            "whole_classes": limits.bound + 3,
            "unfinished": limits.bound + 3,
            "reopen": limits.groups_per_step * (limits.bound + 3) * 2,
        }
        for name, most in bounds.items():
            size = len(getattr(state, name))
            self.largest[name] = max(self.largest[name], size)
            assert size <= most, f"{name} has {size} entries, more than {most}"


def of_seed(seed: int, *, steps: int, **changed: object) -> Adversary:
    """Return a run whose size, bound and workers follow from the seed."""
    chance = random.Random(seed)
    groups, size, bound = chance.randint(1, 3), chance.randint(1, 4), chance.randint(0, 3)
    limits = LedgerLimits(
        groups_per_step=groups,
        group_size=size,
        bound=bound,
        steps=steps,
        lease_timeout_s=10.0,
        max_hold_s=20.0,
        max_sample_tokens=4,
        intake_tokens=4 * groups * size * (bound + chance.randint(1, 3)),
        max_attempts=chance.randint(1, 3),
        depth=chance.choice((None, 1.0, 2.0)),
        filter_uniform=chance.random() < 0.3,
    )
    return Adversary(chance, limits, num_good=chance.randint(1, 2), num_bad=chance.randint(0, 6))
