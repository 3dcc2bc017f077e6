"""What the journal's lines add up to: one `Fork` for each start of a trainer, with its parent and where it left that.

A fork sees its parent's lines up to the first that its checkpoint does not cover, its grandparent's likewise, and none
of what came after: that happened on a dead branch. `segments` is that view; every look-up goes through it, so that
"trained twice" means twice in one surviving history. Groups of evaluations are a fork's own: each numbers them anew.
Nothing here judges. Nothing here counts up to a number that a line holds: what is done for a line is in proportion to
its bytes, whatever it says, but for look-ups in a fork's ancestors, whose number is bounded (walk.py).
"""

import heapq
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, TypeVar

from periplus.audit.records import (
    CheckpointEntry,
    ConsumeEntry,
    DropEntry,
    EvalEntry,
    FrameId,
    LeaseEntry,
    OpenEntry,
    ResultEntry,
)
from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import Purpose

_K = TypeVar("_K")

FOREVER = sys.maxsize
"""A line number after all lines."""

SampleKey = tuple[int, int]
"""(group, sample)"""
LeaseKey = tuple[int, int, int]
"""(lease, group, sample): numbers of leases may repeat from fork to fork"""
FramePlace = tuple[FrameId, int]
"""A frame and an index in it"""


@dataclass(slots=True)
class Leased:
    """A lease, and how it ended: `returned_at` by a result, `lost_at` without. -1: not. `abandoned`: its worker sent
    what it had, which counts as lost as well.
    """

    at: int
    lease: LeaseEntry
    returned_at: int = -1
    lost_at: int = -1
    lost_why: str = ""
    superseded: bool = False
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """`by_frame`: its bytes were there and were what the line says."""

    at: int
    result: ResultEntry
    by_frame: bool


@dataclass(frozen=True, slots=True)
class Returned:
    """Any result. `purpose`: None if nothing tells. `is_replay`: an earlier fork judged the same bytes first."""

    at: int
    result: ResultEntry
    purpose: Purpose | None
    is_replay: bool


class OldestFrame(NamedTuple):
    """The oldest frame that something needs, and a sample in it."""

    frame: FrameId
    sample: SampleKey


@dataclass(slots=True)
class ConsumedBatch:
    """A consume line, with what was recomputed for it; all but `by_frame` (samples) and `num_tokens` count tokens.

    `oldest`: of the frames of its samples.
    """

    at: int
    consume: ConsumeEntry
    ages: Counter[int] = field(default_factory=Counter)
    stale: int = 0
    from_future: int = 0
    dead_branch: int = 0
    by_frame: int = 0
    num_tokens: list[int] = field(default_factory=list)  # of each sample
    oldest: OldestFrame | None = None


class BatchFrames:
    """The oldest frame among all batches from a version on. Versions are added in rising order.

    Kept are the batches that no later one undercuts, so both versions and frames rise, and each is added and removed
    once.
    """

    def __init__(self) -> None:
        self._versions: list[int] = []
        self._oldest: list[OldestFrame] = []

    def add(self, version: int, oldest: OldestFrame | None) -> None:
        """One more batch; one that goes back in versions is left out, it is a finding already."""
        if oldest is None or (self._versions and version < self._versions[-1]):
            return
        while self._oldest and self._oldest[-1].frame >= oldest.frame:
            self._oldest.pop()
            self._versions.pop()
        self._oldest.append(oldest)
        self._versions.append(version)

    def since(self, version: int) -> OldestFrame | None:
        """The oldest frame of the batches of this version and newer ones."""
        index = bisect_left(self._versions, version)
        return self._oldest[index] if index < len(self._oldest) else None


