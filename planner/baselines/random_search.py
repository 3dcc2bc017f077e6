"""`random`: the best of as many random placements as the time allows (`genome`: what is drawn)."""

from collections.abc import Callable

import numpy as np

from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.baselines.genome import Genome
from planner.baselines.progress import Progress
from planner.cost.pools import Prices


def search(
    prices: Prices,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = lambda found: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Found | BudgetExhausted:
    """Draws until time is over."""
    progress = Progress(
        prices=prices, budget_s=budget_s, now_s=now_s, report=report, should_stop=should_stop, method="random"
    )
    genome, rng = Genome(prices), np.random.default_rng(seed)
    while not progress.is_over:
        placement = genome.placement(rng.random(genome.length))
        if placement is not None:
            progress.judge(placement)
    return progress.outcome()
