"""Entry point of the exact method: a placement with its bound, or the smallest set of conflicting constraints."""

from collections.abc import Callable

from planner.answer.outcome import Incumbent, Infeasible, Outcome
from planner.answer.placement import Placement
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import ignore, never
from planner.methods.exact.infeasibility import conflict
from planner.methods.exact.search import Search
from planner.methods.exact.settings import DEFAULT_GAP, DEFAULT_SETTINGS


def search(
    cost_tables: CostTables,
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
    """Return the best placement within `gap` with its bound, what time allowed, or the smallest conflict.

    `start` are placements that are known, such as the running one. `opening` is called once for more of them.
    """
    until_s = now_s() + budget_s
    found = Search(
        cost_tables=cost_tables,
        gap=gap,
        budget_s=budget_s,
        now_s=now_s,
        report=report,
        should_stop=should_stop,
        seed=seed,
        start=start,
        opening=opening,
    ).run()
    if not isinstance(found, Infeasible):
        return found
    # The proof alone says that there is no placement. The conflict says why, and gets some time even if the budget is
    # over.
    until_s = max(until_s, now_s() + DEFAULT_SETTINGS.conflict_s)
    return conflict(cost_tables.problem, now_s, lambda: should_stop() or now_s() > until_s)
