"""Polishing of a job's best placement: add workers that do not lengthen the step.

A search stops at the fewest workers that reach its step time. Lengths and speeds are estimates, and hosts that a job
leaves unused gain nothing. So each region that generates on cores gets all of its workers, and each region that may
generate and is not too far to help joins. Accelerators are worth more, to other jobs too: those that generate get more
of their kind beside them only until generation has a reserve (`BUSY_SHARE`). The oracle evaluates each change.
"""

from collections.abc import Mapping
from dataclasses import replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent
from planner.answer.placement import Group, Layout, Placement, Pool
from planner.cost.oracle import evaluate
from planner.cost.step.fixed_terms import FixedTerms, fixed_terms
from planner.cost.step.step_estimate import alone_s
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.jobs.needs import Needs
from planner.problem.workload import Task

BUSY_SHARE = 0.75
"""Share of a step up to which generation on accelerators is planned to be busy, if more are free. Chosen by hand: on an
emulated fleet, workers generated 0.72 times as fast as was predicted, and a plan that needed 0.92 of the step waited
for samples a fifth of its time (bench/results/2026-11-26-executed-plans.md)."""

_TOLERANCE = 1e-9
"""Relative tolerance within which two steps count as equally long."""


def polished(cost_tables: CostTables, found: Incumbent, needs: Needs) -> Incumbent:
    """Return a placement that is at least as good, with all workers on cores and a reserve of those on accelerators.

    A job may want a number of workers for each region; then those on accelerators get all of them too.
    """
    rules = cost_tables.problem.rules
    if found.placement.group_of(Task.GENERATION).trains:
        return found  # further units of its devices would train as well
    # One class after another, each change on top of those that were accepted before.
    for at in sorted(cost_tables.classes.values(), key=lambda at: at.key):
        if not rules.allows(Task.GENERATION, at.region.name, at.is_spot):
            continue
        if not at.gpu.is_cpu and needs.workers_per_region is None:
            found = _with_reserve(cost_tables, found, at.key)
            continue
        placement = _with_all_workers(cost_tables, found.placement, at.key, needs.least_workers)
        evaluation = None if placement is None else evaluate(cost_tables, placement)
        if placement is None or not isinstance(evaluation, Evaluation):
            continue
        # A new region joins only if it would not idle at this step.
        taken = at.key in {pool.device_class for pool in found.placement.group_of(Task.GENERATION).pools}
        idles = needs_s(cost_tables, placement)[at.region.name] > evaluation.step_s * (1 + _TOLERANCE)
        if (taken or not idles) and evaluation.step_s <= found.evaluation.step_s * (1 + _TOLERANCE):
            found = replace(found, placement=placement, evaluation=evaluation)
    return found


def _with_reserve(cost_tables: CostTables, found: Incumbent, key: str) -> Incumbent:
    """Return the placement with more units of a class that generates, until generation is busy for BUSY_SHARE."""
    while dict(found.evaluation.task_s)[Task.GENERATION] > BUSY_SHARE * found.evaluation.step_s:
        group = found.placement.group_of(Task.GENERATION)
        pools = [pool.resized(pool.num_units + (pool.device_class == key)) for pool in group.pools]
        more = replace(group, pools=tuple(pools))
        placement = Placement(groups=tuple(more if each is group else each for each in found.placement.groups))
        evaluation = None if more == group else evaluate(cost_tables, placement)
        is_no_longer = isinstance(evaluation, Evaluation) and (
            evaluation.step_s <= found.evaluation.step_s * (1 + _TOLERANCE)
        )
        if not isinstance(evaluation, Evaluation) or not is_no_longer:
            break
        found = replace(found, placement=placement, evaluation=evaluation)
    return found


def needs_s(cost_tables: CostTables, placement: Placement) -> Mapping[str, float]:
    """Return, for each region that generates, the least step in seconds in which it makes samples in time."""
    terms = fixed_terms(cost_tables, placement)
    assert isinstance(terms, FixedTerms), terms
    found: dict[str, float] = {}
    # A region may have several classes; its slowest counts.
    for making in terms.making:
        found[making.region] = max(alone_s(cost_tables, terms, making), found.get(making.region, 0.0))
    return found


def _with_all_workers(cost_tables: CostTables, placement: Placement, key: str, num_workers: int) -> Placement | None:
    """Return the placement with `num_workers` workers of the class `key`; None if they do not fit."""
    group = placement.group_of(Task.GENERATION)
    # The class's pool is replaced or added; pools are sorted, so that equal placements are equal values.
    others = tuple(pool for pool in group.pools if pool.device_class != key)
    layouts = ((Task.GENERATION, Layout(tensor=1)),)
    pool = Pool(device_class=key, unit_gpus=1, num_units=num_workers, layouts=layouts)
    if not isinstance(cost_tables.pool(group.tasks, pool), UnitCost):
        return None
    changed = Group(tasks=group.tasks, pools=tuple(sorted((*others, pool), key=lambda each: each.device_class)))
    return Placement(groups=tuple(changed if each is group else each for each in placement.groups))
