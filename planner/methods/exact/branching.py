"""The branching rule: how a subproblem is divided whose bound is below the target.

The model of a subproblem is too optimistic in several respects, one for each division in
`planner.methods.exact.divisions`. The rule divides in the first respect in which the solved point is wrong by enough
and in which dividing changes the model. The order was chosen by hand.
"""

from dataclasses import dataclass

from planner.methods.exact.divisions import (
    Parts,
    arrival_underestimate,
    divided_by_critic,
    divided_by_level,
    divided_by_others,
    divided_by_receivers,
    divided_by_step,
    divided_by_window,
)
from planner.methods.exact.program.linear_model import INFINITE, Floats
from planner.methods.exact.relaxation.relaxation import Relaxation


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchingRule:
    """The rule of one search; `gap` is the relative gap that the search proves."""

    gap: float

    def after_relaxation(self, built: Relaxation, values: Floats, *, gained: float, missing: float) -> Parts:
        """Return the parts of a subproblem at the point of its linear relaxation; none if its program is next.

        `gained` is by how much this relaxation raised the bound, and `missing` by how much the bound before it was
        below the target.
        """
        settings = built.data.settings
        if arrival_underestimate(built, values) > settings.late_share and (
            parts := divided_by_receivers(built, values)
        ):
            return parts
        if built.looseness(values) > settings.loose_share:
            # A window that was divided before must have gained enough; many windows cost the same in dollars.
            least_gain = 0.0 if built.data.minimises_usd else settings.window_gain * missing
            if built.subproblem.window_s != (0.0, INFINITE) and gained < least_gain:
                return ()
            if parts := divided_by_window(built, values, self.gap):
                return parts
        return divided_by_others(built, values, settings.loose_share) or divided_by_level(built, values)

    def after_program(self, built: Relaxation, values: Floats, *, bound: float, tolerance: float) -> Parts:
        """Return the parts of a subproblem at the optimum of its integer program; none if only cuts can help.

        `bound` is the subproblem's bound, and `tolerance` the relative gap that the program left open.
        """
        if parts := divided_by_critic(built, values):
            return parts
        if arrival_underestimate(built, values) > tolerance and (parts := divided_by_receivers(built, values)):
            return parts
        if built.looseness(values) > tolerance and (parts := divided_by_window(built, values, self.gap)):
            return parts
        if parts := divided_by_others(built, values, tolerance):
            return parts
        # A capped uplink is counted for the fewest receivers, even where that alone delays nothing.
        if built.transfers.up_s > 0 and (parts := divided_by_receivers(built, values)):
            return parts
        return divided_by_step(built, bound)
