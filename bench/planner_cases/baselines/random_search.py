"""`random`: the best of as many random placements as the budget allows (`genome` defines the distribution)."""

from collections.abc import Callable

import numpy as np

from bench.planner_cases.baselines.genome import PlacementGenome
from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import EvaluationBudget, ignore, never


def search(
    cost_tables: CostTables,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
) -> Found[Incumbent] | BudgetExhausted[Incumbent]:
    """Draw placements until the budget ends."""
    budget = EvaluationBudget(cost_tables, budget_s=budget_s, now_s=now_s, report=report, should_stop=should_stop)
    genome, rng = PlacementGenome(cost_tables), np.random.default_rng(seed)
    while not budget.is_over:
        # Keys that decode to nothing cost no evaluation. The clock ends the loop even if all of them do.
        placement = genome.placement(rng.random(genome.length))
        if placement is not None:
            budget.evaluate(placement)
    return budget.outcome("random")
