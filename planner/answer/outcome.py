"""What a search returns: an incumbent with its bound; out of time, with what was found; or the smallest conflict.

*Objective value* is `step_s` for throughput with or without a budget, dollars an hour for cost at a throughput. Every
`bound` is of that value, and valid for the oracle over the plan space: no placement has less.
"""

from dataclasses import dataclass

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.question.goal import Goal, Objective

BOUND_TOLERANCE = 2e-5
"""Relative: by so much rounding may put a bound above the value of a placement."""


def credible(bound: float | None, value: float) -> float | None:
    """The bound, where a placement of that value is known. One above it is an error of ours: then nothing is proved."""
    if bound is None or bound > value * (1 + BOUND_TOLERANCE):
        return None
    return min(bound, value)


def objective_value(goal: Goal, evaluation: Evaluation) -> float:
    """What the goal minimises: seconds a step, or dollars an hour."""
    return evaluation.usd_per_hour if goal.objective is Objective.COST_AT_THROUGHPUT else evaluation.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """The best placement at one moment of a search, and what was proved by then."""

    placement: Placement
    evaluation: Evaluation
    """By the oracle, of exactly this placement."""
    bound: float | None
    """No placement's objective value is less; None: nothing is proved (heuristics)."""
    elapsed_s: float

    def value(self, goal: Goal) -> float:
        return objective_value(goal, self.evaluation)

    def gap(self, goal: Goal) -> float:
        """`1 - bound / value`: how much less the best placement may have; 1 where nothing is proved."""
        value = self.value(goal)
        if self.bound is None:
            return 1.0
        return max(0.0, 1.0 - self.bound / value) if value > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One constraint of a problem, as a conflict names it."""

    kind: str
    """As of `Violation`: `inventory`, `memory`, `rules`, `limits`, `link`, `budget`, `deadline`."""
    name: str
    """Stable within one problem, such as `pin:reward` or `inventory:eu/A100/8`."""
    what: str
    """One sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A search that ended by itself: `best` within the gap asked, or for a heuristic its best."""

    best: Incumbent
    trace: tuple[Incumbent, ...]
    """Improvements of the incumbent or of the bound, in order; the last one is `best`."""
    num_evaluations: int = 0
    method: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted:
    """Time ended, or the caller asked to stop, before the gap asked was proved or anything was found."""

    best: Incumbent | None
    bound: float | None
    trace: tuple[Incumbent, ...] = ()
    num_evaluations: int = 0
    method: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No placement holds all constraints. Without any one fact of `conflict` there is a placement."""

    conflict: tuple[Fact, ...]
    is_minimal: bool = True
    """Whether it is known that there is a placement without any one of the facts."""
    is_cut: bool = False
    """Whether it is not known because time ended while facts were still being left out."""
    method: str = ""


Outcome = Found | BudgetExhausted | Infeasible
