"""The surroundings of every tested ledger: the checkpoint that it starts from, and what an honest worker tells it."""

from dataclasses import dataclass, field
from typing import Self

from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import PolicyRun
from trainer.ledger.leasing import ItemOf
from trainer.ledger.machine import Ledger
from trainer.ledger.values import Event, Lease, LedgerLimits, PolicyReached, Result, RoomOffered, WorkerJoined

Key = tuple[int, int]
"""Group and sample."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a ledger that a trainer keeps. Without arguments it is that of a new job."""

    policy: Policy = field(default_factory=lambda: Policy(0, 0))
    lineage: Lineage = field(default_factory=lambda: Lineage(0))
    next_group: int = 0
    open_groups: tuple[int, ...] = ()

    @classmethod
    def of(cls, ledger: Ledger) -> Self:
        return cls(ledger.policy, ledger.state.lineage, ledger.next_group, ledger.open_groups)

    def in_fork(self, fork: int) -> "Checkpoint":
        """Return what a new fork begins with that is restored from this checkpoint."""
        lineage = self.lineage.restored(fork, self.policy)
        return Checkpoint(Policy(fork, self.policy.version), lineage, self.next_group, self.open_groups)

    def ledger(self, limits: LedgerLimits, item_of: ItemOf) -> Ledger:
        """Return a ledger that begins with this."""
        return Ledger(
            limits, self.lineage, self.policy, item_of, next_group=self.next_group, open_groups=self.open_groups
        )


def joining(worker_id: str, policy: Policy, room: int, epoch: int = 0) -> tuple[Event, ...]:
    """Return what a worker says first: hello, the weights that it has, and the room in its queue."""
    return (WorkerJoined(worker_id, epoch), PolicyReached(worker_id, policy), RoomOffered(worker_id, room))


def policies_between(first: Policy, last: Policy, choice: int) -> tuple[Policy, ...]:
    """Return policies that an honest sample may have had in turn, from `first` to `last` of the same fork.

    The bits of `choice` say which of the versions between them the engine had; the ends are always there.
    """
    between = range(first.version + 1, last.version)
    passed = [version for bit, version in enumerate(between) if choice >> bit & 1]
    return (first, *(Policy(last.fork, version) for version in passed), *([last] if last > first else []))


def result_of(
    lease: Lease, worker_id: str, *policies: Policy, num_tokens: int, num_sampled: int = 1, reward: float | None = 0.0
) -> Result:
    """Return the honest result of a lease, of which each policy sampled `num_sampled` tokens.

    With several policies the weights changed during the generation, and every second swap kept the cache.
    """
    return Result(
        lease_id=lease.lease_id,
        group=lease.group,
        sample=lease.sample,
        item=lease.item,
        purpose=lease.purpose,
        worker_id=worker_id,
        policies=tuple(PolicyRun(policy, num_sampled, kept_kv=at % 2 == 1) for at, policy in enumerate(policies)),
        num_tokens=num_tokens,
        outcome=reward,
    )
