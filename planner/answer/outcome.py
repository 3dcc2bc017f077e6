"""Outcomes of a search: found, out of time with the incumbent so far, or infeasible with a smallest conflict.

The *objective value* of a placement is its dollars per hour if the goal minimises cost, otherwise its seconds per step.
Every `bound` is a lower bound on that value for the oracle over the plan space: no placement has less.
"""

from dataclasses import dataclass

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.problem.goal import Goal, Objective

BOUND_TOLERANCE = 2e-5
"""Relative tolerance: rounding may put a bound above the value of a known placement by this much. Chosen by hand."""


def credible(bound: float | None, value: float) -> float | None:
    """Return a bound that is consistent with a placement of that value, or None.

    A bound above the value of a known placement is an error of the method, so nothing counts as proved then. A bound
    above the value by less than `BOUND_TOLERANCE` is lowered to the value.
    """
    if bound is None or bound > value * (1 + BOUND_TOLERANCE):
        return None
    return min(bound, value)


def objective_value(goal: Goal, evaluation: Evaluation) -> float:
    """Return the value that the goal minimises: dollars per hour, or seconds per step."""
    return evaluation.usd_per_hour if goal.objective is Objective.COST_AT_THROUGHPUT else evaluation.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """Best placement at one moment of a search, with the bound that was proved by then."""

    placement: Placement
    evaluation: Evaluation
    """Evaluation of exactly this placement by the oracle."""
    bound: float | None
    """Lower bound on the objective value of all placements. None if nothing is proved, as with heuristics."""
    elapsed_s: float
    """Seconds since the search began."""

    def value(self, goal: Goal) -> float:
        """Return the objective value of the placement."""
        return objective_value(goal, self.evaluation)

    def gap(self, goal: Goal) -> float:
        """Return `1 - bound / value`: the fraction by which a better placement may be below this one.

        The gap is 1 if nothing is proved.
        """
        value = self.value(goal)
        if self.bound is None:
            return 1.0
        return max(0.0, 1.0 - self.bound / value) if value > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One constraint of a problem, as a conflict names it."""

    kind: str
    """Kind of constraint, as in `Violation`: `inventory`, `memory`, `rules`, `limits`, `link`, `budget`, `deadline`."""
    name: str
    """Name that is stable within one problem, such as `pin:reward` or `inventory:eu/A100/8`."""
    what: str
    """One sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Outcome of a search that ended by itself.

    `best` is within the requested gap of the bound. For a heuristic it is the best placement that it found.
    """

    best: Incumbent
    trace: tuple[Incumbent, ...]
    """Improvements of the incumbent or of the bound, in order; the last one is `best`."""
    num_evaluations: int = 0
    method: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted:
    """Outcome of a search that ran out of time, or that the caller stopped, before it proved the requested gap.

    `best` is None if it found nothing.
    """

    best: Incumbent | None
    bound: float | None
    trace: tuple[Incumbent, ...] = ()
    num_evaluations: int = 0
    method: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """Outcome of a search that proved that no placement satisfies all constraints.

    If any one fact of `conflict` is dropped, the others allow a placement.
    """

    conflict: tuple[Fact, ...]
    is_minimal: bool = True
    """Whether it is known that there is a placement without any one of the facts."""
    is_cut: bool = False
    """Whether it is not known because time ended while facts were still being left out."""
    method: str = ""


Outcome = Found | BudgetExhausted | Infeasible
"""Result of a search, one of three types, to be matched."""
