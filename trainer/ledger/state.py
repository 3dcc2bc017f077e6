"""The ledger's state: groups, leases, workers and measured times. One `Ledger` owns it and changes it in place.

A *group* is the samples of one prompt, a *lease* is a worker's right to produce one of them, and the *class* of a group
is the oldest version that any of its tokens has or may have (staleness_window.py). The methods of `LedgerState` keep
the sums and indexes in step with the groups, so that no decision has to go through all of them; they decide nothing.

Invariants, asserted by `check`:
- Every live lease is recorded in its group (for which sample), at its worker (who holds it) and in `held`, and these
  agree. A sample has at most two live leases, at two workers: its first one, and a hedge of it (hedging.py).
- Every sample of an open group is exactly one of done, leased or waiting.
- Two ledgers that applied the same events are equal, field by field (asserted by tests).

Memory is bounded. The heap of deadlines holds one entry for each live lease that may start, and up to about as many
outdated ones: a deadline that moved later is corrected when its entry comes up. Everything else is removed with the
group, lease or worker that it describes, except for the last `DROPPED_KEPT` dropped groups and the last `DOUBTED_KEPT`
workers that left on probation (machine.py).
"""

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field

from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import Purpose
from trainer.ledger.values import Lease, Result

SPARE_DEADLINES = 64
"""Number of outdated entries that the heap of deadlines may hold even if there are few leases, so that a small heap is
not rebuilt again and again. Chosen by hand."""


@dataclass(slots=True)
class Held:
    """A live lease and the worker that holds it.

    `deadline_s` is None while the lease may not start yet. A lease that is not started may live longer, because its
    worker is at work (`LeasingWorker.spared_until_s`); `LedgerState.deadline_of` says how long. `is_trial`: its worker
    was on probation when it was granted, or when it could start, so a more reliable worker may take the sample over.
    `oldest` is the oldest version that the sample may have if it comes by this lease. `is_hedge`: another live lease of
    the sample was granted before; when that one ends, this one takes its place and is no hedge any more.
    """

    lease: Lease
    worker_id: str
    deadline_s: float | None
    oldest: int
    is_started: bool = False
    is_trial: bool = False
    is_hedge: bool = False
    tokens: float = 0.0  # expected of the sample when the lease was granted


@dataclass(slots=True)
class SampleGroup:
    """An open group: the samples of one prompt, of which some are done and some are leased.

    `oldest[sample]` is the oldest version that a sample has, or may have while it is produced. Samples that only wait
    for a lease have no entry.
    """

    number: int
    item: int
    purpose: Purpose
    size: int
    opened_s: float
    version: int  # the group's class (staleness_window.py): the smallest of `oldest`
    leases: dict[int, int] = field(default_factory=dict)  # sample -> lease id
    hedges: dict[int, int] = field(default_factory=dict)  # sample -> id of its second live lease
    hedged: set[int] = field(default_factory=set)  # samples that were ever hedged
    done: dict[int, Result] = field(default_factory=dict)
    oldest: dict[int, int] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)  # sample -> attempts without a valid result
    lost: set[int] = field(
        default_factory=set
    )  # samples not done, of which a worker that died or let its lease expire had a lease

    @property
    def is_whole(self) -> bool:
        """Whether all samples are done."""
        return len(self.done) == self.size

    @property
    def misses_only_lost(self) -> bool:
        """Whether samples are missing, and all of them were lost before and are produced again."""
        return bool(self.lost) and len(self.done) + len(self.lost) == self.size

    def leases_of(self, sample: int) -> tuple[int, ...]:
        """Return the live leases of a sample: none, one, or the first one and its hedge."""
        return tuple(ids[sample] for ids in (self.leases, self.hedges) if sample in ids)

    @property
    def rank(self) -> tuple[int, int]:
        """Key by which groups are consumed: the earliest deadline first, then the smallest number."""
        return self.version, self.number


