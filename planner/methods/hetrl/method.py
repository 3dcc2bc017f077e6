"""Entry points of HetRL's search: as published (`search`), and with bounds and guidance (`search_bounded`).

Both use the same levels and the same budget: successive halving over groupings and sizes (`successive_halving`),
evolution below (`evolution`). Their result is the best placement found; nothing is proved.
"""

from collections.abc import Callable

import numpy as np

from planner.answer.outcome import Incumbent, Outcome
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import EvaluationBudget, ignore, never
from planner.methods.hetrl import genome, guided_moves
from planner.methods.hetrl.candidate_lists import CandidateLists, candidate_lists
from planner.methods.hetrl.evolution import Evolution
from planner.methods.hetrl.fluid_bounds import Bounds
from planner.methods.hetrl.group_sizes import size_vectors as sizes_of
from planner.methods.hetrl.settings import SETTINGS
from planner.methods.hetrl.successive_halving import GroupingArm, SizesArm, by_bound, halve, promising
from planner.problem.goal import Objective
from planner.problem.groupings import Grouping, groupings


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
    """Search as far as it is published: arms are dropped by rank only, children are random.

    `max_evals` limits evaluations instead of seconds; the result then depends only on the problem and the seed.
    """
    budget = EvaluationBudget(
        cost_tables, budget_s=budget_s, now_s=now_s, max_evals=max_evals, report=report, should_stop=should_stop
    )
    _run(budget, seed, bounded=False)
    return budget.outcome("hetrl")


def search_bounded(
    cost_tables: CostTables,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
    max_evals: int | None = None,
) -> Outcome:
    """Search with lower bounds and guided children.

    Arms are also dropped if their bound is no better than the incumbent, the most promising groupings come first, and
    some of the children are built from what determines the step time.
    """
    budget = EvaluationBudget(
        cost_tables, budget_s=budget_s, now_s=now_s, max_evals=max_evals, report=report, should_stop=should_stop
    )
    _run(budget, seed, bounded=True)
    return budget.outcome("hetrl_bounded")


def _run(budget: EvaluationBudget, seed: int, *, bounded: bool) -> None:
    """Search until the budget is spent or nothing new is found."""
    problem = budget.cost_tables.problem
    lists = candidate_lists(budget.cost_tables)
    bounds = Bounds(lists) if bounded else None
    arms = []
    for i, grouping in enumerate(groupings(problem)):
        # Each grouping has a random stream of its own, so that its draws do not depend on the other groupings.
        draw = _drawer(lists, grouping, np.random.default_rng([seed, i]), bounds)
        arms.append(GroupingArm(draw, bounds.of_grouping(grouping) if bounds else 0.0))
    if bounded:
        # A small budget goes to the groupings with the best bounds, instead of a first look at all.
        num_affordable = int(budget.evaluations_within(1.0) / SETTINGS.evaluations_per_grouping)
        arms = by_bound(arms)[: max(SETTINGS.least_groupings, num_affordable)]
    before = -1
    # Arms may end early; then successive halving starts again with new sizes.
    while budget.spent() < 1 and budget.num_evaluations > before:
        before = budget.num_evaluations
        halve(arms, budget, 1.0, alive=lambda arm: promising(arm, budget))


def _drawer(
    lists: CandidateLists, grouping: Grouping, rng: np.random.Generator, bounds: Bounds | None
) -> Callable[[], SizesArm]:
    """Return a function that makes arms with new size vectors of one grouping."""
    problem = lists.cost_tables.problem
    decoder = genome.grouping_decoder(lists, grouping)
    whole = sum(at.num_gpus for at in decoder.classes)
    endless = sizes_of(
        problem.workload, grouping, whole, rng, all_of_them=problem.goal.objective is Objective.THROUGHPUT
    )

    def draw() -> SizesArm:
        sizes = next(endless)
        # Evolution draws from its own stream, so that later size vectors do not depend on how long it ran.
        children = np.random.default_rng(rng.integers(1 << 63))
        evolution = Evolution(decoder, sizes, children, guided_moves.guided if bounds else None)
        return SizesArm(evolution, bounds.of_sizes(grouping, sizes) if bounds else 0.0)

    return draw
