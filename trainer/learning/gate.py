"""The gate before the optimizer: it computes the staleness of each token, and refuses groups that are too old.

*Staleness* of a token is the version at which the training step starts, minus the version of the policy that sampled
the token. The job sets a bound on it. The ledger plans leases so that the bound holds. The gate does not rely on that:
it computes the staleness of every token that is about to be trained on, from the policy recorded with the token.

A token is a *violation* if its staleness is above the bound, if its version lies in the future, or if its policy is not
on the step's lineage (it comes from a branch that a restore left behind). A group with a violation is refused as a
whole, because advantages compare the samples of a group. The functions here are pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from periplus.values.policy import Lineage, Policy, staleness
from periplus.values.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What the gate found in a batch.

    `tokens_by_staleness` counts completion tokens for each staleness. Tokens above the bound are counted there too,
    tokens without a staleness (of a future version or of another lineage) are not. `violations` counts the completion
    tokens that violate the bound, and `unfit_groups` are the groups that have any.
    """

    tokens_by_staleness: Mapping[int, int]
    violations: int
    unfit_groups: frozenset[int]

    @property
    def staleness_max(self) -> int:
        """Largest staleness of a token, in versions; 0 if none has one."""
        return max(self.tokens_by_staleness, default=0)

    @property
    def staleness_mean(self) -> float:
        """Mean staleness over tokens, in versions; 0 if none has one."""
        total = sum(self.tokens_by_staleness.values())
        return sum(age * count for age, count in self.tokens_by_staleness.items()) / total if total else 0.0


def inspect(batch: Sequence[Trajectory], consumer: Policy, bound: int, lineage: Lineage | None = None) -> Inspection:
    """Return the staleness of a batch's tokens at the training step that starts from the policy `consumer`.

    `bound` is the highest staleness that is allowed, in versions. `lineage` is the history of the consumer's fork.
    Without one, only policies of the consumer's own fork are allowed.
    """
    ages: Counter[int] = Counter()
    violations = 0
    unfit: set[int] = set()
    for trajectory in batch:
        for run in trajectory.policies:
            # A policy of the future or of another lineage has no staleness.
            try:
                age = staleness(consumer, run.policy, lineage)
            except ValueError:
                violations += run.num_tokens
                unfit.add(trajectory.group)
                continue
            ages[age] += run.num_tokens
            if age > bound:
                violations += run.num_tokens
                unfit.add(trajectory.group)
    return Inspection(tokens_by_staleness=dict(ages), violations=violations, unfit_groups=frozenset(unfit))


def admit(
    batch: Sequence[Trajectory], consumer: Policy, bound: int, lineage: Lineage | None = None
) -> tuple[tuple[Trajectory, ...], Inspection]:
    """Return the trajectories of all groups that may be trained on, and the inspection of the whole batch.

    The arguments are those of `inspect`.
    """
    found = inspect(batch, consumer, bound, lineage)
    return tuple(t for t in batch if t.group not in found.unfit_groups), found