@dataclass(slots=True)
class MeasuredSpeed:
    """How many tokens of accepted samples a worker makes in a second in which it holds a lease that may start.

    It covers the last few steps, so that a change is followed within them. None before the first step with a result.
    """

    tokens_per_s: float | None = None
    tokens: float = 0.0
    busy_s: float = 0.0
    busy_since_s: float | None = None

    KEPT = 0.7  # what a step leaves of earlier ones, chosen by hand: a change counts for 0.9 after seven steps

    def note(self, now_s: float, *, is_busy: bool) -> None:
        """Take note of whether the worker has work now."""
        if self.busy_since_s is not None:
            self.busy_s += now_s - self.busy_since_s
        self.busy_since_s = now_s if is_busy else None

    def end_step(self, now_s: float) -> None:
        """Compute the speed anew at the end of a step."""
        self.note(now_s, is_busy=self.busy_since_s is not None)
        if self.tokens > 0.0 and self.busy_s > 0.0:
            self.tokens_per_s = self.tokens / self.busy_s
        self.tokens *= self.KEPT
        self.busy_s *= self.KEPT


@dataclass(slots=True)
class LeasingWorker:
    """A rollout worker as the ledger knows it: its room, its leases, its weights and how far it is trusted.

    - `epoch` identifies one start of its process; 0 if unknown.
    - `room` is the number of leases that it can hold and that may start now; it can queue as many of the next version.
    - `early` holds those of its leases that may not start yet.
    - `background` holds its leases of an evaluation for which training does not wait. They take none of its room.
    - `policy` is the version of its weights, None before it has said so. `is_behind`: the weights are so old that it
      gets no leases.
    - `allowance` is the number of leases that it may hold while it is on *probation*, and None if it is trusted with
      all its room. A worker that lets a lease expire, or dies while it produces samples, is allowed one lease, and one
      more for each of its results that is accepted. So a worker that hangs holds one lease, and the leases of one that
      has recovered double with each round.
    - `strikes` counts how often it let leases expire or died since its last accepted result; it is at least 1 on
      probation. Workers with fewer strikes are served first.
    - `spared_until_s`: before this time none of its leases that are not started expires. It moves with each lease that
      the worker starts or delivers, so that one change spares all that wait in the worker's queue.
    - `region` is where it is, and empty if unknown.
    - `heard_s` is when it last started or delivered a sample, or got work while it had none. `quiet_s` is its measured
      time between two such signs, and None before its first result. `is_silent`: it has been quiet for so much longer
      that it gets no leases (hedging.py).
    - `expected_tokens` is the sum over its leases that may start now, `early_tokens` that over the others. `speed` is
      its measured speed (`MeasuredSpeed`).
    """

    epoch: int = 0
    region: str = ""
    room: int = 0
    leases: dict[int, None] = field(default_factory=dict)  # ids, in the order of granting
    early: set[int] = field(default_factory=set)
    background: set[int] = field(default_factory=set)
    policy: Policy | None = None
    allowance: int | None = None
    strikes: int = 0
    is_behind: bool = False
    spared_until_s: float = -math.inf
    heard_s: float = 0.0
    quiet_s: float | None = None
    is_silent: bool = False
    expected_tokens: float = 0.0
    early_tokens: float = 0.0
    speed: MeasuredSpeed = field(default_factory=MeasuredSpeed)

    @property
    def is_idle(self) -> bool:
        """Whether it holds no lease that may start now."""
        return len(self.leases) == len(self.early)

    @property
    def is_late(self) -> bool:
        """Whether it is on probation."""
        return self.allowance is not None

    @property
    def may_hold(self) -> int:
        """Number of leases that it may hold: its room, limited by its allowance on probation."""
        return self.room if self.allowance is None else min(self.room, self.allowance)

    @property
    def free(self) -> int:
        """Number of further leases that it may get and that can start now; early ones are not counted against it."""
        return self.free_early + len(self.early)

    @property
    def free_early(self) -> int:
        """Number of further leases of the next version that it may get."""
        return self.may_hold - len(self.leases) + len(self.background)


