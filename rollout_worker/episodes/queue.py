"""The leases of a worker: those that wait, in the order in which they are generated, and those that are under way.

The queue is pure: leases come in, and those that begin next go out. Only leases that may start with the present weights
are taken, evaluation first, then by group and sample. A lease whose `start_at` lies ahead waits until those weights
arrive. A lease of a fork that the weights have left behind is dropped. Lease ids are unique within a fork: an id that
comes again is the same lease. A sample at which earlier attempts failed is generated while nothing else is, so that it
is known to be at fault if the worker then dies.
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass, replace

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedLease:
    """The right to produce one sample (see trainer/ledger/values.py).

    `item` is the problem's index in the environment, `start_at` the oldest policy that may generate the sample. With
    `alone` nothing else is generated meanwhile.
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

_Key = tuple[int, int]


class LeaseQueue:
    """Leases that wait, in the order (evaluation first, group, sample), and leases that were taken and have not ended.

    `len` is the number of those that wait.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, _Key]] = []
        self._leases: dict[_Key, QueuedLease] = {}  # by (fork, lease id)
        self._taken: dict[_Key, QueuedLease] = {}
        self._orphans: set[_Key] = set()  # taken ones that may not be put back

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: QueuedLease) -> None:
        """Add a lease, unless it waits or is under way already."""
        key = _key(lease)
        if key not in self._leases and key not in self._taken:
            self._leases[key] = lease
            first = 0 if lease.purpose is Purpose.EVAL else 1
            heapq.heappush(self._heap, (first, lease.group, lease.sample, key))
            self._forget_revoked()

    def has_startable(self, policy: Policy | None) -> bool:
        """Return whether a lease may start with the weights of `policy`; False without weights."""
        return policy is not None and any(self._may_start(lease, policy) for lease in self._leases.values())

    def take(self, policy: Policy, at_most: int, *, is_idle: bool) -> tuple[QueuedLease, ...]:
        """Return up to `at_most` leases that begin now, with `policy`. They are under way until `end` or `put_back`.

        `is_idle`: nothing is under way. An `alone` lease that is next waits for that, is then taken alone, and lets no
        other pass meanwhile.
        """
        taken: list[QueuedLease] = []
        held: list[tuple[int, int, int, _Key]] = []
        while self._heap and len(taken) < at_most:
            entry = heapq.heappop(self._heap)
            lease = self._leases.get(entry[3])
            if lease is None:
                continue  # revoked
            if lease.start_at.fork < policy.fork:
                del self._leases[entry[3]]
            elif not self._may_start(lease, policy):
                held.append(entry)  # it waits for newer weights
            elif lease.alone and (taken or not is_idle):
                held.append(entry)
                break
            else:
                taken.append(self._leases.pop(entry[3]))
                if lease.alone:
                    break
        for entry in held:
            heapq.heappush(self._heap, entry)
        self._taken |= {_key(lease): lease for lease in taken}
        return tuple(taken)

    def end(self, lease: QueuedLease) -> None:
        """Note that a lease is not under way any more."""
        self._taken.pop(_key(lease), None)
        self._orphans.discard(_key(lease))

    def put_back(self, lease: QueuedLease, started_with: Policy) -> None:
        """Let a lease that is under way wait again, unless it was revoked or `clear` was called meanwhile.

        It was reported as started with `started_with`, and so must not begin with an older policy.
        """
        is_wanted = _key(lease) in self._taken and _key(lease) not in self._orphans
        self.end(lease)
        if is_wanted:
            self.add(replace(lease, start_at=max(lease.start_at, started_with)))

    def revoke(self, lease_ids: Collection[int]) -> tuple[QueuedLease, ...]:
        """Forget leases by id, of any fork, because the ledger no longer waits for them. Unknown ids are ignored.

        Returns those that are under way.
        """
        # Their entries stay in the heap until they come up or the heap is rebuilt.
        for key in [key for key in self._leases if key[1] in lease_ids]:
            del self._leases[key]
        under_way = [lease for key, lease in self._taken.items() if key[1] in lease_ids]
        for lease in under_way:
            self.end(lease)
        return tuple(under_way)

    def clear(self) -> None:
        """Forget all leases that wait. Those that are under way may still be finished, but are not put back."""
        self._heap.clear()
        self._leases.clear()
        self._orphans |= self._taken.keys()

    def _forget_revoked(self) -> None:
        if len(self._heap) > 2 * len(self._leases) + SPARE_ENTRIES:
            self._heap = [entry for entry in dict.fromkeys(self._heap) if entry[3] in self._leases]
            heapq.heapify(self._heap)

    @staticmethod
    def _may_start(lease: QueuedLease, policy: Policy) -> bool:
        return lease.start_at.fork == policy.fork and lease.start_at <= policy


def _key(lease: QueuedLease) -> _Key:
    return lease.start_at.fork, lease.lease_id
