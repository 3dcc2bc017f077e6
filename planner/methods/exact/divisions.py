"""Where a point of a subproblem's model is too optimistic, and how to divide the subproblem there.

Each function compares a point (values of all variables) with what the placement would really need, in one of these
respects: versions that arrive later because more regions share the uplink, or because the critic's weights share a
link; the critic's region; scoring that waits for distant units; and what other tasks leave of a step for generation.
Windows are in `Relaxation.looseness`.
"""

from dataclasses import replace

import numpy as np

from planner.methods.exact.program.linear_model import Floats
from planner.methods.exact.relaxation.inventory_rows import chosen_regions
from planner.methods.exact.relaxation.relaxation import LITTLE, Relaxation
from planner.methods.exact.relaxation.row_builders import LEVEL_STEP
from planner.methods.exact.relaxation.window_rows import looseness
from planner.methods.exact.subproblem.reachable_candidates import lags
from planner.methods.exact.subproblem.remaining_candidates import Subproblem, critic_link_s
from planner.problem.goal import Objective
from planner.problem.groupings import Tasks
from planner.problem.workload import Task

_WAITS, _WAITS_PAID = 2e-3, 1e-2
"""Share of a path by which scoring at a point may be longer than the model says before its levels are divided: in
general, and where dollars are minimised and seconds count only as far as devices make up for them. Chosen by hand."""
_TINY = 1e-6
"""Relative difference of seconds or dollars that does not matter."""
_BELOW = 0.8
"""Where a range of other tasks' seconds is divided, between its lower end and its value at a point. Neither half
contains the point then."""


def arrival_underestimate(built: Relaxation, values: Floats) -> float:
    """Return how much later versions arrive at a point than the model counts, as a share of the step limit."""
    transfers, num = built.data.transfers(built.subproblem.trainer_region), built.receivers(values)
    if not built.received or transfers.up_s <= 0 or num <= max(built.subproblem.receivers[0], 1):
        return 0.0
    regions = np.unique(built.made.of.region)
    longer: Floats = (lags(transfers, num) - lags(transfers, built.subproblem.receivers[0]))[regions]
    return float(longer.max()) / built.most_s


def level_split(built: Relaxation, values: Floats) -> tuple[Tasks, float, float] | None:
    """Return (group, seconds, seconds) where scoring is most underestimated, or None.

    The subproblem is then divided: the group's longest transfer in use is at most the one, or at least the other.
    """
    pays = built.data.cost_tables.problem.goal.objective is Objective.COST_AT_THROUGHPUT
    worst, found = (_WAITS_PAID if pays else _WAITS) * built.data.ends * built.most_s, None
    for tasks, units in built.units.items():
        of, counts = units.of, np.maximum(values[units.at], 0.0)
        used = counts > LITTLE
        if not of.scores or not used.any():
            continue
        # Compare the most distant unit in use with the model's scoring phase; divide at the mean distance by rate.
        levels, rates = of.level_s, counts * of.score_rates[:, 0]
        busy_s = float(np.sum(built.data.samples / (counts @ of.score_rates)))
        lacks_s = float(levels[used].max()) + busy_s - float(values[built.score] * built.scale_s)
        far = levels > float(levels @ rates / rates.sum()) + LEVEL_STEP * built.scale_s
        if lacks_s > worst and far.any():
            worst, found = lacks_s, (tasks, float(levels[~far].max()), float(levels[far].min()))
    return found


def others_split(built: Relaxation, values: Floats, loose: float) -> float | None:
    """Return the seconds of other tasks in generation's group at which to divide, or None.

    It is worthwhile where these tasks leave too little of a step for more than the share `loose` of its samples,
    although the model counts them as made.
    """
    window_s, on = built.window_at(values), built.interval
    group = next((units for units in built.units.values() if units.of.generates and units.of.scores), None)
    if window_s is None or on is None or group is None or built.data.is_sync:
        return None
    with np.errstate(divide="ignore"):
        others_s = float(np.sum(built.data.samples / (np.maximum(values[group.at], 0.0) @ group.of.score_rates)))
    low, high = built.others_range_s
    if others_s >= built.most_s or high - low <= 1e-4 * high:
        return None
    counts = np.maximum(values[built.made.at], 0.0)
    left = replace(on, span_s=min(on.span_s, built.most_s - others_s))
    more = looseness(built.data, built.made, left, counts, built.subproblem.trainer_region, window_s)
    if more <= loose or more - built.looseness(values) <= loose / 2:
        # The window alone is as optimistic, so dividing this range would not help.
        return None
    return min(max(low + _BELOW * (others_s - low), low + 0.1 * (high - low)), high - 0.1 * (high - low))


def critic_split(built: Relaxation, values: Floats) -> list[Subproblem]:
    """Return the subproblems into which the critic's transfers divide this one; empty if they are counted right.

    At an integer point the critic's source may be counted as nearer or cheaper than it is: divide by its region. Or the
    actor's versions may be counted as if they had a link for themselves: divide by whether the critic infers there.
    """
    critic, subproblem = built.critic, built.subproblem
    if critic is None:
        return []
    trains = next(chosen for tasks, chosen in built.meshes.items() if Task.CRITIC_TRAINING in tasks)
    k = int(critic.source[trains.of.rows[int(values[trains.at].argmax())]])
    scores = sorted(_regions(built, values, Task.CRITIC_INFERENCE))
    shares = {} if critic.sources[k] != subproblem.trainer_region else _shared(built, values, scores)
    # Whether the model counts the chosen source as nearer or cheaper than it is.
    is_late = bool((critic.transfer_s[scores, k] - critic.least_s[scores] > _TINY * built.scale_s).any())
    is_more_expensive = bool((critic.usd[scores, k] > critic.least_usd[scores] * (1 + _TINY)).any())
    is_more_expensive = is_more_expensive and built.data.cost_tables.problem.goal.counts_usd
    sources = [int(each) for each in critic.sources]
    if len(sources) > 1 and (is_late or is_more_expensive or shares):
        it = frozenset({sources[k]})
        return [replace(subproblem, critic_regions=regions) for regions in (it, frozenset(sources) - it)]
    if shares and subproblem.critic_regions != frozenset({subproblem.trainer_region}):
        return [replace(subproblem, critic_regions=frozenset({subproblem.trainer_region}))]
    if shares:
        # Divide at the region whose link the critic's weights occupy longest.
        worst = max(shares, key=lambda r: shares[r])
        return [replace(subproblem, critic_in=(*subproblem.critic_in, (worst, is_there))) for is_there in (True, False)]
    return []


def _regions(built: Relaxation, values: Floats, task: Task) -> set[int]:
    """Return the regions in which a task runs at an integer point."""
    return {region for x, region, _ in chosen_regions(built.meshes, built.units, task) if values[x] > 0.5}


def _shared(built: Relaxation, values: Floats, scores: list[int]) -> dict[int, float]:
    """Return by region the seconds of the critic's weights on links of the actor's that are not counted yet."""
    if any(Task.GENERATION in tasks and Task.ACTOR_TRAINING in tasks for tasks in built.subproblem.grouping):
        return {}
    if built.window is not None:
        makes = {int(r) for r in built.made.of.region[values[built.made.at] > 0.5]}
    else:
        makes = _regions(built, values, Task.GENERATION)
    known_s, trainer_region = critic_link_s(built.data, built.subproblem), built.subproblem.trainer_region
    links_s = {
        r: built.data.critic_s(trainer_region, r)[1]
        for r in makes & {*scores}
        if r != trainer_region and known_s[r] == 0
    }
    return {r: link_s for r, link_s in links_s.items() if link_s > _TINY * built.scale_s}
