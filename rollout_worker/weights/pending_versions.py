"""Versions that are proven in the host copy and wait for a batch to end, and what to do with them at the boundary.

Pure. All that waits is written at one boundary, oldest first: the engine goes to the newest version and skips serving
those between. What waits is bounded: once the staged elements are more than a share of a full state, or there are too
many versions, they are forgotten, and the engine will be written as a whole from the host copy, which is contiguous and
then no slower. So a worker in a long batch never stops its subscription, and its memory does not grow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from periplus.codec.weights.staged import Staged, Update
from periplus.values.policy import Policy
from rollout_worker.weights.host_copy import Signed

PENDING_VERSIONS = 8
"""Waiting with their elements; a trainer's step takes longer than a batch, so that one or two is what is seen."""

STAGED_SHARE = 0.5
"""Share of the state's bytes: a changed element is staged in 6 bytes and written one by one, where the copy has 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One proven version. `staged` is None where only the host copy has it."""

    signed: Signed
    staged: Staged | None
    recovers: bool
    fallback: bool
    transfer_s: float = 0.0
    apply_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What one boundary does: versions oldest first; `whole`: the host copy is written, not their elements."""

    versions: tuple[Version, ...]
    whole: bool
    recovers: bool

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    @property
    def staged(self) -> tuple[Staged, ...]:
        """What is written, in order, unless it is the whole."""
        return tuple(version.staged for version in self.versions if version.staged is not None)

    def updates(self) -> Iterator[Update]:
        """Elements to write, in order."""
        for staged in self.staged:
            for span in staged.spans:
                yield from span.updates()


class PendingVersions:
    """In the order of the versions."""

    def __init__(self) -> None:
        self._versions: list[Version] = []
        self._staged_bytes = 0
        self._is_whole = False
        self._recovers = False

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def is_whole(self) -> bool:
        """Whether the next swap will write the host copy, which must then hold still."""
        return self._is_whole

    def add(self, version: Version) -> None:
        """The host copy is at this version now."""
        self._versions.append(version)
        self._recovers |= version.recovers
        if version.staged is not None:
            self._staged_bytes += sum(span.nbytes for span in version.staged.spans)
            room_bytes = STAGED_SHARE * version.staged.layout.content_bytes
            self._is_whole |= self._staged_bytes > room_bytes
        self._is_whole |= version.staged is None or len(self._versions) > PENDING_VERSIONS
        if self._is_whole:
            self._versions = [replace(one, staged=None) for one in self._versions[-PENDING_VERSIONS:]]

    def take(self) -> Swap | None:
        """All of it; None if nothing waits."""
        if not self._versions:
            return None
        swap = Swap(versions=tuple(self._versions), whole=self._is_whole, recovers=self._recovers)
        self.clear()
        return swap

    def skip_to(self, policy: Policy | None) -> None:
        """The engine is at this policy already: a full state that catches up to it brings nothing but its recovery.

        What comes next is written whole: a fold from a state that is older than the engine's says nothing of elements
        that have changed since and changed back.
        """
        if policy is not None and self._versions and self._versions[-1].signed.policy <= policy:
            recovers = self._recovers
            self.clear()
            self._recovers = self._is_whole = recovers

    def host_is_lost(self) -> None:
        """What only the host copy had cannot be written any more; staged elements can."""
        if self._is_whole:
            self.clear()

    def clear(self) -> None:
        self._versions, self._staged_bytes = [], 0
        self._is_whole = self._recovers = False


def check_is_due(swap: Swap, num_since_check: int, every_versions: int) -> bool:
    """Whether the engine itself is to be checked after this swap. `num_since_check`: with this swap's versions."""
    return swap.recovers or num_since_check >= every_versions
