"""Repair of placements for least dollars: add units until the deadline holds, then remove units that are not needed.

Relaxations for least dollars are rounded to placements that generate slightly too little. The oracle names what binds.
The group behind it gets the unit that saves most seconds per dollar. Then units are removed, the one that saves most
dollars first, as long as the deadline holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Group, Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.settings import DEFAULT_SETTINGS, ExactSettings
from planner.problem.workload import SCORING, Task

_HELPS = 1e-9
"""Least relative change of seconds or dollars that counts as an improvement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EvaluatedPlacement:
    """A placement with its evaluation, whatever the goal's limits."""

    placement: Placement
    step_s: float
    usd: float
    """Dollars per hour with as many steps as the deadline asks for."""
    binding: str
    """Name of what determines the step time."""


def repaired(
    cost_tables: CostTables, placement: Placement, worth_usd: float, settings: ExactSettings = DEFAULT_SETTINGS
) -> Placement | None:
    """Return a placement that keeps the goal's deadline and costs less than `worth_usd`; None if none is found."""
    now = _evaluated(cost_tables, placement)
    most_s = cost_tables.problem.goal.planned_step_s
    if now is None or most_s is None:
        return None
    # Add units until the deadline holds, or the placement is too expensive.
    for _ in range(settings.repair_added):
        if now.step_s <= most_s or now.usd >= worth_usd:
            break
        better = _more(cost_tables, now)
        if better is None:
            return None
        now = better
    if now.step_s > most_s:
        return None
    # Then remove units while the deadline holds.
    for _ in range(settings.repair_removed):
        fewer = _fewer(cost_tables, now, most_s)
        if fewer is None:
            break
        now = fewer
    return now.placement if now.usd < worth_usd else None


def _evaluated(cost_tables: CostTables, placement: Placement) -> _EvaluatedPlacement | None:
    """Evaluate a placement without the goal's limits; None if it is invalid or there is no deadline."""
    deadline_s = cost_tables.problem.goal.max_step_s
    goal = replace(cost_tables.problem.goal, max_step_s=None, max_usd_per_hour=None)
    found = evaluate(cost_tables, placement, goal=goal)
    if not isinstance(found, Evaluation) or deadline_s is None:
        return None
    # Egress per hour as if steps took exactly the deadline, so that placements with different steps can be compared.
    usd = found.usd_per_hour + found.usd_egress_per_hour * (found.step_s / deadline_s - 1)
    return _EvaluatedPlacement(placement=placement, step_s=found.step_s, usd=usd, binding=found.binding)


def _more(cost_tables: CostTables, now: _EvaluatedPlacement) -> _EvaluatedPlacement | None:
    """Return the placement with one more unit, in a group that binds, that saves most seconds per dollar.

    The result is None if no unit helps.
    """
    best, most = None, 0.0
    for group in now.placement.groups:
        if group.trains or not _binds(group, now.binding):
            continue
        for place in range(len(group.pools)):
            found = _evaluated(cost_tables, _changed(now.placement, group, place, 1))
            if found is None:
                continue
            saved_s = now.step_s - found.step_s
            # The rent may be 0, and egress may change either way, so the difference may be 0 or less.
            usd = max(found.usd - now.usd, 1e-9)
            if saved_s > _HELPS * now.step_s and saved_s / usd > most:
                best, most = found, saved_s / usd
    return best


def _binds(group: Group, binding: str) -> bool:
    """Return whether more units of the group may shorten the step; a path contains generation and scoring."""
    if binding.startswith("path:"):
        return any(task is Task.GENERATION or task in SCORING for task in group.tasks)
    return binding == "group:" + "+".join(group.tasks)


def _fewer(cost_tables: CostTables, now: _EvaluatedPlacement, most_s: float) -> _EvaluatedPlacement | None:
    """Return the cheapest placement with one unit less that keeps the deadline; None if there is none."""
    best = None
    for placement in _smaller(now.placement):
        found = _evaluated(cost_tables, placement)
        if found is None or found.step_s > most_s:
            continue
        if found.usd < (best or now).usd * (1 - _HELPS):
            best = found
    return best


def _smaller(placement: Placement) -> Iterator[Placement]:
    """Yield every placement with one unit less."""
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
    """Return the placement with `more` units added to one pool of a group."""
    pool = replace(group.pools[place], num_units=group.pools[place].num_units + more)
    pools = (*group.pools[:place], pool, *group.pools[place + 1 :])
    changed = replace(group, pools=pools)
    return Placement(groups=tuple(changed if each is group else each for each in placement.groups))
