"""Versions that are proven in the host copy and wait to be written into the engine.

All pending versions are written at once, oldest first: the engine goes to the newest one and never serves those
between. *Staged* elements are the decoded new values of what changed; a *full state* is all weights of one version. The
memory of staged elements is bounded. Once they take more than `STAGED_SHARE` of a full state, or more than
`PENDING_VERSIONS` versions wait, they are dropped. Then the whole engine is written from the host copy, which is
contiguous and therefore no slower by then. So a slow write or check neither stops the subscription nor lets the
worker's memory grow.

The module is pure: it says what to write, and the engine writes it.
"""

from dataclasses import dataclass, replace

from periplus.codec.weights.staged import Staged
from periplus.values.policy import Policy
from rollout_worker.weights.host_copy import Signed

PENDING_VERSIONS = 8
"""Largest number of versions that wait with their elements. One or two are usual, because a trainer's step takes longer
than a write. Chosen by hand.
"""

STAGED_SHARE = 0.5
"""Largest size of the staged elements, as a share of the state's bytes. A changed element is staged in 6 bytes and
written alone, while the copy has 2 bytes for it. Chosen by hand.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version that is proven in the host copy.

    `staged` has its changed elements; None if only the host copy has them. `recovers`: it follows a failure, a derived
    publication or a new fork, so the engine is checked after it. `fallback`: it did not come as the signed delta from
    the version before. `transfer_s` and `apply_s` are as in VersionReport.
    """

    signed: Signed
    staged: Staged | None
    recovers: bool
    fallback: bool
    transfer_s: float = 0.0
    apply_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What is written at once. `versions` are ordered oldest first.

    `whole`: the host copy is written instead of the versions' elements. `recovers`: the engine is to be checked
    afterwards.
    """

    versions: tuple[Version, ...]
    whole: bool
    recovers: bool

    @property
    def newest(self) -> Version:
        """The version that the engine will have."""
        return self.versions[-1]

    @property
    def staged(self) -> tuple[Staged, ...]:
        """Staged changes of the versions in the order in which to write them. Do not use it when `whole`."""
        return tuple(version.staged for version in self.versions if version.staged is not None)


class PendingVersions:
    """The pending versions, oldest first."""

    def __init__(self) -> None:
        self._versions: list[Version] = []
        self._staged_bytes = 0
        self._is_whole = False
        self._recovers = False

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def is_whole(self) -> bool:
        """Whether the next swap will write from the host copy, which must then not change meanwhile."""
        return self._is_whole

    def add(self, version: Version) -> None:
        """Add a version, to which the host copy has just been brought."""
        self._versions.append(version)
        # A check that is due because of a skipped version is not lost with it.
        self._recovers |= version.recovers
        if version.staged is not None:
            self._staged_bytes += sum(span.nbytes for span in version.staged.spans)
            room_bytes = STAGED_SHARE * version.staged.layout.content_bytes
            self._is_whole |= self._staged_bytes > room_bytes
        self._is_whole |= version.staged is None or len(self._versions) > PENDING_VERSIONS
        # Once the host copy will be written, the staged elements only take memory.
        if self._is_whole:
            self._versions = [replace(one, staged=None) for one in self._versions[-PENDING_VERSIONS:]]

    def take(self) -> Swap | None:
        """Remove all pending versions, and return them as one swap; None if there are none."""
        if not self._versions:
            return None
        swap = Swap(versions=tuple(self._versions), whole=self._is_whole, recovers=self._recovers)
        self.clear()
        return swap

    def skip_to(self, policy: Policy | None) -> None:
        """Drop versions that are not newer than `policy`, the engine's own, unless newer ones follow them.

        Such versions come from a full state that catches up to the engine. If they were to recover the engine, the next
        swap is written whole: several deltas merged into one, from a state older than the engine's, lack the elements
        that changed since and changed back.
        """
        if policy is not None and self._versions and self._versions[-1].signed.policy <= policy:
            # What is dropped may have been meant to recover the engine. Then the next swap writes it whole and checks
            # it.
            recovers = self._recovers
            self.clear()
            self._recovers = self._is_whole = recovers

    def host_is_lost(self) -> None:
        """Drop versions that only the host copy had, because it is not trusted any more.

        Staged elements are still valid.
        """
        if self._is_whole:
            self.clear()

    def clear(self) -> None:
        """Drop all pending versions."""
        self._versions, self._staged_bytes = [], 0
        self._is_whole = self._recovers = False


def check_is_due(swap: Swap, num_since_check: int, every_versions: int) -> bool:
    """Return whether the engine's own tensors must be checked after this swap.

    `num_since_check` counts versions since the last check, those of this swap included.
    """
    return swap.recovers or num_since_check >= every_versions
