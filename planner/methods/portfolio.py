"""Portfolio of methods: all search methods by name with one interface, and `auto`, which combines several.

A method searches one problem's plan space within a budget of seconds, reports each better incumbent, and returns an
`Outcome`. `auto` enumerates small problems. Otherwise it starts with a short descent, gives the exact method most of
the time, and gives the rest to heuristics if nothing was proved. Whatever a method returns, `auto` evaluates its
placement with the oracle again. Methods that call OR-Tools are imported when they are called, since small problems do
without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.ma  # `np.unique` imports it on its first call, which would delay a first answer by 10 ms

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import (
    BOUND_TOLERANCE,
    BudgetExhausted,
    Fact,
    Found,
    Incumbent,
    Infeasible,
    Outcome,
    RefutedBound,
    credible,
)
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.enumeration import search_all, small_space
from planner.methods.evaluation_budget import INFEASIBLE, EvaluationBudget, ignore, never
from planner.methods.exact.settings import DEFAULT_GAP
from planner.methods.hetrl.method import search as hetrl
from planner.methods.hetrl.method import search_bounded as hetrl_bounded
from planner.methods.opening.greedy_descent import Descent
from planner.problem.device_classes import MANY_CLASSES
from planner.problem.groupings import FEW_GROUPINGS, groupings

_OPENING_S, _SHORT_OPENING_S = 0.6, 0.3
"""Largest number of seconds of the opening descent, and (`_SHORT_OPENING_S`) that on fleets of many classes, where the
exact method's own first placements are better. A good opening saves the exact method most of its work. If dollars count
and there are few groupings there is no opening: a descent's placement costs twice as much as what relaxations are
rounded to a moment later. Chosen by hand."""
_PATIENCE, _GROUPINGS = 3, 30
"""Rounds without improvement after which the opening ends, plus one for each `_GROUPINGS` groupings. Chosen by hand."""
_CLOSER_S = 0.5
"""After the gap is proved, the best placement within it is searched for as long again as the proof took, plus these
seconds. Chosen by hand."""
_HEURISTICS_SHARE = 0.25
"""Share of the budget that is left to heuristics if the exact method proves nothing. Chosen by hand."""
_LEAST_S = 0.2
"""Seconds below which starting another search is not worth it. Chosen by hand."""


def exact(cost_tables: CostTables, **options: Any) -> Outcome:
    """Return the outcome of the exact method (`planner.methods.exact.method.search`)."""
    from planner.methods.exact.method import search

    return search(cost_tables, **options)


def areal_hex(cost_tables: CostTables, **options: Any) -> Outcome:
    """Return the outcome of AReaL-Hex's two phases (`planner.methods.areal_hex.method.search`)."""
    from planner.methods.areal_hex.method import search

    return search(cost_tables, **options)


class Method(Protocol):
    """Search of a problem within `budget_s` seconds by the clock `now_s`. `report` receives each better incumbent."""

    def __call__(
        self,
        cost_tables: CostTables,
        *,
        seed: int,
        budget_s: float,
        now_s: Callable[[], float],
        report: Callable[[Incumbent], None] = ...,
        should_stop: Callable[[], bool] = ...,
    ) -> Outcome: ...


