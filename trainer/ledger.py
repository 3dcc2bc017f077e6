"""The ledger: who may produce which sample, what has come back, and which batch is next.

A pure machine: events come in with the time, leases to send come out; no sockets, clocks or random source. Groups are
bound to steps: the groups of step k are numbers k*B .. (k+1)*B-1, and step k consumes exactly these. A lease of step k
asks its worker to start at version k - bound or newer, so what it produces is at most `bound` old when step k consumes
it, whatever happens in between: nothing is ever too late, a lost sample is produced again.

Invariants:
- a sample is accepted once; the first valid result wins, later ones are duplicates;
- a sample that is not accepted waits for a lease or is held under one, and never both;
- a group is trained whole, and steps are consumed in order;
- leases go out at most `bound` + `lookahead_steps` steps ahead, so that round trips cost nothing and work stays
  bounded;
- a worker holds at most its capacity, except for what must not wait: leases that did not yield their sample, and
  evaluation; a worker that let leases expire gets those of others last, until it delivers again;
- accepted work is checked against the bound again when it is consumed (trainer/gate.py): the two do not trust each
  other.

Evaluation samples have groups of their own, greedy and of one sample each, and go before training samples.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from periplus.errors import StateError
from periplus.policy import Policy
from periplus.trajectory import Purpose, Trajectory

EVAL_GROUPS_START = 1 << 40
"""Group numbers of evaluation start here: training never gets so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    """`lookahead_steps`: steps leased beyond those that may start now, so that leases travel early."""

    groups_per_step: int
    group_size: int
    bound: int
    steps: int
    lookahead_steps: int
    lease_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to produce one sample."""

    lease_id: int
    group: int
    sample: int
    item: int
    start_at: Policy
    consume_by_version: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Grant:
    """Effect: send these leases to this worker."""

    worker_id: str
    leases: tuple[Lease, ...]


class Arrival(StrEnum):
    """What became of a result."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"  # never leased, or of another fork
    UNFIT = "unfit"  # not what was leased: another problem or purpose, or no token
    TOO_OLD = "too_old"  # sampled by a policy older than the lease allows, or one that there is not yet


@dataclass(slots=True)
class _Worker:
    capacity: int = 0
    leases: dict[int, tuple[Lease, float]] = field(default_factory=dict)  # lease id -> (lease, granted at)
    is_late: bool = False  # let a lease expire, and has delivered nothing since

    @property
    def has_room(self) -> bool:
        return len(self.leases) < self.capacity


