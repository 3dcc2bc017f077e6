"""Rows of generation on units of its own: full rates within a step, the path of a step, and generation's window.

What the units make within the window is in `window_rows`, and which regions receive versions in `receiver_rows`.
"""

import numpy as np

from planner.methods.exact.relaxation.dollar_rows import DollarTerms
from planner.methods.exact.relaxation.receiver_rows import add_receivers
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.row_builders import add_at_most, highest_level, limit_by_routes
from planner.methods.exact.relaxation.variables import Terms, UnitVariables
from planner.methods.exact.relaxation.window_rows import add_window, interval
from planner.problem.workload import Task


def generating_units(built: Relaxation, units: UnitVariables) -> UnitVariables:
    """Return the units that generate, with the variables that count them.

    In a group that also scores, units of remote regions may idle in generation and still score. They get counts of
    their own, with g_u <= n_u. Where the operator demands regions, no unit may idle, so that g_u is n_u itself.
    """
    of, model = units.of, built.model
    if not of.scores or built.data.cost_tables.problem.rules.demands_regions:
        return units
    units = units.some(np.flatnonzero(of.makes))
    at = units.at.copy()
    for i in np.flatnonzero(units.of.region != built.subproblem.trainer_region).tolist():
        at[i] = model.variable(0.0, float(units.of.most[i]))
        model.row([(int(at[i]), 1.0), (int(units.at[i]), -1.0)], high=0.0)
    return UnitVariables(of=units.of, at=at)


def full_rate_seconds(built: Relaxation, units: UnitVariables) -> int:
    """Add the variable F of generation's seconds per step at full rates, and return its index.

        F >= W / (sum over regions r of min(route_r, sum over u in r of rate_u g_u))

    with all remote regions together at most the downlink. Valid, since no unit is faster than its full rate, and no
    route carries more than its rate.
    """
    transfers, scale = built.transfers, built.scale_s / built.data.samples
    down, caps = transfers.down_per_s * scale, transfers.samples_per_s * scale
    at, rates = limit_by_routes(built.model, units, units.of.rates * scale, caps, transfers, down)
    return built.busy_time(at, rates, built.longest, built.cuts_of(Task.GENERATION))


def add_generation(built: Relaxation, dollars: DollarTerms, units: UnitVariables, others: Terms) -> bool:
    """Add generation's window y and what depends on it; return False if the subproblem has no placement.

        T + S + B + y <= (eta + 1) tau

    `others` is B, the busy time of other tasks in generation's group. This is the path of a step: training, scoring,
    the other tasks and generation follow each other, and eta + 1 steps overlap. If regions are demanded, the window
    also holds the first sample of each unit in use, whose version arrives after its lag:

        T + S + B + max over used units u of (lag_u + first_u) <= (eta + 1) tau
    """
    data, model, scale_s = built.data, built.model, built.scale_s
    # y in the range that the other groups' bounds leave.
    low, high = built.candidates.window_s
    built.window, built.generating = model.variable(low / scale_s, high / scale_s), units
    path, steps = [(built.train, 1.0), (built.score, 1.0), *others], [(built.step, float(data.ends))]
    add_at_most(model, [*path, (built.window, 1.0)], steps)
    # What is made within the window, on the interval that the subproblem leaves for it.
    built.interval = interval(data, units.of, (low, high), built.most_s - built.candidates.least.others_s)
    add_window(data, model, units, built.interval, built.subproblem.trainer_region, built.window, scale_s)
    if not add_receivers(built, dollars, units):
        return False
    if data.cost_tables.problem.rules.demands_regions:
        first_s = units.of.lag_s + units.of.block.first_s[units.of.rows]
        add_at_most(model, [*path, *highest_level(data, model, units, first_s, scale_s, built.is_fine)], steps)
    return True
