"""Where a point of a subproblem's model is too optimistic, and how to divide the subproblem there.

A point gives values to all variables of a model. The functions compare it with what its placement would really need.
There is one function for each thing that the model relaxes: versions that arrive later because more regions share the
uplink, generation's window, what other tasks leave of a step for generation, scoring that waits for distant units, the
critic's region and its share of links, and a budget's relation between step time and rent. Each returns the parts, or
nothing if dividing there would not change the model. The parts together always cover the subproblem, and the order in
which divisions are tried is in `planner.methods.exact.branching`.
"""

from dataclasses import replace

import numpy as np

from planner.methods.exact.program.linear_model import Floats
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.variables import chosen_regions
from planner.methods.exact.relaxation.window_rows import looseness
from planner.methods.exact.subproblem.reachable_candidates import lags
from planner.methods.exact.subproblem.remaining_candidates import Subproblem, critic_link_s
from planner.problem.workload import Task

Parts = tuple[Subproblem, ...]
"""Subproblems that together hold every placement of the one that is divided; empty if it is not divided."""

_TINY = 1e-6
"""Relative difference of seconds or dollars that does not matter."""


def inner_point(at: float, low: float, high: float, margin: float) -> float:
    """Return the point of a range nearest to `at` that keeps the share `margin` of the range on each side."""
    return min(max(at, low + margin * (high - low)), high - margin * (high - low))


def arrival_underestimate(built: Relaxation, values: Floats) -> float:
    """Return how much later versions arrive at a point than the model counts, as a share of the step limit."""
    transfers, num, units = built.transfers, built.num_receivers(values), built.generating
    if units is None or transfers.up_s <= 0 or num <= max(built.subproblem.receivers[0], 1):
        return 0.0
    regions = np.unique(units.of.region)
    longer: Floats = (lags(transfers, num) - lags(transfers, built.subproblem.receivers[0]))[regions]
    return float(longer.max()) / built.most_s


def divided_by_receivers(built: Relaxation, values: Floats) -> Parts:
    """Divide into fewer regions that receive versions than at the point, and at least as many."""
    num, (few, many) = built.num_receivers(values), built.subproblem.receivers
    if num <= max(few, 1):
        return ()
    return tuple(replace(built.subproblem, receivers=ends) for ends in ((few, num - 1), (num, many)))


def divided_by_window(built: Relaxation, values: Floats, gap: float) -> Parts:
    """Divide generation's window at the point; `gap` is the search's relative gap."""
    at, settings = built.window_at(values), built.data.settings
    if at is None:
        return ()
    low, high = built.window_range_s
    # A narrower interval would hardly change the model.
    if high - low <= min(settings.narrowest_window, gap / settings.narrowest_window_per_gap) * high:
        return ()
    middle = inner_point(at, low, high, settings.division_margin)
    return tuple(replace(built.subproblem, window_s=ends) for ends in ((low, middle), (middle, high)))


def divided_by_others(built: Relaxation, values: Floats, loose: float) -> Parts:
    """Divide the range of the seconds that other tasks take of generation's group.

    It is worthwhile where these tasks leave too little of a step for more than the share `loose` of its samples,
    although the model counts them as made.
    """
    settings = built.data.settings
    window_s, on, generating = built.window_at(values), built.interval, built.generating
    group = next((units for units in built.units.values() if units.of.generates and units.of.scores), None)
    if window_s is None or on is None or generating is None or group is None or built.data.is_sync:
        return ()
    # Seconds that the other tasks really take with the counts of the point.
    with np.errstate(divide="ignore"):
        others_s = float(np.sum(built.data.samples / (np.maximum(values[group.at], 0.0) @ group.of.score_rates)))
    low, high = built.others_range_s
    if others_s >= built.most_s or high - low <= settings.narrowest_range * high:
        return ()
    counts = np.maximum(values[generating.at], 0.0)
    left = replace(on, span_s=min(on.span_s, built.most_s - others_s))
    more = looseness(built.data, generating, left, counts, built.subproblem.trainer_region, window_s)
    if more <= loose or more - built.looseness(values) <= loose / 2:
        # The window alone is as optimistic, so dividing this range would not help.
        return ()
    middle = inner_point(low + settings.others_below * (others_s - low), low, high, settings.others_margin)
    low, high = built.subproblem.others_s
    return tuple(replace(built.subproblem, others_s=ends) for ends in ((low, middle), (middle, high)))


