"""The gate before the optimizer: what a batch's tokens are worth, by age.

It trusts nobody: whatever the ledger leased and a worker claimed, the staleness of every token that is about to be
trained on is computed here from the policy recorded with the token. A token beyond the bound, of a dead branch or of a
future version makes its whole group unfit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from periplus.values.policy import Lineage, Policy, staleness
from periplus.values.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """`tokens_by_staleness` and `violations` count completion tokens; `unfit_groups` hold at least one violation."""

    tokens_by_staleness: Mapping[int, int]
    violations: int
    unfit_groups: frozenset[int]

    @property
    def staleness_max(self) -> int:
        return max(self.tokens_by_staleness, default=0)

    @property
    def staleness_mean(self) -> float:
        total = sum(self.tokens_by_staleness.values())
        return sum(age * count for age, count in self.tokens_by_staleness.items()) / total if total else 0.0


def inspect(batch: Sequence[Trajectory], consumer: Policy, bound: int, lineage: Lineage | None = None) -> Inspection:
    """The ages of a batch's tokens at the step that starts from `consumer`, on this lineage or within its fork."""
    ages: Counter[int] = Counter()
    violations = 0
    unfit: set[int] = set()
    for trajectory in batch:
        for run in trajectory.policies:
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
    """The trajectories that may be trained on, and what was found."""
    found = inspect(batch, consumer, bound, lineage)
    return tuple(t for t in batch if t.group not in found.unfit_groups), found