@dataclass(slots=True)
class ExpectedLengths:
    """Mean tokens of the samples of each item that was seen, and of all; 1 before the first sample.

    Of items only the last `ITEMS_KEPT` are known, in the order of their newest samples.
    """

    of_all: float = 1.0
    num: int = 0
    of_item: dict[int, float] = field(default_factory=dict)

    ITEMS_KEPT = 1 << 16  # chosen by hand: some megabytes
    WEIGHT = 0.25  # weight of the newest sample of an item, chosen by hand: groups of eight have seen two rounds

    def saw(self, item: int, num_tokens: int) -> None:
        """Take in the length of one sample."""
        self.num += 1
        self.of_all += (num_tokens - self.of_all) / min(self.num, 256)
        before = self.of_item.pop(item, None)
        self.of_item[item] = num_tokens if before is None else before + self.WEIGHT * (num_tokens - before)
        if len(self.of_item) > self.ITEMS_KEPT:
            del self.of_item[next(iter(self.of_item))]

    def expected(self, item: int) -> float:
        """Return the tokens that a sample of the item is expected to have."""
        return self.of_item.get(item, self.of_all)


@dataclass(slots=True)
class MeasuredDurations:
    """Measured durations in seconds, as exponentially weighted means; None before the first measurement.

    `step_s` is the time of one training step. `group_s` is the time from the opening of a group until it is complete,
    and `group_deviation_s` is the mean absolute deviation of that.
    """

    step_s: float | None = None
    group_s: float | None = None
    group_deviation_s: float = 0.0

    WEIGHT = 0.1  # weight of the newest value, chosen by hand: the mean covers the last tens of steps and groups

    def saw_step(self, seconds: float) -> None:
        """Take in the duration of one training step."""
        self.step_s = seconds if self.step_s is None else self.step_s + self.WEIGHT * (seconds - self.step_s)

    def saw_group(self, seconds: float) -> None:
        """Take in the time that one group took from its opening until it was complete."""
        if self.group_s is None:
            self.group_s, self.group_deviation_s = seconds, seconds / 2
            return
        off = seconds - self.group_s
        self.group_s += self.WEIGHT * off
        self.group_deviation_s += self.WEIGHT * (abs(off) - self.group_deviation_s)


