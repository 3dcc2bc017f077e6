"""Levels 1 and 2 of HetRL's search: nested successive halving. Outer arms are groupings, inner arms are size vectors.

Each rung has an equal part of the budget for its surviving arms, of which the worse half is then dropped, so the budget
of an arm doubles. The loss of an arm is the oracle's value of the best placement found in it. Budgets are deadlines,
given as fractions of the whole budget. An arm that takes too long therefore takes from the arms after it in its rung,
not from later rungs.
"""

from collections.abc import Callable, Iterable, Sequence
from math import ceil, log2
from typing import Protocol, TypeVar

from planner.methods.evaluation_budget import INFEASIBLE, EvaluationBudget
from planner.methods.hetrl.evolution import Evolution
from planner.methods.hetrl.settings import SETTINGS


class Arm(Protocol):
    """What successive halving works on."""

    @property
    def best_loss(self) -> float: ...
    def pull(self, budget: EvaluationBudget, until: float) -> None:
        """Search until that fraction of the whole budget is spent, at least a little."""


A = TypeVar("A", bound=Arm)


def halve(
    arms: Iterable[A], budget: EvaluationBudget, until: float, *, alive: Callable[[A], bool] = lambda arm: True
) -> list[A]:
    """Pull arms and drop the worse half until one is left, and return the survivors, best first.

    `alive` says whether an arm is worth pulling at all; arms that are not are dropped.
    """
    remaining = list(arms)
    # The arms are halved until one is left, which has the last rung for itself.
    rungs = max(1, ceil(log2(max(1, len(remaining)))) + 1)
    for rung in range(rungs):
        start = budget.spent()
        # This rung gets an equal part of what it and the later rungs have left.
        end = start + (until - start) / (rungs - rung)
        # The time of a rung is divided equally among its arms, by deadlines.
        for i, arm in enumerate(remaining):
            if budget.spent() >= until:
                break
            if alive(arm):
                arm.pull(budget, start + (end - start) * (i + 1) / len(remaining))
        remaining = sorted((arm for arm in remaining if alive(arm)), key=lambda arm: arm.best_loss)
        if budget.spent() >= until or not remaining:
            break
        if rung + 1 < rungs:
            remaining = remaining[: ceil(len(remaining) / 2)]
    return remaining


class SizesArm:
    """A size vector with its evolution."""

    def __init__(self, evolution: Evolution, bound: float = 0.0) -> None:
        self._evolution = evolution
        self.bound = bound

    @property
    def best_loss(self) -> float:
        """Least loss found so far."""
        return self._evolution.best_loss

    def pull(self, budget: EvaluationBudget, until: float) -> None:
        """Do at least one generation, and further ones until the deadline or until all children are known."""
        self._evolution.advance(budget)
        while budget.spent() < until:
            before = budget.num_evaluations
            self._evolution.advance(budget)
            if budget.num_evaluations == before:
                # Every child is known already.
                break

    @property
    def is_hopeless(self) -> bool:
        """Whether a generation was done and nothing valid was found."""
        return bool(self._evolution.population) and self.best_loss == INFEASIBLE


class GroupingArm:
    """A grouping. Each pull halves its best size vectors so far together with new ones."""

    def __init__(self, draw: Callable[[], SizesArm], bound: float = 0.0) -> None:
        self._draw = draw
        self._kept: list[SizesArm] = []
        self._failures = 0
        self.bound = bound

    @property
    def best_loss(self) -> float:
        """Least loss found so far."""
        return self._kept[0].best_loss if self._kept else INFEASIBLE

    @property
    def is_hopeless(self) -> bool:
        """Whether several size vectors had no valid placement, so that its tasks probably do not fit together."""
        return self._failures >= SETTINGS.max_failed_size_vectors

    def pull(self, budget: EvaluationBudget, until: float) -> None:
        """Halve old and new size vectors until that fraction of the whole budget is spent."""
        # The number of inner arms is a power of two that the budget allows two generations each.
        evaluations = budget.evaluations_within(until - budget.spent())
        num = min(SETTINGS.max_size_vectors, max(1, int(evaluations / (2 * (SETTINGS.population + SETTINGS.children)))))
        num = 1 << (num.bit_length() - 1)
        # Half of the inner arms are the best size vectors so far, the other half are new. There is at least one arm.
        old = self._kept[: max(1, num // 2)] if num > 1 else self._kept[:1]
        arms = [*old, *(self._draw() for _ in range(max(num - len(old), 0 if old else 1)))]
        kept = halve(arms, budget, until, alive=lambda arm: _may_win(arm, budget))
        self._failures = 0 if any(arm.best_loss < INFEASIBLE for arm in kept) else self._failures + len(arms)
        # Size vectors that were not pulled this time stay known. The best come first, since `best_loss` reads the
        # first.
        known = {id(arm): arm for arm in [*kept, *self._kept]}
        self._kept = sorted(known.values(), key=lambda arm: arm.best_loss)[: SETTINGS.max_size_vectors]


def promising(arm: GroupingArm, budget: EvaluationBudget) -> bool:
    """Return whether the arm may still hold something better than the incumbent."""
    return not arm.is_hopeless and arm.bound < budget.best_loss


def _may_win(arm: SizesArm, budget: EvaluationBudget) -> bool:
    """Return whether the arm may still hold something better than the incumbent."""
    return arm.bound < budget.best_loss and not arm.is_hopeless


def by_bound(arms: Sequence[GroupingArm]) -> list[GroupingArm]:
    """Return the arms by their bound, least first; bounds within about a quarter of each other keep the given order."""
    return sorted(arms, key=lambda arm: round(log2(min(max(arm.bound, 1e-9), SETTINGS.hopeless_bound)) * 3))
