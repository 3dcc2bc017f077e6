"""Queue of leases that a worker has not started: it decides which ones are generated together next.

The queue is pure: leases come in, and batches go out. Only leases that may start with the present weights are taken,
evaluation first, then by group and sample. A lease whose `start_at` lies ahead waits until those weights arrive. A
lease of a fork that the weights have left behind is dropped. Lease ids are unique within a fork: an id that comes again
is the same lease. A sample at which earlier attempts failed is taken alone, so that it is known to be at fault if the
worker then dies.
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedLease:
    """The right to produce one sample (see trainer/ledger/values.py).

    `item` is the problem's index in the environment, `start_at` the oldest policy that may generate the sample. With
    `alone` it is generated in a batch of its own.
    """

    lease_id: int
    group: int
    sample: int
    item: int
    start_at: Policy
    consume_by_version: int
    purpose: Purpose
    alone: bool = False


SPARE_ENTRIES = 64
"""Entries of revoked leases that the heap may hold, however few leases wait, so that a small heap is not rebuilt at
every call. Chosen by hand.
"""


class LeaseQueue:
    """Leases that are not started yet, in the order (evaluation first, group, sample)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, tuple[int, int]]] = []
        self._leases: dict[tuple[int, int], QueuedLease] = {}  # by (fork, lease id)

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: QueuedLease) -> None:
        """Add a lease, unless it is in the queue already."""
        first, key = 0 if lease.purpose is Purpose.EVAL else 1, (lease.start_at.fork, lease.lease_id)
        if key not in self._leases:
            self._leases[key] = lease
            heapq.heappush(self._heap, (first, lease.group, lease.sample, key))
            self._forget_revoked()

    def has_startable(self, policy: Policy | None) -> bool:
        """Return whether a lease may start with the weights of `policy`; False without weights."""
        return policy is not None and any(self._may_start(lease, policy) for lease in self._leases.values())

    def take(self, policy: Policy, at_most: int) -> tuple[QueuedLease, ...]:
        """Remove and return up to `at_most` leases that may start at `policy` together."""
        taken: list[QueuedLease] = []
        held: list[tuple[int, int, int, tuple[int, int]]] = []
        while self._heap and len(taken) < at_most:
            entry = heapq.heappop(self._heap)
            lease = self._leases.get(entry[3])
            if lease is None:
                continue  # revoked
            # An `alone` lease is taken only as the first of its batch, and ends it.
            if self._may_start(lease, policy) and not (lease.alone and taken):
                taken.append(self._leases.pop(entry[3]))
                if lease.alone:
                    break
            elif lease.start_at.fork < policy.fork:
                del self._leases[entry[3]]
            else:
                # It waits for newer weights, or for a batch of its own.
                held.append(entry)
        for entry in held:
            heapq.heappush(self._heap, entry)
        return tuple(taken)

    def revoke(self, lease_ids: Collection[int]) -> None:
        """Remove leases by id, of any fork, because the ledger no longer waits for them. Unknown ids are ignored."""
        # Their entries stay in the heap until they come up or the heap is rebuilt.
        for key in [key for key in self._leases if key[1] in lease_ids]:
            del self._leases[key]

    def _forget_revoked(self) -> None:
        if len(self._heap) > 2 * len(self._leases) + SPARE_ENTRIES:
            self._heap = [entry for entry in dict.fromkeys(self._heap) if entry[3] in self._leases]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """Remove all leases."""
        self._heap.clear()
        self._leases.clear()

    @staticmethod
    def _may_start(lease: QueuedLease, policy: Policy) -> bool:
        return lease.start_at.fork == policy.fork and lease.start_at <= policy
