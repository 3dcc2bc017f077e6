"""One method on one problem, timed from nothing: what it found by when, and what was proved by when.

The methods are the planner's and the baselines that they are compared with (`bench/planner_cases/baselines`): static
layouts of other systems, random search, and a genetic algorithm. Each family of placements is written down in the
docstring of its module, which was done before anything was compared. All search the plan space or a named part of it,
and the same oracle evaluates them.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bench.planner_cases.baselines import genetic, random_search, streamrl_like, verl_like
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Infeasible, Outcome
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods import portfolio
from planner.methods.portfolio import Method
from planner.problem.goal import Problem

CLOSE = 0.01

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        **portfolio.METHODS,
        "verl": verl_like.search,
        "streamrl": streamrl_like.search,
        "random": random_search.search,
        "genetic": genetic.search,
    }
)
"""The planner's methods and the baselines by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Times are from before the first price is computed."""

    method: str
    problem: Problem
    best: Incumbent | None
    bound: float | None
    """Of the objective value; None where nothing was proved."""
    trace: tuple[tuple[float, float, float | None], ...]
    """Seconds, value, bound."""
    wall_s: float
    is_infeasible: bool
    num_evaluations: int

    @property
    def value(self) -> float:
        return self.best.value(self.problem.goal) if self.best else math.inf

    @property
    def gap(self) -> float:
        if self.best is None or self.bound is None:
            return 1.0
        return _gap(self.value, self.bound)

    @property
    def placement(self) -> Placement:
        assert self.best is not None
        return self.best.placement

    @property
    def first_s(self) -> float | None:
        return self.trace[0][0] if self.trace else None

    @property
    def close_s(self) -> float | None:
        """When the best was first known to be within one percent of the least possible."""
        return next((s for s, value, bound in self.trace if bound is not None and _gap(value, bound) <= CLOSE), None)

    def value_at(self, seconds: float) -> float:
        """Of the best placement known by then; infinite before there is one."""
        return min((value for s, value, _ in self.trace if s <= seconds), default=math.inf)


def _gap(value: float, bound: float) -> float:
    """Rounded, as a search that stops at one percent may be off by the last bits."""
    return max(0.0, round(1.0 - bound / value, 9)) if value > 0 else 0.0


def solve(problem: Problem, method: str, *, budget_s: float, seed: int = 0) -> Solved:
    """Runs one of `METHODS`."""
    return run(problem, method, METHODS[method], budget_s=budget_s, seed=seed)


def run(problem: Problem, name: str, method: Callable[..., Outcome], *, budget_s: float, seed: int = 0) -> Solved:
    """Runs it, and has the oracle judge its answer once more, with nothing that the search computed."""
    began_s = time.monotonic()
    cost_tables = CostTables(problem)
    before_s = time.monotonic() - began_s
    outcome = method(cost_tables, seed=seed, budget_s=budget_s, now_s=time.monotonic)
    wall_s = time.monotonic() - began_s
    best = None if isinstance(outcome, Infeasible) else outcome.best
    trace = () if isinstance(outcome, Infeasible) else outcome.trace
    if best is not None:
        again = evaluate(CostTables(problem), best.placement)
        assert isinstance(again, Evaluation), f"{name} answered what the oracle refuses: {again}"
        assert math.isclose(again.step_s, best.evaluation.step_s, rel_tol=1e-9)
    bound = outcome.bound if isinstance(outcome, BudgetExhausted) else best.bound if best else None
    return Solved(
        method=name,
        problem=problem,
        best=best,
        bound=bound,
        trace=tuple((before_s + each.elapsed_s, each.value(problem.goal), each.bound) for each in trace),
        wall_s=wall_s,
        is_infeasible=isinstance(outcome, Infeasible),
        num_evaluations=outcome.num_evaluations if isinstance(outcome, (Found, BudgetExhausted)) else 0,
    )
