"""The ledger's state: groups, workers, measured times. It is owned by one Ledger, which changes it in place.

Two ledgers that were told the same are equal, field by field. Every live lease stands in three places that agree: its
group (which sample it is for), its worker (who holds it) and the table of leases; `check` asserts that, and that every
sample of an open group is done, leased or waiting, and exactly one of them.

The heap of deadlines holds one entry for each live lease that may start, and entries of ended leases up to the same
number: a deadline that moves later is found when its entry comes up. Nothing else here outlives what it is about,
except for the last `DROPPED_KEPT` dropped groups and the last `DOUBTED_KEPT` workers that left on probation.
"""

import heapq
from collections import Counter
from dataclasses import dataclass, field

from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import Purpose
from trainer.ledger.values import Lease, Result

SPARE_DEADLINES = 64
"""Outdated entries that the heap of deadlines may hold however few leases there are, so that small heaps are not
rebuilt again and again."""


@dataclass(slots=True)
class Held:
    """A live lease and who holds it. `deadline_s`: None while it may not start yet. `is_trial`: its worker was on
    probation when it was granted, or when it could start.
    """

    lease: Lease
    worker_id: str
    deadline_s: float | None
    is_started: bool = False
    is_trial: bool = False


@dataclass(slots=True)
class SampleGroup:
    """An open group. `oldest[sample]`: the oldest version that the sample has, or may have while it is produced."""

    number: int
    item: int
    purpose: Purpose
    size: int
    opened_s: float
    version: int  # its class, see window.py: the smallest of `oldest`
    leases: dict[int, int] = field(default_factory=dict)  # sample -> lease id
    done: dict[int, Result] = field(default_factory=dict)
    oldest: dict[int, int] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)
    lost: set[int] = field(default_factory=set)  # samples not in, of which a dead or silent worker had a lease

    @property
    def is_whole(self) -> bool:
        return len(self.done) == self.size

    @property
    def misses_only_lost(self) -> bool:
        """Nothing is missing but what is being produced again."""
        return bool(self.lost) and len(self.done) + len(self.lost) == self.size

    @property
    def rank(self) -> tuple[int, int]:
        """Earliest deadline first."""
        return self.version, self.number


@dataclass(slots=True)
class LeasingWorker:
    """`early`: those of its leases that may not start yet. `is_behind`: its weights are too old for it to get any.

    `allowance`: the leases that it may hold while it is on *probation*, None if it is trusted with all its room. Who
    lets a lease expire, or dies while producing samples, is allowed one lease, and one more for each result of its that
    is accepted: so a worker that hangs holds one lease, and one that has recovered gets twice as many each time.
    `strikes`: how often it did so since its last accepted result, one at least while it is on probation; who has fewer
    is served first.
    """

    epoch: int = 0
    room: int = 0
    leases: dict[int, None] = field(default_factory=dict)  # ids, in the order of granting
    early: set[int] = field(default_factory=set)
    policy: Policy | None = None
    allowance: int | None = None
    strikes: int = 0
    is_behind: bool = False

    @property
    def is_late(self) -> bool:
        """Whether it is on probation."""
        return self.allowance is not None

    @property
    def may_hold(self) -> int:
        """Leases that it may hold; `room` of a worker that is trusted."""
        return self.room if self.allowance is None else min(self.room, self.allowance)

    @property
    def free(self) -> int:
        """Room for leases that can start now."""
        return self.free_early + len(self.early)

    @property
    def free_early(self) -> int:
        """Room for leases of the next version."""
        return self.may_hold - len(self.leases)


@dataclass(slots=True)
class Pace:
    """Measured seconds, exponentially weighted: of one step, and from opening a group until it is whole."""

    step_s: float | None = None
    group_s: float | None = None
    group_deviation_s: float = 0.0

    WEIGHT = 0.1  # of the newest: some tens of groups, a few tens of steps

    def saw_step(self, seconds: float) -> None:
        self.step_s = seconds if self.step_s is None else self.step_s + self.WEIGHT * (seconds - self.step_s)

    def saw_group(self, seconds: float) -> None:
        if self.group_s is None:
            self.group_s, self.group_deviation_s = seconds, seconds / 2
            return
        off = seconds - self.group_s
        self.group_s += self.WEIGHT * off
        self.group_deviation_s += self.WEIGHT * (abs(off) - self.group_deviation_s)


