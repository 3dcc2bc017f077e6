"""A search that ends at once: one known placement where it fits, else the best of a few random ones.

For tests of what is done with an answer.
"""

from collections.abc import Callable

import numpy as np

from bench.planner_cases.baselines.sampling import drawn
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Fact, Found, Incumbent, Infeasible, Outcome
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.problem.workload import Task
from tests.support.planner.gpu_plan import PLACEMENT


def quick(
    cost_tables: CostTables,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Proves that nothing is half as good, which may be false."""
    best: Incumbent | None = None
    trace: list[Incumbent] = []
    for placement, evaluation in _known(cost_tables) or drawn(cost_tables, np.random.default_rng(seed), 12):
        if best is None or evaluation.step_s < best.evaluation.step_s:
            best = Incumbent(
                placement=placement,
                evaluation=evaluation,
                bound=evaluation.step_s / 2,
                elapsed_s=0.1 * (1 + len(trace)),
            )
            trace.append(best)
            report(best)
    if best is None:
        return Infeasible(facts=(Fact(kind="memory", name="memory", what="it fits nowhere"),), method="quick")
    return Found(best=best, trace=tuple(trace), num_evaluations=12, method="quick")


def _known(cost_tables: CostTables) -> list[tuple[Placement, Evaluation]]:
    if set(cost_tables.problem.workload.tasks) != set(Task):
        return []
    evaluation = evaluate(cost_tables, PLACEMENT)
    return [(PLACEMENT, evaluation)] if isinstance(evaluation, Evaluation) else []