@dataclass(slots=True, eq=False)
class Fork:
    """Everything between one `open` and the next.

    `branch_at`: the first line of the parent that it does not see. `pending`: by group, what this history has accepted
    and not yet trained on, dropped or measured; `inherited`: of that, what its ancestors had accepted.
    `roots[version]`: the running root of the lineage's batches before that version; none where the history before this
    file is needed for it. `next_lease`: the first number of a lease that has no line yet. `open_evals`: groups that
    were leased to measure, and are neither measured nor dropped. `next_published`: the version that is published next.
    `newest_ended`: the largest number of a group that ended in this fork or an ancestor.
    """

    opened: OpenEntry
    at: int
    parent: "Fork | None"
    branch_at: int
    lineage: Lineage
    head: Policy
    roots: dict[int, bytes]
    leases: dict[LeaseKey, Leased] = field(default_factory=dict)
    lease_ids: set[int] = field(default_factory=set)
    newest_lease: int = 0
    next_lease: int = 1
    num_missing_leases: int = 0
    live: dict[SampleKey, Leased] = field(default_factory=dict)
    items: dict[int, tuple[int, Purpose]] = field(default_factory=dict)
    leased_samples: set[SampleKey] = field(default_factory=set)
    group_leased_at: dict[int, int] = field(default_factory=dict)
    group_ended_at: dict[int, int] = field(default_factory=dict)
    accepted: dict[SampleKey, Accepted] = field(default_factory=dict)
    pending: dict[int, dict[int, Accepted]] = field(default_factory=dict)
    inherited: list[tuple[SampleKey, Accepted]] = field(default_factory=list)
    consumed_at: dict[SampleKey, int] = field(default_factory=dict)
    measured_at: dict[SampleKey, int] = field(default_factory=dict)
    results: list[Returned] = field(default_factory=list)
    judged: dict[FramePlace, int] = field(default_factory=dict)
    drops: list[tuple[int, DropEntry]] = field(default_factory=list)
    evals: list[tuple[int, EvalEntry]] = field(default_factory=list)
    batches: list[ConsumedBatch] = field(default_factory=list)
    checkpoints: list[tuple[int, CheckpointEntry]] = field(default_factory=list)
    checkpointed: dict[Policy, CheckpointEntry] = field(default_factory=dict)
    published: dict[Policy, bytes] = field(default_factory=dict)
    next_published: int = 0
    open_evals: set[int] = field(default_factory=set)
    regions: dict[str, str] = field(default_factory=dict)
    newest_ended: int = -1
    newest_ended_before: int = -1
    ended: str = ""
    _pending_frames: list[tuple[FrameId, SampleKey]] = field(default_factory=list)
    _batch_frames: BatchFrames | None = None

    @property
    def number(self) -> int:
        return self.opened.fork

    def segments(self) -> Iterator[tuple["Fork", int]]:
        """This fork and its ancestors, each with the first line that does not count."""
        fork, limit = self, FOREVER
        while True:
            yield fork, limit
            if fork.parent is None:
                return
            fork, limit = fork.parent, fork.branch_at

    def group_ended(self, group: int) -> int | None:
        """The line at which the group was trained on or dropped in this lineage."""
        return self._first_before(lambda fork: fork.group_ended_at, group, group)

    def consumed(self, sample: SampleKey) -> int | None:
        """The line at which the sample was trained on, or taken for a step that did not train."""
        return self._first_before(lambda fork: fork.consumed_at, sample, sample[0])

    def has_ended(self, sample: SampleKey) -> bool:
        """Trained on, dropped or used for an evaluation."""
        return sample in self.measured_at or self.group_ended(sample[0]) is not None

    def is_eval(self, group: int) -> bool:
        item = self.group_item(group)
        return item is not None and item[1] is Purpose.EVAL

    def find_lease(self, key: LeaseKey) -> Leased | None:
        """Return the lease of this fork, else of any ancestor: one from a dead branch may still be answered."""
        return next((fork.leases[key] for fork, _ in self.segments() if key in fork.leases), None)

    def was_leased(self, sample: SampleKey) -> bool:
        """Whether any lease of the lineage's forks was for it."""
        return any(sample in fork.leased_samples for fork, _ in self.segments())

    def group_item(self, group: int) -> tuple[int, Purpose] | None:
        """The problem that a group's leases name, and what for. Each fork numbers evaluations anew."""
        for fork, _ in self.segments():
            item = fork.items.get(group)
            if item is not None and (fork is self or item[1] is Purpose.TRAIN):
                return item
        return None

    def inherit(self) -> None:
        """Take over what the ancestors had accepted to train on, and not used, when they were left."""
        if self.parent is None:
            return
        self.newest_ended_before = max(self.parent.newest_ended, self.parent.newest_ended_before)
        own = [
            (sample, found)
            for sample, found in self.parent.accepted.items()
            if found.at < self.branch_at and not self.parent.is_eval(sample[0])
        ]
        of_all = dict(self.parent.inherited) | dict(own)
        self.inherited = [(sample, found) for sample, found in of_all.items() if not self.has_ended(sample)]
        for sample, found in self.inherited:
            self.wait(sample, found)

    def waiting(self, sample: SampleKey) -> Accepted | None:
        """What was accepted for the sample, and waits to be used."""
        return self.pending.get(sample[0], {}).get(sample[1])

    def wait(self, sample: SampleKey, accepted: Accepted) -> None:
        """A sample was accepted."""
        self.pending.setdefault(sample[0], {})[sample[1]] = accepted
        if accepted.result.frame is not None:
            heapq.heappush(self._pending_frames, (accepted.result.frame, sample))

    def take(self, sample: SampleKey) -> Accepted | None:
        """The sample waits no more."""
        of_group = self.pending.get(sample[0], {})
        found = of_group.pop(sample[1], None)
        if not of_group:
            self.pending.pop(sample[0], None)
        return found

    def all_waiting(self) -> Iterator[tuple[SampleKey, Accepted]]:
        """Every sample that waits."""
        for group, samples in self.pending.items():
            for sample, found in samples.items():
                yield (group, sample), found

    def oldest_waiting(self) -> OldestFrame | None:
        """The oldest frame that a waiting sample is in."""
        while self._pending_frames:
            frame, sample = self._pending_frames[0]
            found = self.waiting(sample)
            if found is not None and found.result.frame == frame:
                return OldestFrame(frame, sample)
            heapq.heappop(self._pending_frames)
        return None

    def oldest_since(self, version: int) -> OldestFrame | None:
        """The oldest frame of the batches of this history that were trained from this version or a newer one."""
        if self._batch_frames is None:
            self._batch_frames = BatchFrames()
            for segment, limit in reversed(list(self.segments())):
                for batch in takewhile(lambda batch, limit=limit: batch.at < limit, segment.batches):  # type: ignore[misc]
                    self._batch_frames.add(batch.consume.policy.version, batch.oldest)
        return self._batch_frames.since(version)

    def add_batch(self, batch: ConsumedBatch) -> None:
        """One more step."""
        self.batches.append(batch)
        if self._batch_frames is not None:
            self._batch_frames.add(batch.consume.policy.version, batch.oldest)

    def head_at(self, line: int) -> Policy:
        """The policy at which the fork was before this line."""
        num_before = bisect_left(self.batches, line, key=lambda batch: batch.at)
        if num_before:
            return self.batches[num_before - 1].consume.policy.next()
        return Policy(self.number, self.lineage.first_version)

    def end_group(self, group: int, at: int) -> None:
        """Trained on or dropped."""
        self.group_ended_at.setdefault(group, at)
        self.newest_ended = max(self.newest_ended, group)
        self.pending.pop(group, None)

    def _first_before(self, table: "Callable[[Fork], Mapping[_K, int]]", key: _K, group: int) -> int | None:
        own = table(self).get(key)
        if own is not None or group > self.newest_ended_before:  # groups are numbered anew in no fork
            return own
        for fork, limit in self.segments():
            at = table(fork).get(key)
            if at is not None and at < limit:
                return at
        return None


@dataclass(slots=True)
class History:
    """All forks of a journal in order; the last one is the surviving one. `numbered`: the newest of each number."""

    forks: list[Fork] = field(default_factory=list)
    numbered: dict[int, Fork] = field(default_factory=dict)

    def add(self, fork: Fork) -> None:
        """A trainer started."""
        self.forks.append(fork)
        self.numbered[fork.number] = fork

    def by_number(self, number: int) -> Fork | None:
        return self.numbered.get(number)

    def reached(self, policy: Policy) -> bool:
        """Whether any fork had come to this policy by now."""
        fork = self.numbered.get(policy.fork)
        return fork is not None and policy.version <= fork.head.version