@dataclass(slots=True)
class LedgerState:
    """Everything that the ledger knows."""

    policy: Policy
    lineage: Lineage
    next_group: int
    next_eval_group: int
    reopen: list[int]  # heap: groups of an earlier fork that were opened and not consumed
    now_s: float = 0.0
    training_since_s: float | None = None
    in_training: tuple[int, ...] = ()  # groups of the batch that is being trained
    batch_wanted: bool = False
    next_lease_id: int = 1
    groups: dict[int, SampleGroup] = field(default_factory=dict)
    num_train_groups: int = 0
    classes: Counter[int] = field(default_factory=Counter)  # training groups of each class
    idle: set[int] = field(default_factory=set)  # training groups of which nothing is there or leased
    unfinished: dict[int, set[int]] = field(default_factory=dict)  # class -> training groups that miss a sample
    whole: set[int] = field(default_factory=set)  # training groups that have all their samples
    whole_classes: Counter[int] = field(default_factory=Counter)
    reserved_tokens: int = 0  # of training groups: the largest size for what is not in yet, the true one for what is
    workers: dict[str, LeasingWorker] = field(default_factory=dict)
    seats: dict[str, tuple[int, float, str]] = field(default_factory=dict)  # who may be leased to; the least first
    early_seats: dict[str, tuple[int, float, str]] = field(default_factory=dict)  # the same for the next version
    held: dict[int, Held] = field(default_factory=dict)
    trials: dict[int, None] = field(default_factory=dict)  # leases granted to workers on probation
    doubted: dict[str, tuple[int, int]] = field(default_factory=dict)  # who left on probation: allowance and strikes
    deadlines: list[tuple[float, int]] = field(default_factory=list)  # heap of (deadline, lease id), some outdated
    waiting: list[tuple[int, int, int]] = field(default_factory=list)  # heap: priority, group, sample; some outdated
    dropped: dict[int, None] = field(default_factory=dict)  # the groups dropped last
    evaluation: tuple[int, ...] | None = None  # its groups, in the order asked for
    hold_since_s: float | None = None
    lost_since_s: float | None = None  # since when the hold is for lost samples only
    num_filtered: int = 0
    pace: Pace = field(default_factory=Pace)

    @property
    def next_step(self) -> int:
        """The step whose batch is formed next."""
        return self.policy.version + (self.training_since_s is not None)

    def training_groups(self) -> list[SampleGroup]:
        return [group for group in self.groups.values() if group.purpose is Purpose.TRAIN]

    def put_group(self, group: SampleGroup, max_sample_tokens: int) -> None:
        """Open a group."""
        self.groups[group.number] = group
        if group.purpose is Purpose.TRAIN:
            self.classes[group.version] += 1
            self.num_train_groups += 1
            self.idle.add(group.number)
            self.unfinished.setdefault(group.version, set()).add(group.number)
            self.reserved_tokens += group.size * max_sample_tokens

    def put_result(self, group: SampleGroup, result: Result, oldest: int, max_sample_tokens: int) -> None:
        """The sample is in: its true size takes the place of the largest."""
        group.done[result.sample] = result
        group.lost.discard(result.sample)
        self.set_oldest(group, result.sample, oldest)
        if group.purpose is Purpose.TRAIN:
            self.reserved_tokens += result.num_tokens - max_sample_tokens
            if group.is_whole:
                _take_out(self.unfinished, group)
                self.whole.add(group.number)
                self.whole_classes[group.version] += 1

    def set_oldest(self, group: SampleGroup, sample: int, version: int | None) -> None:
        """The oldest version that this sample may have; None while nobody produces it."""
        before = group.version
        if version is None:
            group.oldest.pop(sample, None)
        else:
            group.oldest[sample] = version
        if group.purpose is Purpose.TRAIN:
            (self.idle.discard if group.oldest else self.idle.add)(group.number)
        self.set_class(group, min(group.oldest.values(), default=max(before, self.policy.version)))

    def set_class(self, group: SampleGroup, version: int) -> None:
        if group.purpose is Purpose.TRAIN and version != group.version:
            self.classes[version] += 1
            _take_one(self.classes, group.version)
            _take_out(self.unfinished, group)
            self.unfinished.setdefault(version, set()).add(group.number)
        group.version = version

    def remove_group(self, group: SampleGroup, max_sample_tokens: int) -> None:
        """Consumed or dropped: its room is free."""
        del self.groups[group.number]
        if group.purpose is Purpose.TRAIN:
            _take_one(self.classes, group.version)
            self.idle.discard(group.number)
            if group.is_whole:
                self.whole.remove(group.number)
                _take_one(self.whole_classes, group.version)
            else:
                _take_out(self.unfinished, group)
            self.num_train_groups -= 1
            self.reserved_tokens -= _room_of(group, max_sample_tokens)

    def seat(self, worker_id: str) -> None:
        """Who may be leased to, with what comes first: to be called when anything about the worker has changed."""
        worker = self.workers.get(worker_id)
        self.seats.pop(worker_id, None)
        self.early_seats.pop(worker_id, None)
        if worker is None or worker.room <= 0 or worker.is_behind:
            return
        for seats, free in ((self.seats, worker.free), (self.early_seats, worker.free_early)):
            if free > 0 or not worker.is_late:  # urgent work goes to trusted workers whatever room they have
                seats[worker_id] = (worker.strikes, -free / worker.room, worker_id)

    def set_deadline(self, held: Held, deadline_s: float) -> None:
        """The lease ends then; a deadline that is set again only moves later."""
        is_new = held.deadline_s is None
        held.deadline_s = deadline_s
        if is_new:
            heapq.heappush(self.deadlines, (deadline_s, held.lease.lease_id))

    def put_on_trial(self, held: Held) -> None:
        """The lease is one of a worker on probation: a better worker may take its sample over."""
        held.is_trial = True
        self.trials[held.lease.lease_id] = None

    def forget_outdated_deadlines(self) -> None:
        """Leave the deadline of a live lease on top of the heap, and hardly more outdated entries than live leases."""
        if len(self.deadlines) > 2 * len(self.held) + SPARE_DEADLINES:
            live = ((held.deadline_s, lease_id) for lease_id, held in self.held.items())
            self.deadlines = [(deadline_s, lease_id) for deadline_s, lease_id in live if deadline_s is not None]
            heapq.heapify(self.deadlines)
        while self.deadlines:
            deadline_s, lease_id = self.deadlines[0]
            held = self.held.get(lease_id)
            if held is None:
                heapq.heappop(self.deadlines)
            elif held.deadline_s == deadline_s:
                return
            else:
                assert held.deadline_s is not None
                heapq.heapreplace(self.deadlines, (held.deadline_s, lease_id))

    def check(self, max_sample_tokens: int) -> None:
        """Assert what the docstring promises, and that the sums are sums."""
        train = self.training_groups()
        assert self.classes == Counter(min(group.oldest.values(), default=group.version) for group in train)
        assert self.num_train_groups == len(train)
        assert self.idle == {group.number for group in train if not group.oldest}
        unfinished = {(group.version, group.number) for group in train if not group.is_whole}
        assert {(v, number) for v, numbers in self.unfinished.items() for number in numbers or [-1]} == unfinished
        assert self.whole == {group.number for group in train if group.is_whole}
        assert self.whole_classes == Counter(group.version for group in train if group.is_whole)
        assert self.reserved_tokens == sum(_room_of(group, max_sample_tokens) for group in train)
        for lease_id, held in self.held.items():
            assert lease_id in self.workers[held.worker_id].leases
            assert self.groups[held.lease.group].leases[held.lease.sample] == lease_id
        assert sum(len(worker.leases) for worker in self.workers.values()) == len(self.held)
        assert set(self.trials) == {lease_id for lease_id, held in self.held.items() if held.is_trial}
        assert len(self.deadlines) <= 2 * len(self.held) + SPARE_DEADLINES
        assert {i for i, held in self.held.items() if held.deadline_s is not None} <= {i for _, i in self.deadlines}
        seats = dict(self.seats), dict(self.early_seats)
        for worker_id, worker in self.workers.items():
            assert worker.is_late == (worker.strikes > 0)
            assert worker.early == {lease_id for lease_id in worker.leases if self.held[lease_id].deadline_s is None}
            self.seat(worker_id)
        assert (self.seats, self.early_seats) == seats
        waiting = {(group, sample) for _, group, sample in self.waiting}
        for group in self.groups.values():
            assert sum(held.lease.group == group.number for held in self.held.values()) == len(group.leases)
            for sample in range(group.size):
                places = (sample in group.done) + (sample in group.leases)
                assert places == 1 or (places == 0 and (group.number, sample) in waiting)


def _take_one(counts: Counter[int], key: int) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _take_out(numbers: dict[int, set[int]], group: SampleGroup) -> None:
    numbers[group.version].remove(group.number)
    if not numbers[group.version]:
        del numbers[group.version]


def _room_of(group: SampleGroup, max_sample_tokens: int) -> int:
    return (group.size - len(group.done)) * max_sample_tokens + sum(r.num_tokens for r in group.done.values())
