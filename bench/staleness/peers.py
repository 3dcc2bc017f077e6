"""Other ways to bound staleness, each from its published description, on the same dispatcher.

All of them open a group only when a worker has room for a sample, and give each sample to the worker with the largest
free share, which is the least that any balancer does; a sample whose worker died is asked for again. The rules:

- `areal`: admits while accepted + running < (bound + version + 1) * B; first finished, first consumed; checks nothing.
- `prime_rl`: admits while no whole batch waits for the trainer; cuts groups in flight that are past the bound when a
  version comes, and drops finished ones before a batch is formed.
- `synchronous`: the groups of this step, with its weights.
- `drop`: `areal`'s admission, samples begin with the version that admitted them; groups past the bound are dropped
  before a batch is formed, and give their room back.
- `hold`: the same admission; the oldest first, and the trainer waits for every group that this step is the last to be
  allowed. Nothing limits how many groups come due at one step: with deaths it is late now and then.

Sources: AReaL, arXiv 2505.24298, section 5.1, and its code's capacity = min(max_concurrent - running, (bound + version
+ 1) * B - (accepted + running)), counted in groups, where `max_concurrent` is here the workers' room: never too little
to keep them busy; prime-rl's dispatcher (`on_version_pending`, `drop_group`, `dispatch_allowed`) and its train sink.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bench.staleness.simulator import (
    Ask,
    Attempt,
    BatchWanted,
    Cancel,
    Drop,
    Fate,
    Joined,
    Left,
    Message,
    Order,
    Progress,
    Reached,
    Start,
    StepDone,
    Ticked,
    Train,
)
from bench.staleness.world import World


class Rule(StrEnum):
    AREAL = "areal"
    PRIME_RL = "prime_rl"
    SYNCHRONOUS = "synchronous"
    DROP = "drop"
    HOLD = "hold"


@dataclass(slots=True)
class _Group:
    number: int
    started: dict[int, int] = field(default_factory=dict)  # sample -> version at its start
    done: dict[int, Attempt] = field(default_factory=dict)
    finished_at: int = -1  # order of becoming whole
    opened_at: int = 0

    @property
    def oldest(self) -> int:
        """The oldest version in it, as far as anybody knows."""
        return min(self.started.values(), default=self.opened_at)


@dataclass(slots=True)
class _Worker:
    room: int
    leases: dict[int, tuple[int, int]] = field(default_factory=dict)  # key -> (group, sample)


class Peer:
    """A scheduler under one of the rules."""

    def __init__(self, rule: Rule, world: World) -> None:
        self._rule, self._world = rule, world
        self._bound = 0 if rule is Rule.SYNCHRONOUS else world.bound
        self._version = 0
        self._wanted = False
        self._workers: dict[str, _Worker] = {}
        self._groups: dict[int, _Group] = {}  # open: not consumed, not dropped
        self._waiting: list[tuple[int, int]] = []  # heap of (group, sample)
        self._num_whole = 0
        self._num_consumed = 0
        self._next_group = 0
        self._next_key = 1

    def hears(self, message: Message, now_s: float) -> Sequence[Order]:
        orders: list[Order] = []
        match message:
            case Joined(worker, room, _):
                self._workers[worker] = _Worker(room)
            case Left(worker):
                for group, sample in self._workers.pop(worker).leases.values():
                    if group in self._groups:
                        heapq.heappush(self._waiting, (group, sample))
            case Progress():
                self._heard(message, orders)
            case BatchWanted():
                self._wanted = True
            case StepDone(version):
                self._version = version
                if self._rule is Rule.PRIME_RL:
                    self._cut(orders)
            case Reached() | Ticked():
                return ()
        if self._wanted:
            self._form_batch(orders)
        self._deal(orders)
        return orders

    def _heard(self, progress: Progress, orders: list[Order]) -> None:
        worker = self._workers.get(progress.worker)
        for attempt in progress.begun:
            if (group := self._groups.get(attempt.group)) is not None:
                group.started[attempt.sample] = attempt.version
        for attempt in progress.finished:
            if worker is not None:
                worker.leases.pop(attempt.key, None)
            group = self._groups.get(attempt.group)
            if group is None or attempt.sample in group.done:
                if attempt.fate is Fate.OPEN:
                    orders.append(Drop((attempt,)))
                continue
            group.done[attempt.sample] = attempt
            if len(group.done) == self._world.group_size:
                group.finished_at = self._num_whole
                self._num_whole += 1

    # ---- admission ------------------------------------------------------------------------------------------------

    def _may_open(self) -> bool:
        per_step = self._world.groups_per_step
        if self._rule is Rule.PRIME_RL:
            return sum(group.finished_at >= 0 for group in self._groups.values()) < per_step
        return self._num_consumed + len(self._groups) < (self._bound + self._version + 1) * per_step

    def _deal(self, orders: list[Order]) -> None:
        dealt: dict[str, list[Ask]] = {}
        shares = [(-(w.room - len(w.leases)) / w.room, name) for name, w in self._workers.items()]
        heapq.heapify(shares)
        while shares and shares[0][0] < 0.0:
            while self._waiting and not self._is_missing(*self._waiting[0]):
                heapq.heappop(self._waiting)
            if not self._waiting:
                if not self._may_open():
                    break
                self._open()
            group, sample = heapq.heappop(self._waiting)
            name = shares[0][1]
            worker = self._workers[name]
            worker.leases[self._next_key] = (group, sample)
            start_at = self._version if self._rule in (Rule.SYNCHRONOUS, Rule.HOLD, Rule.DROP) else 0
            dealt.setdefault(name, []).append(Ask(self._next_key, group, sample, start_at))
            self._next_key += 1
            heapq.heapreplace(shares, (-(worker.room - len(worker.leases)) / worker.room, name))
        orders.extend(Start(name, tuple(asks)) for name, asks in dealt.items())

    def _is_missing(self, number: int, sample: int) -> bool:
        group = self._groups.get(number)
        return group is not None and sample not in group.done

    def _open(self) -> None:
        self._groups[self._next_group] = _Group(self._next_group, opened_at=self._version)
        for sample in range(self._world.group_size):
            heapq.heappush(self._waiting, (self._next_group, sample))
        self._next_group += 1

    # ---- consumption ----------------------------------------------------------------------------------------------

    def _form_batch(self, orders: list[Order]) -> None:
        if self._rule in (Rule.PRIME_RL, Rule.DROP):
            for group in list(self._groups.values()):
                if group.finished_at >= 0 and self._version - group.oldest > self._bound:
                    self._drop(group, orders)
        whole = [group for group in self._groups.values() if group.finished_at >= 0]
        if len(whole) < self._world.groups_per_step:
            return
        whole.sort(key=lambda group: group.finished_at)
        if self._rule is Rule.HOLD:
            last = self._version - self._bound
            if any(group.finished_at < 0 and group.oldest <= last for group in self._groups.values()):
                return
            whole.sort(key=lambda group: (group.oldest, group.finished_at))
        batch = whole[: self._world.groups_per_step]
        for group in batch:
            del self._groups[group.number]
        self._num_consumed += len(batch)
        self._wanted = False
        orders.append(Train(tuple(attempt for group in batch for attempt in group.done.values())))

    def _drop(self, group: _Group, orders: list[Order]) -> None:
        del self._groups[group.number]
        orders.append(Drop(tuple(group.done.values())))

    def _cut(self, orders: list[Order]) -> None:
        """Groups in flight that began too long ago end here."""
        stale = {
            group.number: group
            for group in self._groups.values()
            if group.finished_at < 0 and group.started and self._version - group.oldest > self._bound
        }
        for group in stale.values():
            self._drop(group, orders)
        for name, worker in self._workers.items():
            keys = tuple(key for key, (group, _) in worker.leases.items() if group in stale)
            for key in keys:
                del worker.leases[key]
            if keys:
                orders.append(Cancel(name, keys, running=True))
