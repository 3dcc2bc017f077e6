"""A placement that comes too late made to come in time, and one that is early made cheaper, a unit at a time.

Where dollars are asked for, relaxations are rounded to placements that generate a little too little. The oracle says
what binds: the group that does gets the unit that helps most for its price. Then units go, the dearest first, as long
as the deadline holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Group, Placement
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.question.workload import SCORING, Task

_MOST_MORE, _MOST_FEWER = 12, 12
"""Units."""
_HELPS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    placement: Placement
    step_s: float
    usd: float
    """An hour, with as many steps as the deadline asks for."""
    binding: str


def mended(prices: Prices, placement: Placement, worth_usd: float) -> Placement | None:
    """A placement that keeps the goal's deadline and costs less than `worth_usd`; None where none was found."""
    now = _judged(prices, placement)
    most_s = prices.problem.goal.planned_step_s
    if now is None or most_s is None:
        return None
    for _ in range(_MOST_MORE):
        if now.step_s <= most_s or now.usd >= worth_usd:
            break
        better = _more(prices, now)
        if better is None:
            return None
        now = better
    if now.step_s > most_s:
        return None
    for _ in range(_MOST_FEWER):
        fewer = _fewer(prices, now, most_s)
        if fewer is None:
            break
        now = fewer
    return now.placement if now.usd < worth_usd else None


def _judged(prices: Prices, placement: Placement) -> _Judged | None:
    """Whatever the goal's limits."""
    asked_s = prices.problem.goal.max_step_s
    goal = replace(prices.problem.goal, max_step_s=None, max_usd_per_hour=None)
    found = evaluate(prices, placement, goal=goal)
    if not isinstance(found, Evaluation) or asked_s is None:
        return None
    usd = found.usd_per_hour + found.usd_egress_per_hour * (found.step_s / asked_s - 1)
    return _Judged(placement=placement, step_s=found.step_s, usd=usd, binding=found.binding)


def _more(prices: Prices, now: _Judged) -> _Judged | None:
    """One unit more in the group that binds, where that takes most seconds a dollar away."""
    best, most = None, 0.0
    for group in now.placement.groups:
        if group.trains or not _binds(group, now.binding):
            continue
        for place in range(len(group.pools)):
            found = _judged(prices, _changed(now.placement, group, place, 1))
            if found is None:
                continue
            saved_s = now.step_s - found.step_s
            usd = max(found.usd - now.usd, 1e-9)
            if saved_s > _HELPS * now.step_s and saved_s / usd > most:
                best, most = found, saved_s / usd
    return best


def _binds(group: Group, binding: str) -> bool:
    """Whether a group's units may make the step shorter; on a path are generation and scoring."""
    if binding.startswith("path:"):
        return any(task is Task.GENERATION or task in SCORING for task in group.tasks)
    return binding == "group:" + "+".join(group.tasks)


def _fewer(prices: Prices, now: _Judged, most_s: float) -> _Judged | None:
    """The cheapest with one unit less, if any is in time."""
    best = None
    for placement in _smaller(now.placement):
        found = _judged(prices, placement)
        if found is None or found.step_s > most_s:
            continue
        if found.usd < (best or now).usd * (1 - _HELPS):
            best = found
    return best


def _smaller(placement: Placement) -> Iterator[Placement]:
    for group in placement.groups:
        if group.trains:
            continue
        for place, pool in enumerate(group.pools):
            if pool.num_units > 1:
                yield _changed(placement, group, place, -1)
            elif len(group.pools) > 1:
                fewer = replace(group, pools=(*group.pools[:place], *group.pools[place + 1 :]))
                yield Placement(groups=tuple(fewer if each is group else each for each in placement.groups))


def _changed(placement: Placement, group: Group, place: int, more: int) -> Placement:
    pool = replace(group.pools[place], num_units=group.pools[place].num_units + more)
    pools = (*group.pools[:place], pool, *group.pools[place + 1 :])
    changed = replace(group, pools=pools)
    return Placement(groups=tuple(changed if each is group else each for each in placement.groups))
