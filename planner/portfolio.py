"""All methods by name, one interface; and `auto`, which gives the exact method most of the time and the others a slice.

A method searches one problem's plan space within a budget of seconds, tells each better incumbent, and returns an
`Outcome`. Whatever a method returns, `auto` has the oracle judge again.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.ma  # `np.unique` imports it when first called, and a first answer would wait 10 ms for that

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Infeasible, Outcome
from planner.answer.placement import Placement
from planner.areal_hex.method import search as areal_hex
from planner.baselines.genetic import search as genetic
from planner.baselines.random_search import search as random
from planner.baselines.streamrl_like import search as streamrl
from planner.baselines.verl_like import search as verl
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.exact.method import search as exact
from planner.groupings import groupings
from planner.hetrl.descent import Descent
from planner.hetrl.method import search as hetrl
from planner.hetrl.method import search_bounded as hetrl_bounded
from planner.judge import INFEASIBLE, Judge, ignore, never

_OPENING_S = 0.6
"""A good placement saves the exact method most of its work."""
_PATIENCE, _GROUPINGS = 3, 30
"""The opening ends when nothing better came for so many rounds, and one more for each so many groupings."""
_CLOSER_S = 0.5
"""Once the gap is proved, the best within it is looked for, as long again as that took and so much more."""
_HEURISTICS_SHARE = 0.25
"""Of a budget, and only of what the exact method leaves without a proof."""
_LEAST_S = 0.2
"""Before that a search has hardly begun."""


class Method(Protocol):
    """Searches within `budget_s` by the clock `now_s`; `report` hears of each better incumbent."""

    def __call__(
        self,
        prices: Prices,
        *,
        seed: int,
        budget_s: float,
        now_s: Callable[[], float],
        report: Callable[[Incumbent], None] = ...,
        should_stop: Callable[[], bool] = ...,
    ) -> Outcome: ...


def auto(
    prices: Prices,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
    start: tuple[Placement, ...] = (),
) -> Outcome:
    """The best of all methods: exact after a quick opening; where it proves nothing in time, the heuristics again."""
    began_s, goal = now_s(), prices.problem.goal
    descent = Descent(prices, np.random.default_rng(seed))
    trace: list[Incumbent] = []

    def hear(new: Incumbent) -> None:
        """Only what the oracle accepts, and only what is better or better proved than what is known."""
        judged = evaluate(prices, new.placement)
        if not isinstance(judged, Evaluation):
            return
        bounds = [each.bound for each in (new, *trace[-1:]) if each.bound is not None]
        best = replace(new, evaluation=judged, bound=max(bounds, default=None), elapsed_s=now_s() - began_s)
        if trace and best.value(goal) >= trace[-1].value(goal):
            if best.bound == trace[-1].bound:
                return
            best = replace(trace[-1], bound=best.bound, elapsed_s=best.elapsed_s)
        trace.append(best)
        report(best)

    def left_s() -> float:
        return budget_s - (now_s() - began_s)

    def value() -> float:
        return trace[-1].value(goal) if trace else INFEASIBLE

    def opening() -> tuple[Placement, ...]:
        """A descent, for as long as it goes on to find something better."""
        judge = Judge(prices, budget_s=min(left_s(), _OPENING_S), now_s=now_s, report=hear, should_stop=should_stop)
        descent.run(judge, value(), patience=_PATIENCE + len(groupings(prices.problem)) // _GROUPINGS)
        return tuple(each.placement for each in trace[-1:])

    proved = exact(
        prices, seed=seed, budget_s=budget_s * (1 - _HEURISTICS_SHARE), now_s=now_s, report=hear,
        should_stop=should_stop, start=start, opening=opening,
    )  # fmt: skip
    if isinstance(proved, Infeasible):
        return replace(proved, method="auto")
    num = proved.num_evaluations
    if isinstance(proved, Found):
        closer = exact(
            prices, seed=seed, budget_s=min(left_s(), now_s() - began_s + _CLOSER_S), now_s=now_s, report=hear,
            should_stop=should_stop, start=(trace[-1].placement,), gap=0.0,
        )  # fmt: skip
        num += 0 if isinstance(closer, Infeasible) else closer.num_evaluations
        return Found(best=trace[-1], trace=tuple(trace), num_evaluations=num, method="auto")
    again = Judge(prices, budget_s=left_s() / 2, now_s=now_s, report=hear, should_stop=should_stop)
    descent.run(again, value())
    num += again.num_evaluations
    if left_s() > _LEAST_S and not should_stop():
        found = hetrl_bounded(prices, seed=seed, budget_s=left_s(), now_s=now_s, report=hear, should_stop=should_stop)
        num += 0 if isinstance(found, Infeasible) else found.num_evaluations
    best = trace[-1] if trace else None
    bound = proved.bound if best is None else best.bound
    return BudgetExhausted(best=best, bound=bound, trace=tuple(trace), num_evaluations=num, method="auto")


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "auto": auto,
        "exact": exact,
        "hetrl": hetrl,
        "hetrl_bounded": hetrl_bounded,
        "areal_hex": areal_hex,
        "verl": verl,
        "streamrl": streamrl,
        "random": random,
        "genetic": genetic,
    }
)
"""By the name that `--method` takes."""