@dataclass(slots=True)
class _Known:
    """Trace of accepted placements of all methods, each better or with a better bound than the one before."""

    cost_tables: CostTables
    now_s: Callable[[], float]
    report: Callable[[Incumbent], None]
    began_s: float
    trace: list[Incumbent] = field(default_factory=list)
    refuted: RefutedBound | None = None
    """First bound that a placement was below. Then no bound of this search is believed."""

    @property
    def best(self) -> Incumbent | None:
        """Best incumbent so far, or None."""
        return self.trace[-1] if self.trace else None

    @property
    def value(self) -> float:
        """Objective value of the best incumbent; `INFEASIBLE` if there is none."""
        return self.trace[-1].value(self.cost_tables.problem.goal) if self.trace else INFEASIBLE

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The best placement as a tuple; empty if there is none."""
        return tuple(each.placement for each in self.trace[-1:])

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return self.now_s() - self.began_s

    def record(self, new: Incumbent) -> None:
        """Evaluate a reported placement with the oracle and extend the trace if value or bound improve."""
        before = self.best
        # A method's own numbers are not trusted, neither its value nor that its placement is valid.
        estimate = evaluate(self.cost_tables, new.placement)
        if not isinstance(estimate, Evaluation):
            return
        best = replace(new, evaluation=estimate)
        if before is not None and best.value(self.cost_tables.problem.goal) >= self.value:
            best = before
        value = best.value(self.cost_tables.problem.goal)
        # Both bounds hold for the problem, so the higher one does. The exact method is the only one that proves any.
        kept = [credible(each.bound, value, "exact") for each in (new, before) if each is not None]
        self.refuted = self.refuted or next((each for each in kept if isinstance(each, RefutedBound)), None)
        bounds = [] if self.refuted else [each for each in kept if isinstance(each, float)]
        bound = max(bounds, default=None)
        if before is not None and best is before and bound == before.bound:
            return
        self.trace.append(replace(best, bound=bound, elapsed_s=self.elapsed_s()))
        self.report(self.trace[-1])

    def outcome(self, proved: Found[Incumbent] | BudgetExhausted[Incumbent], num_evaluations: int) -> Outcome:
        """Return the outcome of all methods together; `proved` is what the exact method returned."""
        trace, best = tuple(self.trace), self.best
        if best is None:
            return replace(proved, num_evaluations=num_evaluations, method="auto")
        if self.refuted:
            best = replace(best, bound=None)
            trace = (*trace[:-1], best)
        # The gap counts, whichever method found the placement: the exact method's bound may meet a heuristic's
        # incumbent.
        if best.gap(self.cost_tables.problem.goal) <= DEFAULT_GAP * (1 + BOUND_TOLERANCE):
            return Found(best=best, trace=trace, num_evaluations=num_evaluations, method="auto")
        return BudgetExhausted(
            best=best,
            bound=best.bound,
            trace=trace,
            num_evaluations=num_evaluations,
            method="auto",
            refuted=self.refuted,
        )


def auto(
    cost_tables: CostTables,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
    start: tuple[Placement, ...] = (),
) -> Outcome:
    """Return the best of all methods: exact after a quick opening, then heuristics if nothing was proved in time.

    Small problems are enumerated. `start` holds placements that are already known.
    """
    known = _Known(cost_tables=cost_tables, now_s=now_s, report=report, began_s=now_s())
    descent = Descent(cost_tables, np.random.default_rng(seed))

    def search(method: Callable[..., Outcome], budget_s: float, **more: object) -> Outcome:
        outcome = method(
            cost_tables, seed=seed, budget_s=budget_s, now_s=now_s, report=known.record, should_stop=should_stop, **more
        )
        if isinstance(outcome, BudgetExhausted):
            known.refuted = known.refuted or outcome.refuted
        return outcome

    def descend(budget_s: float, **more: int) -> int:
        budget = EvaluationBudget(
            cost_tables, budget_s=budget_s, now_s=now_s, report=known.record, should_stop=should_stop
        )
        descent.run(budget, known.value, **more)
        return budget.num_evaluations

    def opening() -> tuple[Placement, ...]:
        """Run the descent while it improves, and return the best placement."""
        # More groupings take more rounds until each had its turn.
        num = len(groupings(cost_tables.problem))
        if cost_tables.problem.goal.counts_usd and num <= FEW_GROUPINGS:
            return ()
        opening_s = _SHORT_OPENING_S if len(cost_tables.classes) > MANY_CLASSES else _OPENING_S
        descend(min(budget_s - known.elapsed_s(), opening_s), patience=_PATIENCE + num // _GROUPINGS)
        return known.placements

    if (space := small_space(cost_tables)) is not None:
        best, is_complete, num = search_all(cost_tables, space, lambda: should_stop() or known.elapsed_s() > budget_s)
        if best is not None:
            known.record(best)
        elif is_complete:
            return _explained(lambda: search(exact, budget_s - known.elapsed_s()), num)
        return known.outcome(BudgetExhausted(best=None, bound=None), num)
    # The exact method calls `opening` itself, after it has evaluated `start`.
    proved = search(exact, budget_s * (1 - _HEURISTICS_SHARE), start=start, opening=opening)
    if isinstance(proved, Infeasible):
        return replace(proved, method="auto")
    num = proved.num_evaluations
    if isinstance(proved, Found):
        # The gap is proved, so the answer is good enough. Little time is spent on the best placement within it.
        closer_s = min(budget_s - known.elapsed_s(), known.elapsed_s() + _CLOSER_S)
        num += _evaluations(search(exact, closer_s, start=known.placements, gap=0.0))
    else:
        # Nothing was proved: half of what is left goes to the descent, which continues where the opening ended, and the
        # rest to `hetrl_bounded`.
        num += descend((budget_s - known.elapsed_s()) / 2)
        if budget_s - known.elapsed_s() > _LEAST_S and not should_stop():
            num += _evaluations(search(hetrl_bounded, budget_s - known.elapsed_s()))
    return known.outcome(proved, num)


def _explained(search_exact: Callable[[], Outcome], num_evaluations: int) -> Outcome:
    """Return which facts of a small problem without placement contradict each other; without OR-Tools, that some do."""
    try:
        return replace(search_exact(), method="auto")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ortools":
            raise
        what = f"none of the {num_evaluations:,} placements to choose from is valid; with OR-Tools a plan says why"
        return Infeasible(facts=(Fact(kind="shape", name="job", what=what),), is_minimal=False, method="auto")


def _evaluations(outcome: Outcome) -> int:
    return 0 if isinstance(outcome, Infeasible) else outcome.num_evaluations


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "auto": auto,
        "exact": exact,
        "hetrl": hetrl,
        "hetrl_bounded": hetrl_bounded,
        "areal_hex": areal_hex,
    }
)
"""Search methods by the name that `--method` takes."""
