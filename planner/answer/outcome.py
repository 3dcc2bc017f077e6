"""Outcomes of planning: found, out of time with the best so far, or infeasible with a conflict.

The same three types are used at both levels. The search of a method returns an `Outcome`, whose best is an `Incumbent`:
a placement with its evaluation. `planner.solve` returns a `planner.plan.PlanOutcome`, whose best is a whole plan. A
caller matches the types:

    match planner.solve.plan(problem, thinking):
        case Found(best=plan) | BudgetExhausted(best=Plan() as plan):
            ...  # use the plan
        case BudgetExhausted():
            ...  # neither a plan nor a proof that there is none
        case Infeasible(conflict=sentence):
            ...  # say what would have to change

The *objective value* of a placement is its dollars per hour if the goal minimises cost, otherwise its seconds per step.
Every `bound` is a lower bound on that value for the oracle over the plan space: no placement has less.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.problem.goal import Goal, Objective

T = TypeVar("T")

BOUND_TOLERANCE = 2e-5
"""Relative tolerance: rounding may put a bound above the value of a known placement by this much. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefutedBound:
    """A bound that a method called proved, and the value of a placement below it: an error of the method."""

    method: str
    bound: float
    value: float

    def __str__(self) -> str:
        return (
            f"the method {self.method} claimed that no placement has less than {self.bound:.6g}, and one has "
            f"{self.value:.6g}: this is an error of Periplus, please report it; nothing counts as proved"
        )


def credible(bound: float | None, value: float, method: str) -> float | RefutedBound | None:
    """Return a bound that is consistent with a placement of that value, or None if there is no bound.

    A bound above the value by less than `BOUND_TOLERANCE` is lowered to the value. A larger one is refuted.
    """
    if bound is None:
        return None
    if bound > value * (1 + BOUND_TOLERANCE):
        return RefutedBound(method=method, bound=bound, value=value)
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
        # The bound may exceed the value by rounding, and a value of 0 cannot be undercut.
        return max(0.0, 1.0 - self.bound / value) if value > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One constraint of a problem, as a conflict names it."""

    kind: str
    """Kind of constraint: `inventory`, `memory`, `rules`, `limits`, `link`, `price`, `shape`, `budget` or
    `deadline`."""
    name: str
    """Name that is stable within one problem, such as `pin:reward` or `inventory:eu/A100/8`."""
    what: str
    """One sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[T]):
    """Outcome of planning that ended by itself.

    `best` is within the requested gap of the bound. For a heuristic it is the best that it found. The other fields
    describe one search. They keep their defaults in the outcomes of `planner.solve`, which may make several searches.
    """

    best: T
    trace: tuple[Incumbent, ...] = ()
    """Improvements of the incumbent or of the bound, in order; the last one is `best`."""
    num_evaluations: int = 0
    """Number of placements that the oracle evaluated."""
    method: str = ""
    """Name of the method, as in `planner.methods.portfolio.METHODS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted(Generic[T]):
    """Outcome of planning that ran out of time, or that the caller stopped, before it proved the requested gap.

    `best` is None if nothing was found. `trace`, `num_evaluations` and `method` mean the same as in `Found`.
    """

    best: T | None
    bound: float | None
    """Lower bound on the objective value that was proved by then. None if nothing was proved."""
    trace: tuple[Incumbent, ...] = ()
    num_evaluations: int = 0
    method: str = ""
    refuted: RefutedBound | None = None
    """A wrong bound of the search. Then nothing counts as proved. The outcomes of `planner.solve` keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """Proof that no placement satisfies all constraints: facts that contradict each other, whatever else holds."""

    facts: tuple[Fact, ...]
    is_minimal: bool = True
    """Whether it is proved that the facts would no longer contradict each other without any one of them."""
    is_cut: bool = False
    """Whether time ended while facts were still being left out, so that a smaller set may contradict itself already."""
    method: str = ""
    """Name of the method that proved it; empty if no search was needed."""

    @property
    def conflict(self) -> str:
        """The facts as one sentence without a full stop."""
        return "; and ".join(fact.what.rstrip(".") for fact in self.facts) or "no placement was found"


Outcome = Found[Incumbent] | BudgetExhausted[Incumbent] | Infeasible
"""Result of a search, one of three types, to be matched."""
