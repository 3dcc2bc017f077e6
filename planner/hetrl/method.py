"""HetRL's search, and the improved one: the same levels and budget. See `halving`, `evolution`, `bounds`, `guide`."""

from collections.abc import Callable

import numpy as np

from planner.answer.outcome import Incumbent, Outcome
from planner.cost.pools import Prices
from planner.groupings import Grouping, groupings
from planner.hetrl import genome, guide
from planner.hetrl.bounds import Bounds
from planner.hetrl.evolution import Evolution
from planner.hetrl.halving import GroupingArm, SizesArm, by_bound, halve, promising
from planner.hetrl.menu import Menu, menu_of
from planner.hetrl.sizes import sizes as sizes_of
from planner.judge import Judge, ignore, never
from planner.question.goal import Objective

_LEAST_ARMS, _EVALUATIONS_AN_ARM = 48, 40
"""Of the bounded search: a small budget is spent on the groupings with the best bounds, not on a first look at all."""


def search(
    prices: Prices,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
    max_evals: int | None = None,
) -> Outcome:
    """As published, as far as it is: arms go by rank only, children are blind. `max_evals` replaces the clock."""
    judge = Judge(prices, budget_s=budget_s, now_s=now_s, max_evals=max_evals, report=report, should_stop=should_stop)
    _run(judge, seed, bounded=False)
    return judge.outcome("hetrl")


def search_bounded(
    prices: Prices,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
    max_evals: int | None = None,
) -> Outcome:
    """Arms also go when their bound is no better than the incumbent; the most promising are first; children are guided
    by what binds."""
    judge = Judge(prices, budget_s=budget_s, now_s=now_s, max_evals=max_evals, report=report, should_stop=should_stop)
    _run(judge, seed, bounded=True)
    return judge.outcome("hetrl_bounded")


def _run(judge: Judge, seed: int, *, bounded: bool) -> None:
    problem = judge.prices.problem
    menu = menu_of(judge.prices)
    bounds = Bounds(menu) if bounded else None
    arms = []
    for i, grouping in enumerate(groupings(problem)):
        draw = _drawer(menu, grouping, np.random.default_rng([seed, i]), bounds)
        arms.append(GroupingArm(draw, bounds.of_grouping(grouping) if bounds else 0.0))
    if bounded:
        arms = by_bound(arms)[: max(_LEAST_ARMS, int(judge.evaluations_within(1.0) / _EVALUATIONS_AN_ARM))]
    before = -1
    while judge.spent() < 1 and judge.num_evaluations > before:  # an arm that ends early leaves budget for new sizes
        before = judge.num_evaluations
        halve(arms, judge, 1.0, alive=lambda arm: promising(arm, judge))


def _drawer(menu: Menu, grouping: Grouping, rng: np.random.Generator, bounds: Bounds | None) -> Callable[[], SizesArm]:
    """What makes new size vectors of one grouping."""
    problem = menu.prices.problem
    space = genome.space(menu, grouping)
    whole = sum(at.num_gpus for at in space.classes)
    endless = sizes_of(
        problem.workload, grouping, whole, rng, all_of_them=problem.goal.objective is Objective.THROUGHPUT
    )

    def draw() -> SizesArm:
        sizes = next(endless)
        children = np.random.default_rng(rng.integers(1 << 63))
        evolution = Evolution(space, sizes, children, guide.guided if bounds else None)
        return SizesArm(evolution, bounds.of_sizes(grouping, sizes) if bounds else 0.0)

    return draw
