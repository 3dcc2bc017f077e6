"""Lower bounds on the rent of a subproblem that need no model: each group alone, with the whole fleet available.

A group without training rents the cheapest devices, in fractions, that do its work in the time that the other groups'
lower bounds leave. A group with training rents its cheapest mesh; where meshes are not listed, the work of its tasks at
the best price of a device (`planner.methods.exact.subproblem.mesh_lower_bounds`). Egress is not counted.
"""

from collections.abc import Mapping

import numpy as np

from planner.methods.exact.program.linear_model import INFINITE, Floats
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.mesh_lower_bounds import floor_usd
from planner.methods.exact.subproblem.reachable_candidates import ReachableMeshes, ReachableUnits, meshes_at, units_at
from planner.methods.exact.subproblem.remaining_candidates import GroupLowerBounds, fits
from planner.problem.groupings import Grouping, Tasks
from planner.problem.workload import TRAINING, Task


def least_usd(
    data: ProblemArrays,
    grouping: Grouping,
    trainer_region: int,
    least: GroupLowerBounds,
    most_s: float,
    *,
    is_listed: bool,
) -> float:
    """Return a lower bound in dollars per hour for all placements of this grouping and trainer's region.

    Their step takes at most `most_s`; `least` are the lower bounds of all groups together. `is_listed` says whether
    meshes are listed already.
    """
    usd = 0.0
    # Groups have devices of their own, so their least rents add up.
    for tasks in grouping:
        if not any(task in TRAINING for task in tasks):
            usd += units_usd(data, units_at(data, tasks, trainer_region), least, most_s)
        elif is_listed:
            usd += meshes_usd(data, meshes_at(data, tasks, trainer_region), least, most_s)
        else:
            usd += floor_usd(data, tasks, trainer_region, most_s)
    return usd


def chosen_usd(
    data: ProblemArrays,
    meshes: Mapping[Tasks, ReachableMeshes],
    units: Mapping[Tasks, ReachableUnits],
    least: GroupLowerBounds,
    most_s: float,
) -> float:
    """Return a lower bound in dollars per hour with the candidates that are left in a subproblem."""
    usd = sum(meshes_usd(data, at, least, most_s) for at in meshes.values())
    return usd + sum(units_usd(data, at, least, most_s) for at in units.values())


def meshes_usd(data: ProblemArrays, at: ReachableMeshes, least: GroupLowerBounds, most_s: float) -> float:
    """Return the rent of the cheapest mesh that is fast enough; inf if there is none."""
    keep = fits(at, least, data.ends * most_s * (1 + 1e-9), Task.GENERATION in at.block.tasks)
    keep &= at.busy_s <= most_s * (1 + 1e-9)
    return float(at.block.usd[at.rows[keep]].min(initial=INFINITE))


def units_usd(data: ProblemArrays, at: ReachableUnits, least: GroupLowerBounds, most_s: float) -> float:
    """Return a lower bound on the rent of a group without training.

    It is the largest of three needs: full rates within a step, scoring within its phase, and samples within the window.
    """
    if not len(at.rows):
        return INFINITE
    path_s, found = data.ends * most_s, 0.0
    rates = at.score_rates
    if at.generates and not data.is_sync:
        rates = np.concatenate([rates, at.rates[:, None]], axis=1)
    # Busy time of all tasks within a step.
    if rates.shape[1]:
        found = _cover(at, _together(at, rates), data.samples / most_s)
    if at.scores:
        phase_s = path_s - least.train_s - least.generation_s - least.others_s
        nearest_s = float(at.level_s.min())
        if phase_s <= nearest_s:
            return INFINITE
        # A unit loses its transfer time of the scoring phase, so its rate counts in proportion.
        share = np.clip((phase_s - at.level_s) / (phase_s - nearest_s), 0.0, 1.0)
        needed = data.samples / (phase_s - nearest_s)
        found = max(found, _cover(at, _together(at, at.score_rates) * share, needed))
    if at.generates:
        window_s = path_s - least.train_s - least.score_s - least.others_s
        made = at.made(np.array([window_s]), INFINITE if data.is_sync else most_s - least.others_s)[:, 0]
        found = max(found, _cover(at, made, data.samples))
    return found


def _together(at: ReachableUnits, rates: Floats) -> Floats:
    """Return `[num_rows]`: one rate for several tasks by turns, such that sums over units are an upper bound.

    The joint rate is concave in the rate of each task, so any weights give an upper bound.
    """
    alone = 1.0 / np.maximum(at.fleet_total(rates), 1e-300)
    weights = alone / alone.sum()
    found: Floats = rates @ weights**2
    return found


def _cover(at: ReachableUnits, made: Floats, needed: float) -> float:
    """Return the least rent of units, in fractions, that make `needed`; inf if all of them together do not."""
    classes = at.block.at_class[at.rows]
    starts = np.flatnonzero(np.diff(classes, prepend=-1))
    with np.errstate(divide="ignore"):
        each = np.where(made > 0, at.block.usd[at.rows] / np.maximum(made, 1e-300), INFINITE)
    # Best price and most output of each class, then fill up from the cheapest class.
    price = np.minimum.reduceat(each, starts)
    most = np.maximum.reduceat(made * at.shares, starts)
    order = np.argsort(price, kind="stable")
    order = order[most[order] > 0]
    before = np.cumsum(most[order]) - most[order]
    taken = np.clip(needed * (1 - 1e-9) - before, 0.0, most[order])
    if taken.sum() < needed * (1 - 1e-6):
        return INFINITE
    return float(np.sum(taken * price[order]))
