"""All methods by name, one interface; and `auto`, which gives the exact method most of the time and the others a slice.

A method searches one problem's plan space within a budget of seconds, tells each better incumbent, and returns an
`Outcome`. Whatever a method returns, `auto` has the oracle judge again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.ma  # `np.unique` imports it when first called, and a first answer would wait 10 ms for that

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BOUND_TOLERANCE, BudgetExhausted, Found, Incumbent, Infeasible, Outcome, credible
from planner.answer.placement import Placement
from planner.areal_hex.method import search as areal_hex
from planner.baselines.genetic import search as genetic
from planner.baselines.random_search import search as random
from planner.baselines.streamrl_like import search as streamrl
from planner.baselines.verl_like import search as verl
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.exact.method import DEFAULT_GAP
from planner.exact.method import search as exact
from planner.groupings import FEW_GROUPINGS, groupings
from planner.hetrl.dealing import MANY_CLASSES
from planner.hetrl.descent import Descent
from planner.hetrl.method import search as hetrl
from planner.hetrl.method import search_bounded as hetrl_bounded
from planner.judge import INFEASIBLE, Judge, ignore, never

_OPENING_S, _SHORT_OPENING_S = 0.6, 0.3
"""A good placement saves the exact method most of its work; on fleets of many classes its own first ones are better.
Where dollars count and groupings are few there is none: what a descent finds is twice as dear as what relaxations are
rounded to a moment later."""
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


@dataclass(slots=True)
class _Known:
    """What all methods together know: placements that the oracle accepts, each better or better proved than before."""

    prices: Prices
    now_s: Callable[[], float]
    report: Callable[[Incumbent], None]
    began_s: float
    trace: list[Incumbent] = field(default_factory=list)

    @property
    def best(self) -> Incumbent | None:
        return self.trace[-1] if self.trace else None

    @property
    def value(self) -> float:
        return self.trace[-1].value(self.prices.problem.goal) if self.trace else INFEASIBLE

    @property
    def placements(self) -> tuple[Placement, ...]:
        return tuple(each.placement for each in self.trace[-1:])

    def elapsed_s(self) -> float:
        return self.now_s() - self.began_s

    def hear(self, new: Incumbent) -> None:
        """Whatever a method says of its placement, the oracle judges it again."""
        before = self.best
        judged = evaluate(self.prices, new.placement)
        if not isinstance(judged, Evaluation):
            return
        best = replace(new, evaluation=judged)
        if before is not None and best.value(self.prices.problem.goal) >= self.value:
            best = before
        value = best.value(self.prices.problem.goal)
        bounds = [credible(each.bound, value) for each in (new, before) if each is not None]
        bound = max((bound for bound in bounds if bound is not None), default=None)
        if before is not None and best is before and bound == before.bound:
            return
        self.trace.append(replace(best, bound=bound, elapsed_s=self.elapsed_s()))
        self.report(self.trace[-1])

    def outcome(self, proved: Found | BudgetExhausted, num_evaluations: int) -> Outcome:
        """Of all of them, after what the exact method `proved`."""
        trace, best = tuple(self.trace), self.best
        if best is None:
            return replace(proved, num_evaluations=num_evaluations, method="auto")
        if best.gap(self.prices.problem.goal) <= DEFAULT_GAP * (1 + BOUND_TOLERANCE):
            return Found(best=best, trace=trace, num_evaluations=num_evaluations, method="auto")
        return BudgetExhausted(
            best=best, bound=best.bound, trace=trace, num_evaluations=num_evaluations, method="auto"
        )  # fmt: skip


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
    known = _Known(prices=prices, now_s=now_s, report=report, began_s=now_s())
    descent = Descent(prices, np.random.default_rng(seed))

    def search(method: Callable[..., Outcome], budget_s: float, **more: object) -> Outcome:
        return method(
            prices, seed=seed, budget_s=budget_s, now_s=now_s, report=known.hear, should_stop=should_stop, **more
        )

    def descend(budget_s: float, **more: int) -> int:
        judge = Judge(prices, budget_s=budget_s, now_s=now_s, report=known.hear, should_stop=should_stop)
        descent.run(judge, known.value, **more)
        return judge.num_evaluations

    def opening() -> tuple[Placement, ...]:
        """A descent, for as long as it goes on to find something better."""
        num = len(groupings(prices.problem))
        if prices.problem.goal.counts_usd and num <= FEW_GROUPINGS:
            return ()
        opening_s = _SHORT_OPENING_S if len(prices.classes) > MANY_CLASSES else _OPENING_S
        descend(min(budget_s - known.elapsed_s(), opening_s), patience=_PATIENCE + num // _GROUPINGS)
        return known.placements

    proved = search(exact, budget_s * (1 - _HEURISTICS_SHARE), start=start, opening=opening)
    if isinstance(proved, Infeasible):
        return replace(proved, method="auto")
    num = proved.num_evaluations
    if isinstance(proved, Found):
        closer_s = min(budget_s - known.elapsed_s(), known.elapsed_s() + _CLOSER_S)
        num += _evaluations(search(exact, closer_s, start=known.placements, gap=0.0))
    else:
        num += descend((budget_s - known.elapsed_s()) / 2)
        if budget_s - known.elapsed_s() > _LEAST_S and not should_stop():
            num += _evaluations(search(hetrl_bounded, budget_s - known.elapsed_s()))
    return known.outcome(proved, num)


def _evaluations(outcome: Outcome) -> int:
    return 0 if isinstance(outcome, Infeasible) else outcome.num_evaluations


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
