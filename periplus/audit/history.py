"""State that the lines of an audit journal add up to: a `History` of forks, each with its leases, results and batches.

A `Fork` is everything from one start of a trainer to the next. It has a parent if it started from a checkpoint. It
then sees its parent's lines up to the first one that the checkpoint does not cover, and its grandparent's likewise.
What its ancestors wrote after that happened on a *dead branch*. `Fork.segments` is this view, and every look-up uses
it, so "trained twice" means twice in one history. Numbers of evaluation groups are valid within one fork only.

This module checks nothing; walk.py and batches.py do. The work for a line is in proportion to its bytes, whatever
numbers it holds, except for look-ups in a fork's ancestors, of which there is a limited number (walk.MAX_FORKS).
"""

import heapq
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, TypeVar

from periplus.audit.evidence import Witness
from periplus.audit.records import (
    CheckpointEntry,
    ConsumeEntry,
    DoubtEntry,
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
"""Line number that lies after every line: the limit of a history that is not cut."""

SampleKey = tuple[int, int]
"""Identity of a sample: (group, sample)."""
LeaseKey = tuple[int, int, int]
"""Identity of a lease: (lease, group, sample). The number alone may repeat from fork to fork."""
FramePlace = tuple[FrameId, int]
"""Place of a trajectory: its frame, and its index in it."""


@dataclass(slots=True)
class Leased:
    """A lease, the line `at` which it was granted, and how it ended.

    `returned_at` is the line of its result and `lost_at` the line of its loss; -1 stands for none. A lease is
    `abandoned` if its worker sent an unfinished sample; such a lease is lost as well. It is `superseded` if its sample
    was leased again while it was still out.
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
    """A result that was accepted at line `at`. `kept` is the sample in its frame, or None without that frame."""

    at: int
    result: ResultEntry
    kept: Witness | None


@dataclass(frozen=True, slots=True)
class Returned:
    """A result with any verdict, at line `at`.

    `purpose` is None if neither its lease nor its frame is known. With `is_replay` an earlier fork has a
    result for the same bytes.
    """

    at: int
    result: ResultEntry
    purpose: Purpose | None
    is_replay: bool


class OldestFrame(NamedTuple):
    """The oldest of several frames, and one sample in it, which a finding can name."""

    frame: FrameId
    sample: SampleKey


@dataclass(slots=True)
class ConsumedBatch:
    """A batch that left the ledger at line `at`, with the figures that were recomputed for it.

    `ages` counts tokens by age in versions. `stale`, `from_future` and `dead_branch` count tokens that break the
    promise. `by_frame` counts the samples whose frames were compared. `oldest` is the oldest frame of its samples.
    `reward_mean` is the mean reward of the samples with frames, or None if none of them was judged.
    """

    at: int
    consume: ConsumeEntry
    ages: Counter[int] = field(default_factory=Counter)
    stale: int = 0
    from_future: int = 0
    dead_branch: int = 0
    by_frame: int = 0
    reward_mean: float | None = None
    num_tokens: list[int] = field(default_factory=list)  # of each sample's completion
    oldest: OldestFrame | None = None


class BatchFrames:
    """Index that answers which frame is the oldest among all batches from a given version on.

    Batches are added in rising order of version. Kept are only those that have an older frame than every later batch,
    so versions and frames both rise, a query is one bisection, and each batch is added and removed at most once.
    """

    def __init__(self) -> None:
        self._versions: list[int] = []
        self._oldest: list[OldestFrame] = []

    def add(self, version: int, oldest: OldestFrame | None) -> None:
        """Add a batch. One whose version is below the newest is ignored, because it is a finding already."""
        if oldest is None or (self._versions and version < self._versions[-1]):
            return
        while self._oldest and self._oldest[-1].frame >= oldest.frame:
            self._oldest.pop()
            self._versions.pop()
        self._oldest.append(oldest)
        self._versions.append(version)

    def since(self, version: int) -> OldestFrame | None:
        """Return the oldest frame among the batches of this version and newer ones, or None without any."""
        index = bisect_left(self._versions, version)
        return self._oldest[index] if index < len(self._oldest) else None


@dataclass(slots=True, eq=False)
class Fork:
    """State of one fork: everything between one `open` line and the next.

    - `at` is the line of its `open`, and `branch_at` the first line of the parent that it does not see.
    - `live` holds the leases that are out, by sample, and `hedges` second leases of samples that are in `live`.
      `next_lease` is the lowest lease number that has no line yet.
    - `pending` holds, by group, the samples that this history has accepted and not yet used or dropped. `inherited`
      lists those of them that its ancestors had accepted.
    - `open_evals` are the groups that were leased for an evaluation, and are neither evaluated nor dropped.
    - `background` is the policy at which an evaluation began for which training does not wait, until it is over.
      `measured_at` maps the samples of those that are to their lines.
    - `verdict_at` maps a place in a frame to the line of its result in this fork.
    - `roots[version]` is the running root over the lineage's batches before that version. It is missing if it depends
      on lines that this file does not have.
    - `next_published` is the version that has to be published next.
    - `exported` is the digest of the exported model if it is not that of the version that was published last.
    - `newest_ended` is the largest number of a group that ended in this fork, and `newest_ended_before` of those that
      ended in its ancestors.
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
    hedges: dict[SampleKey, Leased] = field(default_factory=dict)
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
    verdict_at: dict[FramePlace, int] = field(default_factory=dict)
    drops: list[tuple[int, DropEntry]] = field(default_factory=list)
    doubts: list[tuple[int, DoubtEntry]] = field(default_factory=list)
    evals: list[tuple[int, EvalEntry]] = field(default_factory=list)
    batches: list[ConsumedBatch] = field(default_factory=list)
    checkpoints: list[tuple[int, CheckpointEntry]] = field(default_factory=list)
    checkpointed: dict[Policy, CheckpointEntry] = field(default_factory=dict)
    published: dict[Policy, bytes] = field(default_factory=dict)
    next_published: int = 0
    open_evals: set[int] = field(default_factory=set)
    background: Policy | None = None
    regions: dict[str, str] = field(default_factory=dict)
    newest_ended: int = -1
    newest_ended_before: int = -1
    ended: str = ""
    exported: bytes | None = None
    _pending_frames: list[tuple[FrameId, SampleKey]] = field(default_factory=list)
    _batch_frames: BatchFrames | None = None

    @property
    def number(self) -> int:
        return self.opened.fork

    def segments(self) -> Iterator[tuple["Fork", int]]:
        """Yield this fork and its ancestors, each with the first of its lines that this fork does not see."""
        fork, limit = self, FOREVER
        while True:
            yield fork, limit
            if fork.parent is None:
                return
            fork, limit = fork.parent, fork.branch_at

    def group_ended(self, group: int) -> int | None:
        """Return the line at which a group was trained on or dropped in this history, or None."""
        return self._first_before(lambda fork: fork.group_ended_at, group, group)

    def consumed(self, sample: SampleKey) -> int | None:
        """Return the line of the batch that consumed a sample, whether or not its step trained, or None."""
        return self._first_before(lambda fork: fork.consumed_at, sample, sample[0])

    def has_ended(self, sample: SampleKey) -> bool:
        """Return whether a sample was trained on, dropped or used for an evaluation."""
        return sample in self.measured_at or self.group_ended(sample[0]) is not None

    def is_eval(self, group: int) -> bool:
        item = self.group_item(group)
        return item is not None and item[1] is Purpose.EVAL

    def find_lease(self, key: LeaseKey, worker_id: str) -> Leased | None:
        """Return a lease of this fork, or else of any ancestor: even one of a dead branch may still be answered.

        A lease of this worker comes first, because numbers of leases repeat from fork to fork. If there is none, a
        lease that another worker had is returned.
        """
        # Limits do not count here: a lease of a dead branch is found as well.
        found = [fork.leases[key] for fork, _ in self.segments() if key in fork.leases]
        own = (leased for leased in found if leased.lease.worker_id == worker_id)
        return next(own, found[0] if found else None)

    def result_of(self, sample: SampleKey) -> ResultEntry | None:
        """Return the accepted result of a training sample in this history, or None."""
        found = (fork.accepted[sample] for fork, _ in self.segments() if sample in fork.accepted)
        return next((accepted.result for accepted in found), None)

    def was_leased(self, sample: SampleKey) -> bool:
        """Return whether this fork or an ancestor ever leased the sample."""
        return any(sample in fork.leased_samples for fork, _ in self.segments())

    def group_item(self, group: int) -> tuple[int, Purpose] | None:
        """Return the problem and the purpose of a group's leases, or None. Evaluations count in this fork only."""
        for fork, _ in self.segments():
            item = fork.items.get(group)
            if item is not None and (fork is self or item[1] is Purpose.TRAIN):
                return item
            if fork.opened.other_problems:
                return None  # groups that its ancestors opened were of other problems
        return None

    def inherit(self) -> None:
        """Take over the training samples that the ancestors had accepted and not used at the branching line."""
        if self.parent is None:
            return
        # This bounds the search for ended groups: above it, no ancestor has to be asked.
        self.newest_ended_before = max(self.parent.newest_ended, self.parent.newest_ended_before)
        # Evaluations are not inherited: a restored trainer runs them anew.
        own = [
            (sample, found)
            for sample, found in self.parent.accepted.items()
            if found.at < self.branch_at and not self.parent.is_eval(sample[0])
        ]
        # The parent's own result wins over the one that it had inherited itself.
        of_all = dict(self.parent.inherited) | dict(own)
        self.inherited = [(sample, found) for sample, found in of_all.items() if not self.has_ended(sample)]
        for sample, found in self.inherited:
            self.wait(sample, found)

    def waiting(self, sample: SampleKey) -> Accepted | None:
        """Return the accepted result of a sample that is not used yet, or None."""
        return self.pending.get(sample[0], {}).get(sample[1])

    def wait(self, sample: SampleKey, accepted: Accepted) -> None:
        """Record that a sample was accepted, and waits to be used."""
        self.pending.setdefault(sample[0], {})[sample[1]] = accepted
        if accepted.result.frame is not None:
            heapq.heappush(self._pending_frames, (accepted.result.frame, sample))

    def take(self, sample: SampleKey) -> Accepted | None:
        """Remove a sample from those that wait, and return its accepted result, or None."""
        of_group = self.pending.get(sample[0], {})
        found = of_group.pop(sample[1], None)
        if not of_group:
            self.pending.pop(sample[0], None)
        return found

    def all_waiting(self) -> Iterator[tuple[SampleKey, Accepted]]:
        """Yield every accepted sample that waits to be used."""
        for group, samples in self.pending.items():
            for sample, found in samples.items():
                yield (group, sample), found

    def oldest_waiting(self) -> OldestFrame | None:
        """Return the oldest frame that holds a waiting sample, or None. The heap drops entries that no longer wait."""
        while self._pending_frames:
            frame, sample = self._pending_frames[0]
            found = self.waiting(sample)
            if found is not None and found.result.frame == frame:
                return OldestFrame(frame, sample)
            heapq.heappop(self._pending_frames)
        return None

    def oldest_since(self, version: int) -> OldestFrame | None:
        """Return the oldest frame of this history's batches that were trained from this version or a newer one."""
        if self._batch_frames is None:
            self._batch_frames = BatchFrames()
            for segment, limit in reversed(list(self.segments())):
                for batch in takewhile(lambda batch, limit=limit: batch.at < limit, segment.batches):  # type: ignore[misc]
                    self._batch_frames.add(batch.consume.policy.version, batch.oldest)
        return self._batch_frames.since(version)

    def add_batch(self, batch: ConsumedBatch) -> None:
        """Record the batch of one more step."""
        self.batches.append(batch)
        if self._batch_frames is not None:
            self._batch_frames.add(batch.consume.policy.version, batch.oldest)

    def head_at(self, line: int) -> Policy:
        """Return the policy at which the fork was before this line."""
        num_before = bisect_left(self.batches, line, key=lambda batch: batch.at)
        if num_before:
            return self.batches[num_before - 1].consume.policy.next()
        return Policy(self.number, self.lineage.first_version)

    def end_group(self, group: int, at: int) -> None:
        """Record that a group was trained on or dropped at this line."""
        self.group_ended_at.setdefault(group, at)
        self.newest_ended = max(self.newest_ended, group)
        self.pending.pop(group, None)

    def _first_before(self, table: "Callable[[Fork], Mapping[_K, int]]", key: _K, group: int) -> int | None:
        own = table(self).get(key)
        if own is not None or group > self.newest_ended_before:  # then no ancestor has ended it
            return own
        for fork, limit in self.segments():
            at = table(fork).get(key)
            if at is not None and at < limit:
                return at
        return None


@dataclass(slots=True)
class History:
    """All forks of a journal in order, of which the last one survives. `numbered` has the newest one of each number."""

    forks: list[Fork] = field(default_factory=list)
    numbered: dict[int, Fork] = field(default_factory=dict)

    def add(self, fork: Fork) -> None:
        """Append the fork of a trainer that started."""
        self.forks.append(fork)
        self.numbered[fork.number] = fork

    def by_number(self, number: int) -> Fork | None:
        return self.numbered.get(number)

    def reached(self, policy: Policy) -> bool:
        """Return whether a fork has reached this policy so far."""
        fork = self.numbered.get(policy.fork)
        return fork is not None and policy.version <= fork.head.version