def divided_by_level(built: Relaxation, values: Floats) -> Parts:
    """Divide the group whose scoring is most underestimated by its longest transfer in use."""
    settings = built.data.settings
    share = settings.waits_share_usd if built.data.minimises_usd else settings.waits_share
    worst = share * built.data.ends * built.most_s
    found: Parts = ()
    for tasks, units in built.units.items():
        of, counts = units.of, np.maximum(values[units.at], 0.0)
        used = counts > settings.unused
        if not of.scores or not used.any():
            continue
        # Compare the most distant unit in use with the model's scoring phase; divide at the mean distance by rate.
        levels, rates = of.level_s, counts * of.score_rates[:, 0]
        busy_s = float(np.sum(built.data.samples / (counts @ of.score_rates)))
        lacks_s = float(levels[used].max()) + busy_s - float(values[built.score] * built.scale_s)
        far = levels > float(levels @ rates / rates.sum()) + settings.level_step * built.scale_s
        if lacks_s > worst and far.any():
            worst = lacks_s
            found = built.subproblem.by_level(tasks, float(levels[~far].max()), float(levels[far].min()))
    return found


def divided_by_step(built: Relaxation, bound_s: float) -> Parts:
    """Divide the range of step times at the bound, if there is a budget of dollars.

    The relation between step time and rent is bilinear then, and the model relaxes it from both ends of this range.
    """
    settings = built.data.settings
    low, high = built.subproblem.step_s[0], min(built.subproblem.step_s[1], built.most_s)
    has_budget = built.data.cost_tables.problem.goal.max_usd_per_hour is not None
    if not has_budget or high - low <= settings.narrowest_range * high:
        return ()
    middle = inner_point(bound_s, low, high, settings.division_margin)
    return tuple(replace(built.subproblem, step_s=ends) for ends in ((low, middle), (middle, high)))


def divided_by_critic(built: Relaxation, values: Floats) -> Parts:
    """Divide by where the critic is trained or infers, if its transfers are counted wrong at an integer point.

    The critic's source may be counted as nearer or cheaper than it is: divide by its region. Or the actor's versions
    may be counted as if they had a link for themselves: divide by whether the critic infers there.
    """
    critic, subproblem = built.critic, built.subproblem
    if critic is None:
        return ()
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
        return tuple(replace(subproblem, critic_regions=regions) for regions in (it, frozenset(sources) - it))
    if shares and subproblem.critic_regions != frozenset({subproblem.trainer_region}):
        return (replace(subproblem, critic_regions=frozenset({subproblem.trainer_region})),)
    if shares:
        # Divide at the region whose link the critic's weights occupy longest.
        worst = max(shares, key=lambda r: shares[r])
        decided = ((*subproblem.critic_in, (worst, is_there)) for is_there in (True, False))
        return tuple(replace(subproblem, critic_in=critic_in) for critic_in in decided)
    return ()


def _regions(built: Relaxation, values: Floats, task: Task) -> set[int]:
    """Return the regions in which a task runs at an integer point."""
    return {region for x, region, _ in chosen_regions(built.meshes, built.units, task) if values[x] > 0.5}


def _shared(built: Relaxation, values: Floats, scores: list[int]) -> dict[int, float]:
    """Return by region the seconds of the critic's weights on links of the actor's that are not counted yet."""
    # Where generation has the actor's weights, no version travels.
    if any(Task.GENERATION in tasks and Task.ACTOR_TRAINING in tasks for tasks in built.subproblem.grouping):
        return {}
    if built.generating is not None:
        makes = {int(r) for r in built.generating.of.region[values[built.generating.at] > 0.5]}
    else:
        makes = _regions(built, values, Task.GENERATION)
    known_s, source = critic_link_s(built.data, built.subproblem), built.subproblem.trainer_region
    links_s = {r: built.data.critic_s(source, r)[1] for r in makes & {*scores} if r != source and known_s[r] == 0}
    return {r: link_s for r, link_s in links_s.items() if link_s > _TINY * built.scale_s}