@dataclass(slots=True)
class LedgerState:
    """Everything that the ledger knows, and indexes over it.

    `policy` is the one that the next batch is trained from, or the present one is being trained from. `held` maps the
    number of a lease to the lease. `waiting` is a heap of samples that wait for a lease, as (priority, group, sample);
    samples of an evaluation in the background wait in `idle_waiting`.
    `seats` ranks the workers that may get a lease: the smallest (strikes, place, id) first. The place is below 0 if the
    worker has room, and lower the sooner it will have made what it holds (`seat`).
    """

    policy: Policy
    lineage: Lineage
    next_group: int
    next_eval_group: int
    group_size: int
    reopen: list[int]  # heap: numbers of groups that an earlier fork left open, and that are not open here
    now_s: float = 0.0
    awake_s: float = 0.0  # since when events have come without a long gap (hedging.py)
    training_since_s: float | None = None
    in_training: tuple[int, ...] = ()  # groups of the batch that is being trained
    batch_wanted: bool = False
    wanted_since_s: float = 0.0  # when the last batch was asked for
    next_lease_id: int = 1
    groups: dict[int, SampleGroup] = field(default_factory=dict)
    num_train_groups: int = 0
    classes: Counter[int] = field(default_factory=Counter)  # class -> number of open training groups
    idle: set[int] = field(default_factory=set)  # training groups of which no sample is done or leased
    unfinished: dict[int, set[int]] = field(default_factory=dict)  # class -> training groups that miss a sample
    whole: set[int] = field(default_factory=set)  # training groups that have all their samples
    whole_classes: Counter[int] = field(default_factory=Counter)  # class -> number of groups in `whole`
    reserved_tokens: int = 0  # of training groups: the true size of samples that are done, the largest size of the rest
    workers: dict[str, LeasingWorker] = field(default_factory=dict)
    seats: dict[str, tuple[int, float, str]] = field(default_factory=dict)  # for leases that can start now
    early_seats: dict[str, tuple[int, float, str]] = field(default_factory=dict)  # for the next version
    held: dict[int, Held] = field(default_factory=dict)
    trials: dict[int, None] = field(default_factory=dict)  # numbers of leases that are trials
    doubted: dict[str, tuple[int, int]] = field(default_factory=dict)  # left on probation: allowance, strikes
    deadlines: list[tuple[float, int]] = field(default_factory=list)  # heap of (deadline, lease id), some outdated
    waiting: list[tuple[int, int, int]] = field(default_factory=list)  # heap; some entries are outdated
    dropped: dict[int, None] = field(default_factory=dict)  # numbers of the groups dropped last
    evaluation: tuple[int, ...] | None = None  # numbers of its groups in the order of the items; None: none runs
    is_background: bool = False  # whether training goes on during the evaluation
    idle_waiting: list[tuple[int, int]] = field(default_factory=list)  # heap: (group, sample) of such an evaluation
    hold_since_s: float | None = None  # since when a complete batch waits for older groups
    lost_since_s: float | None = None  # since when it waits for lost samples only
    num_filtered: int = 0  # groups with equal rewards dropped since the last batch
    pace: MeasuredDurations = field(default_factory=MeasuredDurations)
    lengths: ExpectedLengths = field(default_factory=ExpectedLengths)
    sample_tokens: float = 1.0  # mean of all samples, as of the end of the last step
    tokens_per_s_of_room: float | None = None  # measured over all workers together; None before any speed is known

    @property
    def next_step(self) -> int:
        """Number of the step whose batch is formed next; step k starts from version k."""
        return self.policy.version + (self.training_since_s is not None)

    def training_groups(self) -> list[SampleGroup]:
        """Return the open groups of training, without those of an evaluation."""
        return [group for group in self.groups.values() if group.purpose is Purpose.TRAIN]

    def put_group(self, group: SampleGroup, max_sample_tokens: int) -> None:
        """Open a group. A training group reserves room for its samples at their largest size."""
        self.groups[group.number] = group
        if group.purpose is Purpose.TRAIN:
            self.classes[group.version] += 1
            self.num_train_groups += 1
            self.idle.add(group.number)
            self.unfinished.setdefault(group.version, set()).add(group.number)
            self.reserved_tokens += group.size * max_sample_tokens

    def put_result(self, group: SampleGroup, result: Result, oldest: int, max_sample_tokens: int) -> None:
        """Mark a sample as done. Its true size takes the place of the largest size in the reserved tokens."""
        group.done[result.sample] = result
        group.lost.discard(result.sample)
        self.set_oldest(group, result.sample, oldest)
        if group.purpose is Purpose.TRAIN:
            # Until now the sample was counted at its largest size.
            self.reserved_tokens += result.num_tokens - max_sample_tokens
            if group.is_whole:
                _take_out(self.unfinished, group)
                self.whole.add(group.number)
                self.whole_classes[group.version] += 1

    def set_oldest(self, group: SampleGroup, sample: int, version: int | None) -> None:
        """Set the oldest version that a sample may have, or None while nobody produces it, and the group's class.

        A group of which no sample is done or leased rises to the present version.
        """
        before = group.version
        if version is None:
            group.oldest.pop(sample, None)
        else:
            group.oldest[sample] = version
        if group.purpose is Purpose.TRAIN:
            (self.idle.discard if group.oldest else self.idle.add)(group.number)
        # Samples that only wait do not bind the group to an old version.
        self.set_class(group, min(group.oldest.values(), default=max(before, self.policy.version)))

    def set_class(self, group: SampleGroup, version: int) -> None:
        """Move an unfinished group to another class."""
        if group.purpose is Purpose.TRAIN and version != group.version:
            self.classes[version] += 1
            _take_one(self.classes, group.version)
            _take_out(self.unfinished, group)
            self.unfinished.setdefault(version, set()).add(group.number)
        group.version = version

    def remove_group(self, group: SampleGroup, max_sample_tokens: int) -> None:
        """Forget a group that was consumed or dropped, and free its room."""
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
        """Compute the worker's place in `seats` and `early_seats` anew; to be called after any change of the worker."""
        worker = self.workers.get(worker_id)
        self.seats.pop(worker_id, None)
        self.early_seats.pop(worker_id, None)
        if worker is None:
            return
        if worker.is_idle == (worker.speed.busy_since_s is not None):
            worker.speed.note(self.now_s, is_busy=not worker.is_idle)
        if worker.room <= 0 or worker.is_behind or worker.is_silent:
            return
        # The place rises from -1 to 0 with the time until the worker has made what it holds and one group more. Each
        # version is divided by itself: in a synchronous run the next one begins only when all are done with this one.
        for seats, free, tokens in (
            (self.seats, worker.free, worker.expected_tokens),
            (self.early_seats, worker.free_early, worker.early_tokens),
        ):
            if free > 0 or not worker.is_late:  # urgent work goes to trusted workers whatever room they have
                needed_s = (tokens + self.group_size * self.sample_tokens) / self.speed_of(worker)
                place = -1.0 / (1.0 + needed_s) if free > 0 else 0.0
                seats[worker_id] = (worker.strikes, place, worker_id)

    def speed_of(self, worker: LeasingWorker) -> float:
        """Return a worker's tokens per second. One that was not measured has that of its room in all workers."""
        return worker.speed.tokens_per_s or (self.tokens_per_s_of_room or 1.0) * worker.room

    def measure_speeds(self) -> None:
        """Compute speeds and the mean size of a sample anew, at a step's end. Then all workers are to be seated."""
        self.sample_tokens = self.lengths.of_all
        for worker in self.workers.values():
            worker.speed.end_step(self.now_s)
        known = [worker for worker in self.workers.values() if worker.speed.tokens_per_s and worker.room]
        if known:
            speeds = sum(worker.speed.tokens_per_s or 0.0 for worker in known)
            self.tokens_per_s_of_room = speeds / sum(worker.room for worker in known)

    def deadline_of(self, held: Held) -> float | None:
        """Return when the lease expires, or None while it may not start yet."""
        if held.deadline_s is None or held.is_started:
            return held.deadline_s
        return max(held.deadline_s, self.workers[held.worker_id].spared_until_s)

    def set_deadline(self, held: Held, deadline_s: float) -> None:
        """Set when the lease expires. A deadline that is set again must be later: the heap keeps the earlier entry."""
        is_new = held.deadline_s is None
        held.deadline_s = deadline_s
        if is_new:
            heapq.heappush(self.deadlines, (deadline_s, held.lease.lease_id))

    def put_on_trial(self, held: Held) -> None:
        """Mark a lease of a worker on probation as a trial: a more reliable worker may take its sample over."""
        held.is_trial = True
        self.trials[held.lease.lease_id] = None

    def pop_overdue(self) -> int | None:
        """Take the lease whose deadline passed first off the heap of deadlines, and return its number, or None.

        An entry of the heap is never later than its lease's deadline. An earlier one is put back with the true deadline
        only when it seems to be over, so a worker that spares its leases with each result costs nothing until then.
        """
        while self.deadlines and self.deadlines[0][0] <= self.now_s:
            entry_s, lease_id = self.deadlines[0]
            held = self.held.get(lease_id)
            deadline_s = None if held is None else self.deadline_of(held)
            if deadline_s is None or deadline_s == entry_s:
                heapq.heappop(self.deadlines)
                if deadline_s is not None:
                    return lease_id
            else:  # the deadline has moved later
                heapq.heapreplace(self.deadlines, (deadline_s, lease_id))
        return None

    def forget_ended_deadlines(self) -> None:
        """Rebuild the heap of deadlines if it has more than twice as many entries as there are leases, plus
        SPARE_DEADLINES."""
        if len(self.deadlines) > 2 * len(self.held) + SPARE_DEADLINES:
            live = ((self.deadline_of(held), lease_id) for lease_id, held in self.held.items())
            self.deadlines = [(deadline_s, lease_id) for deadline_s, lease_id in live if deadline_s is not None]
            heapq.heapify(self.deadlines)

    def check(self, max_sample_tokens: int) -> None:
        """Assert the invariants of the module's docstring, and that sums and indexes agree with the groups.

        Tests call it after every event; it goes through everything.
        """
        # Counts and sets of groups are those that a look at all groups gives.
        train = self.training_groups()
        assert self.classes == Counter(min(group.oldest.values(), default=group.version) for group in train)
        assert self.num_train_groups == len(train)
        assert self.idle == {group.number for group in train if not group.oldest}
        unfinished = {(group.version, group.number) for group in train if not group.is_whole}
        assert {(v, number) for v, numbers in self.unfinished.items() for number in numbers or [-1]} == unfinished
        assert self.whole == {group.number for group in train if group.is_whole}
        assert self.whole_classes == Counter(group.version for group in train if group.is_whole)
        assert self.reserved_tokens == sum(_room_of(group, max_sample_tokens) for group in train)
        # Group, worker and table agree on every live lease.
        for lease_id, held in self.held.items():
            assert lease_id in self.workers[held.worker_id].leases
            group, sample = self.groups[held.lease.group], held.lease.sample
            assert (group.hedges if held.is_hedge else group.leases)[sample] == lease_id
            assert group.oldest[sample] == min(self.held[each].oldest for each in group.leases_of(sample))
        assert sum(len(worker.leases) for worker in self.workers.values()) == len(self.held)
        assert set(self.trials) == {lease_id for lease_id, held in self.held.items() if held.is_trial}
        assert len(self.deadlines) <= 2 * len(self.held) + SPARE_DEADLINES
        # The heap's earliest entry of a lease is never later than its deadline, so none is overlooked.
        entries = dict.fromkeys(self.held, math.inf)
        entries |= {lease_id: entry_s for entry_s, lease_id in sorted(self.deadlines, reverse=True)}
        due = ((lease_id, self.deadline_of(held)) for lease_id, held in self.held.items())
        assert all(due_s is None or entries[lease_id] <= due_s for lease_id, due_s in due)
        # Every worker has the place that `seat` would give it now.
        seats = dict(self.seats), dict(self.early_seats)
        for worker_id, worker in self.workers.items():
            assert worker.is_late == (worker.strikes > 0)
            assert worker.early == {lease_id for lease_id in worker.leases if self.held[lease_id].deadline_s is None}
            of_evaluation = {i for i in worker.leases if self.held[i].lease.purpose is Purpose.EVAL}
            assert worker.background == (of_evaluation if self.is_background else set())
            self.seat(worker_id)
        assert (self.seats, self.early_seats) == seats
        for worker in self.workers.values():
            early = sum(self.held[lease_id].tokens for lease_id in worker.early)
            now = sum(self.held[lease_id].tokens for lease_id in worker.leases) - early
            assert math.isclose(worker.early_tokens, early, abs_tol=1e-6)
            assert math.isclose(worker.expected_tokens, now, abs_tol=1e-6)
        # Every sample is in exactly one place.
        waiting = {(group, sample) for _, group, sample in self.waiting} | set(self.idle_waiting)
        for group in self.groups.values():
            out = [held for held in self.held.values() if held.lease.group == group.number]
            assert len(out) == len(group.leases) + len(group.hedges)
            assert len({(held.worker_id, held.lease.sample) for held in out}) == len(out)
            assert group.hedges.keys() <= group.leases.keys() & group.hedged
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
    """Return the tokens reserved for a group: true sizes of what is done, the largest size for the rest."""
    return (group.size - len(group.done)) * max_sample_tokens + sum(r.num_tokens for r in group.done.values())
