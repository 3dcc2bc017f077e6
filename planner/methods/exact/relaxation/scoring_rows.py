"""Rows of scoring on units: a group's scoring phase ends when its most distant unit has returned its samples.

The *level* l_u of a unit is the seconds of a step's last samples to its region and back.
"""

import numpy as np

from planner.methods.exact.program.linear_model import Floats
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.row_builders import add_at_most, highest_level
from planner.methods.exact.relaxation.variables import Terms, UnitVariables


def add_scoring_phase(built: Relaxation, units: UnitVariables, busy: Terms) -> None:
    """Add the scoring of a group to the scoring phase; `busy` is the sum of its tasks' busy times B.

        B + max over used units u of l_u <= S

    Exact at integer points, where the maximum is a chain of binaries (`row_builders.highest_level`). In the linear
    relaxation a binary may be a fraction, so `add_waiting` says the same in another form.
    """
    steps = highest_level(built.data, built.model, units, units.of.level_s, built.scale_s, built.is_fine)
    built.scoring[units.of.block.tasks] = [*busy, *steps]
    add_at_most(built.model, [*busy, *steps], [(built.score, 1.0)])
    add_waiting(built, units, units.of.level_s, built.candidates.most_score_s, [(built.score, 1.0)])


def add_waiting(built: Relaxation, units: UnitVariables, level_s: Floats, most_s: float, right: Terms) -> None:
    """Add rows for a phase `right` of at most `most_s` seconds, in which each unit loses its own transfer time.

        l_0 + W / (sum over u of rate_u s_u n_u) <= right,   s_u = (most_s - l_u) / (most_s - l_0)

    where l_0 is the least level. Valid: in a phase of P <= most_s seconds unit u scores for P - l_u seconds, and (P -
    l_u) / (P - l_0) is at most s_u, because it grows with P. So W <= (P - l_0) x sum of rate_u s_u n_u.
    """
    least, of, model, settings = float(level_s.min()), units.of, built.model, built.data.settings
    if level_s.max() - least <= settings.level_step * built.scale_s or most_s <= least:
        return
    # One rate for all tasks of the group: for weights a_t with sum 1, the sum of 1 / R_t is at least 1 / (sum of
    # a_t^2 R_t), by the Cauchy-Schwarz inequality. Any weights are valid; these are tight with the whole fleet.
    alone = 1.0 / of.fleet_total(of.score_rates)
    weights = alone / alone.sum()
    rates = of.score_rates @ weights**2 / built.data.samples * built.scale_s
    left = np.clip((most_s - level_s) / (most_s - least), 0.0, 1.0)
    seconds = built.busy_time(units.at, rates * left, (most_s - least) / built.scale_s)
    offset = model.variable(least / built.scale_s, least / built.scale_s)
    add_at_most(model, [(seconds, 1.0), (offset, 1.0)], right)
