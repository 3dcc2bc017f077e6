"""The exact method as all methods are called: a placement with its bound, or the smallest conflict."""

from collections.abc import Callable

from planner.answer.outcome import Incumbent, Infeasible, Outcome
from planner.answer.placement import Placement
from planner.cost.pools import Prices
from planner.exact.conflict import conflict
from planner.exact.search import Search
from planner.judge import ignore, never

DEFAULT_GAP = 0.01
_CONFLICT_S = 25.0
"""At least so long is looked for a smallest conflict, beyond the budget if need be and unless the caller asks to stop:
it is a better answer than that there is none."""


def search(
    prices: Prices,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
    gap: float = DEFAULT_GAP,
    start: tuple[Placement, ...] = (),
    opening: Callable[[], tuple[Placement, ...]] = tuple,
) -> Outcome:
    """The best placement within `gap`, with the bound that proves it; what time allowed; or the smallest conflict.

    `start`: placements that are known, such as the one that runs. `opening` is asked for more of them at once.
    """
    until_s = now_s() + budget_s
    found = Search(
        prices=prices, gap=gap, budget_s=budget_s, now_s=now_s, report=report, should_stop=should_stop, seed=seed,
        start=start, opening=opening,
    ).run()  # fmt: skip
    if not isinstance(found, Infeasible):
        return found
    until_s = max(until_s, now_s() + _CONFLICT_S)
    return conflict(prices.problem, now_s, lambda: should_stop() or now_s() > until_s)
