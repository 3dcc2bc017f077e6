"""What the journal's lines add up to: one `Fork` for each start of a trainer, with its parent and where it left that.

A fork sees its parent's lines up to the first that its checkpoint does not cover, its grandparent's likewise, and none
of what came after: that happened on a dead branch. `segments` is that view; every look-up goes through it, so that
"trained twice" means twice in one surviving history. Groups of evaluations are a fork's own: each numbers them anew.
Nothing here judges.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from periplus.audit.records import Checkpoint, Consume, Drop, Eval, FrameId, Lease, Open, Result
from periplus.policy import Lineage, Policy
from periplus.trajectory import Purpose

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
    lease: Lease
    returned_at: int = -1
    lost_at: int = -1
    lost_why: str = ""
    superseded: bool = False
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """`by_frame`: its bytes were there and were what the line says."""

    at: int
    result: Result
    by_frame: bool


@dataclass(frozen=True, slots=True)
class Returned:
    """Any result. `purpose`: None if nothing tells. `is_replay`: an earlier fork judged the same bytes first."""

    at: int
    result: Result
    purpose: Purpose | None
    is_replay: bool


@dataclass(slots=True)
class Batch:
    """A consume line, with what was recomputed for it; all but `by_frame` (samples) and `num_tokens` count tokens."""

    at: int
    consume: Consume
    ages: Counter[int] = field(default_factory=Counter)
    stale: int = 0
    from_future: int = 0
    dead_branch: int = 0
    by_frame: int = 0
    num_tokens: list[int] = field(default_factory=list)  # of each sample


@dataclass(slots=True, eq=False)
class Fork:
    """Everything between one `open` and the next.

    `branch_at`: the first line of the parent that it does not see. `pending`: what this history has accepted and not
    yet trained on, dropped or measured. `roots[version]`: the running root of the lineage's batches before that
    version; none where the history before this file is needed for it.
    """

    opened: Open
    at: int
    parent: "Fork | None"
    branch_at: int
    lineage: Lineage
    head: Policy
    roots: dict[int, bytes]
    leases: dict[LeaseKey, Leased] = field(default_factory=dict)
    lease_ids: set[int] = field(default_factory=set)
    newest_lease: int = 0
    num_missing_leases: int = 0
    live: dict[SampleKey, Leased] = field(default_factory=dict)
    items: dict[int, tuple[int, Purpose]] = field(default_factory=dict)
    leased_samples: set[SampleKey] = field(default_factory=set)
    group_leased_at: dict[int, int] = field(default_factory=dict)
    group_ended_at: dict[int, int] = field(default_factory=dict)
    accepted: dict[SampleKey, Accepted] = field(default_factory=dict)
    pending: dict[SampleKey, Accepted] = field(default_factory=dict)
    consumed_at: dict[SampleKey, int] = field(default_factory=dict)
    measured_at: dict[SampleKey, int] = field(default_factory=dict)
    results: list[Returned] = field(default_factory=list)
    judged: dict[FramePlace, int] = field(default_factory=dict)
    drops: list[tuple[int, Drop]] = field(default_factory=list)
    evals: list[tuple[int, Eval]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    checkpoints: list[tuple[int, Checkpoint]] = field(default_factory=list)
    published: dict[Policy, bytes] = field(default_factory=dict)
    ended: str = ""

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
        return self._first_before(lambda fork: fork.group_ended_at, group)

    def consumed(self, sample: SampleKey) -> int | None:
        """The line at which the sample was trained on, or taken for a step that did not train."""
        return self._first_before(lambda fork: fork.consumed_at, sample)

    def has_ended(self, sample: SampleKey) -> bool:
        """Trained on, dropped or used for an evaluation."""
        return sample in self.measured_at or self.group_ended(sample[0]) is not None

    def is_eval(self, group: int) -> bool:
        item = self.group_item(group)
        return item is not None and item[1] is Purpose.EVAL

    def find_lease(self, key: LeaseKey) -> Leased | None:
        """Of this fork, else of an ancestor at any time: what was leased on a dead branch may still be answered."""
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
        """Fill `pending` with what the ancestors had accepted to train on, and not used, when they were left."""
        for fork, limit in reversed(list(self.segments())):
            for sample, found in fork.accepted.items():
                if found.at < limit and not fork.is_eval(sample[0]):
                    self.pending[sample] = found
        for sample in [sample for sample in self.pending if self.has_ended(sample)]:
            del self.pending[sample]

    def end_group(self, group: int, at: int) -> None:
        """Trained on or dropped."""
        self.group_ended_at.setdefault(group, at)
        for sample in range(self.opened.group_size):
            self.pending.pop((group, sample), None)

    def _first_before(self, table: "Callable[[Fork], Mapping[_K, int]]", key: _K) -> int | None:
        for fork, limit in self.segments():
            at = table(fork).get(key)
            if at is not None and at < limit:
                return at
        return None


@dataclass(slots=True)
class History:
    """All forks of a journal in order; the last one is the surviving one."""

    forks: list[Fork] = field(default_factory=list)

    def by_number(self, number: int) -> Fork | None:
        return next((fork for fork in reversed(self.forks) if fork.number == number), None)

    def reached(self, policy: Policy) -> bool:
        """Whether any fork had come to this policy by now."""
        fork = self.by_number(policy.fork)
        return fork is not None and policy.version <= fork.head.version
