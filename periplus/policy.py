"""Policies and staleness: the arithmetic that every promise about freshness rests on.

A policy is `(fork, version)`, ordered lexicographically. The version rises by one for each batch consumed. The
staleness of a token is the version that a training step starts from minus the version that sampled the token. It is
defined within one fork only: across forks there is no distance here (the ledger decides what a dead fork's work is
worth).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Policy:
    """A state of the actor."""

    fork: int
    version: int

    def next(self) -> "Policy":
        """The policy after one more batch was consumed."""
        return Policy(self.fork, self.version + 1)

    def __str__(self) -> str:
        return f"{self.fork}.{self.version}"


def staleness(consumer: Policy, sampled_by: Policy) -> int:
    """Versions between the sampling of a token and the training step that consumes it.

    Raises: ValueError if the forks differ, or if the token is newer than the consumer (an impossible history).
    """
    if consumer.fork != sampled_by.fork:
        raise ValueError(f"staleness is undefined across forks: trainer at {consumer}, token of {sampled_by}")
    lag = consumer.version - sampled_by.version
    if lag < 0:
        raise ValueError(f"a token of {sampled_by} cannot be consumed at {consumer}: it is from the future")
    return lag
