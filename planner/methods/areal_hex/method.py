"""Search of AReaL-Hex: phase 1, phase 2, and again without the meshes that were tried, until nothing is left."""

from collections.abc import Callable

from planner.answer.outcome import Incumbent, Outcome
from planner.cost.tables.cost_tables import CostTables
from planner.methods.areal_hex.partition import PhaseTwo
from planner.methods.areal_hex.settings import SETTINGS
from planner.methods.areal_hex.strategy import PhaseOne, TrainingMesh, training_tasks
from planner.methods.evaluation_budget import EvaluationBudget, ignore, never
from planner.methods.hetrl.candidate_lists import candidate_lists


def search(
    cost_tables: CostTables,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
    max_evals: int | None = None,
) -> Outcome:
    """Return the best placement with two disjoint pools, by the oracle.

    Nothing is random: `seed` belongs to the methods' common interface and is unused. `max_evals` replaces the clock.
    """
    budget = EvaluationBudget(
        cost_tables, budget_s=budget_s, now_s=now_s, max_evals=max_evals, report=report, should_stop=should_stop
    )
    lists = candidate_lists(cost_tables)
    limits = cost_tables.problem.limits
    if not limits.colocates and len(set(training_tasks(lists)) - limits.roles_on_trainer) > 1:
        return budget.outcome("areal_hex")  # this runtime cannot train and score in one pool

    def is_over() -> bool:
        return budget.spent() >= 1

    # Phase 1 prices its candidates within a share of the budget, so that something is left for phase 2.
    first = PhaseOne(lists)
    first.prepare(lambda: budget.spent() > SETTINGS.prepare_share)
    second = PhaseTwo(lists, budget)
    banned: frozenset[TrainingMesh] = frozenset()
    while not is_over():
        strategy = first.solve(banned, is_over)
        if strategy is None:
            break
        # The oracle's best of phase 2 is kept in `budget`. Phase 1 would find the same mesh again, so it is banned.
        second.run(strategy, first.kinds)
        banned |= {strategy.mesh}
    return budget.outcome("areal_hex")
