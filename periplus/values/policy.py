"""Policies, lineages and staleness: the arithmetic on which the bound on staleness rests.

A policy is `(fork, version)`, ordered lexicographically. The version rises by one for each batch consumed. The fork
rises by one at each restore from a checkpoint. Forks form a tree: each new one begins at a version of an earlier fork,
its parent. What the earlier fork did after that version happened on a dead branch.

    fork 0   0.0 - 0.1 - 0.2 - 0.3 - 0.4      killed; the last checkpoint was 0.2
                          \\
    fork 1                 1.2 - 1.3          0.0, 0.1 and 0.2 are its history; 0.3 and 0.4 are dead to it

The staleness of a token is the version from which a training step starts, minus the version that sampled the token. It
is a distance along the tree, defined only for a policy of the consumer's own lineage.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Policy:
    """Identity of one version of the actor's weights."""

    fork: int
    version: int

    def next(self) -> "Policy":
        """Return the policy after one more batch was consumed."""
        return Policy(self.fork, self.version + 1)

    def __str__(self) -> str:
        return f"{self.fork}.{self.version}"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history of one fork: the policies at which its ancestors were left, oldest first, and the fork itself.

    `parents[i]` is the policy from which the next fork of the lineage was restored. Restoring copies the weights, so
    `parents[i]` and the first policy of the fork that follows are the same state of the actor.
    """

    fork: int
    parents: tuple[Policy, ...] = ()

    def __post_init__(self) -> None:
        forks = [parent.fork for parent in self.parents] + [self.fork]
        versions = [parent.version for parent in self.parents]
        if forks != sorted(set(forks)) or versions != sorted(versions):
            raise ValueError(f"forks of a lineage rise and versions never fall: {[str(p) for p in self.parents]}")

    @property
    def first_version(self) -> int:
        """Version at which this fork begins."""
        return self.parents[-1].version if self.parents else 0

    def restored(self, fork: int, at: Policy) -> "Lineage":
        """Return the lineage of a new fork that begins at `at`. Raises: ValueError if `at` is not on this lineage."""
        if at not in self:
            raise ValueError(f"fork {fork} cannot begin at {at}, which is not on the lineage of fork {self.fork}")
        kept = tuple(parent for parent in self.parents if parent.fork < at.fork)
        return Lineage(fork, (*kept, at))

    def __contains__(self, policy: Policy) -> bool:
        """Whether this fork, or an ancestor before it was left, had this policy."""
        if policy.fork == self.fork:
            return policy.version >= self.first_version
        begins = 0
        for parent in self.parents:
            if parent.fork == policy.fork:
                return begins <= policy.version <= parent.version
            begins = parent.version
        return False


def staleness(consumer: Policy, sampled_by: Policy, lineage: Lineage | None = None) -> int:
    """Return the number of versions between the sampling of a token and the training step that consumes it.

    Raises: ValueError if the token's policy is not on the lineage (without a lineage: is of another fork), or if the
    token is newer than the consumer, which is an impossible history.
    """
    if sampled_by not in (lineage or Lineage(consumer.fork)):
        raise ValueError(f"staleness is undefined across branches: trainer at {consumer}, token of {sampled_by}")
    lag = consumer.version - sampled_by.version
    if lag < 0:
        raise ValueError(f"a token of {sampled_by} cannot be consumed at {consumer}: it is from the future")
    return lag