class Ledger:
    """Leases of one fork. `item_of(group)` names the problem of a training group."""

    def __init__(self, limits: LedgerLimits, start: Policy, item_of: Callable[[int], int]) -> None:
        self._limits = limits
        self._item_of = item_of
        self.policy = start
        self._workers: dict[str, _Worker] = {}
        self._waiting: list[tuple[int, int, int]] = []  # heap of (priority, group, sample) without a lease
        self._wanted: dict[tuple[int, int], Lease] = {}  # every sample opened and not yet accepted
        self._done: dict[int, dict[int, Trajectory]] = {}  # group -> sample -> result
        self._next_lease_id = 0
        self._next_eval_group = EVAL_GROUPS_START
        self._first_step = start.version
        self._opened_steps = start.version
        self.num_duplicates = 0
        self.num_refused = 0
        self._open_steps()

    # ---- events ---------------------------------------------------------------------------------------------------

    def worker_joined(self, worker_id: str, now_s: float) -> tuple[Grant, ...]:
        """A worker said hello (again): what it held before is void."""
        grants = self.worker_gone(worker_id, now_s)
        self._workers[worker_id] = _Worker()
        return grants

    def worker_gone(self, worker_id: str, now_s: float) -> tuple[Grant, ...]:
        """Its leases move to others."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return ()
        return self._move([lease for lease, _ in worker.leases.values()], now_s)

    def has_capacity(self, worker_id: str, num_samples: int, now_s: float) -> tuple[Grant, ...]:
        """A worker says how many leases it may hold. Raises: StateError if it never said hello."""
        if worker_id not in self._workers:
            raise StateError(f"worker {worker_id!r} asked for leases before its hello; it must connect again")
        self._workers[worker_id].capacity = num_samples
        return self._grant(now_s)

    def arrived(self, trajectory: Trajectory, now_s: float) -> tuple[Arrival, tuple[Grant, ...]]:
        """A result came in; the room that it leaves is granted anew."""
        ended = self._end_lease(trajectory)
        arrival = self._judge(trajectory)
        if arrival is Arrival.ACCEPTED:
            del self._wanted[trajectory.group, trajectory.sample]
            self._done.setdefault(trajectory.group, {})[trajectory.sample] = trajectory
        elif arrival is Arrival.DUPLICATE:
            self.num_duplicates += 1
        else:
            self.num_refused += 1
        moved = self._move([ended], now_s) if ended is not None else ()
        return arrival, (*moved, *self._grant(now_s))

    def _end_lease(self, trajectory: Trajectory) -> Lease | None:
        """The lease that this result answers, if somebody still holds it: numbers alone repeat from fork to fork."""
        sender = self._workers.get(trajectory.worker_id)
        if sender is not None:
            sender.is_late = False
        for worker in self._workers.values():
            lease, _ = worker.leases.get(trajectory.lease_id, (None, 0.0))
            if lease is not None and (lease.group, lease.sample) == (trajectory.group, trajectory.sample):
                del worker.leases[trajectory.lease_id]
                return lease
        return None

    def _judge(self, trajectory: Trajectory) -> Arrival:
        if any(run.policy.fork != self.policy.fork for run in trajectory.policies):
            return Arrival.UNKNOWN
        wanted = self._wanted.get((trajectory.group, trajectory.sample))
        if wanted is None:
            return Arrival.DUPLICATE if self._was_opened(trajectory.group, trajectory.sample) else Arrival.UNKNOWN
        if (trajectory.item, trajectory.purpose) != (wanted.item, wanted.purpose) or not trajectory.policies:
            return Arrival.UNFIT
        if any(run.policy < wanted.start_at or run.policy > self.policy for run in trajectory.policies):
            return Arrival.TOO_OLD
        return Arrival.ACCEPTED

    def tick(self, now_s: float) -> tuple[Grant, ...]:
        """Leases that took too long move to others; a late result still counts if it is the first."""
        late: list[Lease] = []
        for worker in self._workers.values():
            for lease_id, (lease, granted_s) in list(worker.leases.items()):
                may_start = lease.start_at <= self.policy
                if may_start and now_s - granted_s >= self._limits.lease_timeout_s:
                    worker.is_late = True
                    del worker.leases[lease_id]
                    late.append(lease)
        return self._move(late, now_s)

    def open_eval(self, items: Sequence[int], now_s: float) -> tuple[tuple[int, ...], tuple[Grant, ...]]:
        """Ask for one greedy sample of each item at the present policy or newer; returns the groups to wait for."""
        groups = tuple(range(self._next_eval_group, self._next_eval_group + len(items)))
        self._next_eval_group += len(items)
        for group, item in zip(groups, items, strict=True):
            self._open(group, 0, item, self.policy, self.policy.version, Purpose.EVAL)
        return groups, self._deal_at_once(len(groups), now_s)

    def take(self, groups: Sequence[int]) -> tuple[Trajectory, ...] | None:
        """The whole groups, sorted by (group, sample), and forget them; None while something is missing."""
        if any(len(self._done.get(group, {})) < self._size_of(group) for group in groups):
            return None
        return tuple(done[sample] for group in groups for done in [self._done.pop(group)] for sample in sorted(done))

    def groups_of_step(self) -> tuple[int, ...]:
        """The groups that the next step consumes."""
        size = self._limits.groups_per_step
        return tuple(range(self.policy.version * size, (self.policy.version + 1) * size))

    def advanced(self, now_s: float) -> tuple[Grant, ...]:
        """A batch was consumed: the version rises, new leases open, and time counts for those that may start now."""
        self.policy = self.policy.next()
        self._open_steps()
        for worker in self._workers.values():
            for lease_id, (lease, granted_s) in worker.leases.items():
                if lease.start_at == self.policy:
                    worker.leases[lease_id] = (lease, max(granted_s, now_s))
        return self._grant(now_s)

    @property
    def num_outstanding(self) -> int:
        """Samples leased and not back."""
        return sum(len(worker.leases) for worker in self._workers.values())

    @property
    def outstanding_by_worker(self) -> Mapping[str, int]:
        return {worker_id: len(worker.leases) for worker_id, worker in self._workers.items()}

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _size_of(self, group: int) -> int:
        return 1 if group >= EVAL_GROUPS_START else self._limits.group_size

    def _was_opened(self, group: int, sample: int) -> bool:
        step = group // self._limits.groups_per_step
        known = self._first_step <= step < self._opened_steps or EVAL_GROUPS_START <= group < self._next_eval_group
        return known and sample < self._size_of(group)

    def _open_steps(self) -> None:
        limits = self._limits
        last = min(limits.steps, self.policy.version + limits.bound + limits.lookahead_steps + 1)
        for step in range(self._opened_steps, last):
            start_at = Policy(self.policy.fork, max(step - limits.bound, 0))
            for group in range(step * limits.groups_per_step, (step + 1) * limits.groups_per_step):
                for sample in range(limits.group_size):
                    self._open(group, sample, self._item_of(group), start_at, step, Purpose.TRAIN)
        self._opened_steps = max(self._opened_steps, last)

    def _open(self, group: int, sample: int, item: int, start_at: Policy, consume_by: int, purpose: Purpose) -> None:
        lease = Lease(
            lease_id=0, group=group, sample=sample, item=item, start_at=start_at, consume_by_version=consume_by,
            purpose=purpose,
        )  # fmt: skip
        self._wanted[lease.group, lease.sample] = lease
        self._enqueue(lease)

    def _enqueue(self, lease: Lease) -> None:
        priority = 0 if lease.purpose is Purpose.EVAL else 1
        heapq.heappush(self._waiting, (priority, lease.group, lease.sample))

    def _grant(self, now_s: float) -> tuple[Grant, ...]:
        """Deal waiting samples, group by group, to the worker with room that holds the least."""
        dealt: dict[str, list[Lease]] = {}
        while self._waiting:
            worker_id = self._least_loaded(with_room=True)
            if worker_id is None:
                break
            worker, group = self._workers[worker_id], self._waiting[0][1]
            while self._waiting and self._waiting[0][1] == group and worker.has_room:
                self._issue(worker_id, now_s, dealt)
        return _grants(dealt)

    def _move(self, leases: Sequence[Lease], now_s: float) -> tuple[Grant, ...]:
        unanswered = [lease for lease in leases if (lease.group, lease.sample) in self._wanted]
        for lease in unanswered:
            self._enqueue(lease)
        return self._deal_at_once(len(unanswered), now_s)

    def _deal_at_once(self, num_samples: int, now_s: float) -> tuple[Grant, ...]:
        """Lease so many now, whatever room there is: nothing that was leased before can be consumed without these."""
        dealt: dict[str, list[Lease]] = {}
        while num_samples and self._waiting:
            worker_id = self._least_loaded(with_room=False)
            if worker_id is None:
                break
            num_samples -= self._issue(worker_id, now_s, dealt)
        return _grants(dealt)

    def _least_loaded(self, *, with_room: bool) -> str | None:
        able = [
            (worker.is_late, len(worker.leases), worker_id)
            for worker_id, worker in self._workers.items()
            if worker.capacity and (worker.has_room or not with_room)
        ]
        return min(able)[-1] if able else None

    def _issue(self, worker_id: str, now_s: float, dealt: dict[str, list[Lease]]) -> bool:
        """Give the first waiting sample to a worker; False if it has come in meanwhile."""
        _, group, sample = heapq.heappop(self._waiting)
        wanted = self._wanted.get((group, sample))
        if wanted is None:
            return False
        self._next_lease_id += 1
        lease = replace(wanted, lease_id=self._next_lease_id)
        self._workers[worker_id].leases[lease.lease_id] = (lease, now_s)
        dealt.setdefault(worker_id, []).append(lease)
        return True


def merged(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """The same leases in the same order, one grant a worker."""
    dealt: dict[str, list[Lease]] = {}
    for grant in grants:
        dealt.setdefault(grant.worker_id, []).extend(grant.leases)
    return _grants(dealt)


def _grants(dealt: Mapping[str, Sequence[Lease]]) -> tuple[Grant, ...]:
    return tuple(Grant(worker_id, tuple(leases)) for worker_id, leases in dealt.items())
