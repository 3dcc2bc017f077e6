"""The incumbent of one search: the best placement so far, the trace of its improvements, and what counts as better.

The oracle alone decides what a placement is worth. The *target* is (1 - gap) x the incumbent's value: the search looks
for placements below it, and a node whose bound is not below it is of no interest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, RefutedBound, credible
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.program.linear_model import INFINITE

_ROUNDING = 1e-12
"""Relative difference of values below which a placement is not better; it keeps rounding from causing improvements."""


@dataclass(slots=True, kw_only=True)
class IncumbentRecord:
    """The best placement of one search and how it came about."""

    cost_tables: CostTables
    gap: float
    """Relative gap within which the search has to prove the incumbent."""
    elapsed_s: Callable[[], float]
    """Seconds since the search began."""
    report: Callable[[Incumbent], None]
    """Called with each new incumbent."""
    best: Incumbent | None = field(init=False, default=None)
    """The best placement so far; None if no valid one is known."""
    trace: list[Incumbent] = field(init=False, default_factory=list)
    """All incumbents in order. After `outcome` the last one has the bound that was proved at the end."""
    num_evaluations: int = field(init=False, default=0)
    """Calls of the oracle."""

    @property
    def value(self) -> float:
        """Objective value of the incumbent: seconds per step, or dollars per hour; inf without an incumbent."""
        return INFINITE if self.best is None else self.best.value(self.cost_tables.problem.goal)

    @property
    def target(self) -> float:
        """The bound from which a node is of no interest: (1 - gap) x incumbent, inf without an incumbent."""
        return INFINITE if self.best is None else self.value * (1 - self.gap)

    def offer(self, placement: Placement, bound: float) -> Incumbent | None:
        """Evaluate a placement and return the new incumbent, or None if it is invalid or not better.

        `bound` is the lower bound that is proved at this moment.
        """
        self.num_evaluations += 1
        evaluation = evaluate(self.cost_tables, placement)
        if not isinstance(evaluation, Evaluation):
            return None
        new = Incumbent(placement=placement, evaluation=evaluation, bound=bound, elapsed_s=self.elapsed_s())
        # An improvement within rounding is none, so that the search does not report the same placement again and again.
        if self.best is not None and new.value(self.cost_tables.problem.goal) >= self.value * (1 - _ROUNDING):
            return None
        return self._accepted(new)

    def outcome(self, bound: float) -> Found[Incumbent] | BudgetExhausted[Incumbent]:
        """Return the outcome of a search that ends with this bound: 0 if nothing is proved, inf if nothing is open.

        The incumbent is reported once more, with the bound of the whole search.
        """
        if self.best is None:
            return self._exhausted(bound if bound < INFINITE else None)
        kept = credible(bound, self.value, "exact")
        if isinstance(kept, RefutedBound):
            self._accepted(replace(self.best, bound=None, elapsed_s=self.elapsed_s()))
            return replace(self._exhausted(None), refuted=kept)
        final = self._accepted(replace(self.best, bound=kept, elapsed_s=self.elapsed_s()))
        if bound < self.target:
            return self._exhausted(bound)
        return Found(best=final, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method="exact")

    def _accepted(self, new: Incumbent) -> Incumbent:
        self.best = new
        self.trace.append(new)
        self.report(new)
        return new

    def _exhausted(self, bound: float | None) -> BudgetExhausted[Incumbent]:
        trace, num = tuple(self.trace), self.num_evaluations
        return BudgetExhausted(best=self.best, bound=bound, trace=trace, num_evaluations=num, method="exact")
