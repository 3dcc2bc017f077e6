"""Rows of the regions that receive versions: slow links, the shared uplink, and egress."""

import numpy as np

from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.relaxation.dollar_rows import DollarTerms
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.row_builders import add_at_most
from planner.methods.exact.relaxation.variables import UnitVariables
from planner.methods.exact.subproblem.remaining_candidates import critic_link_s


def add_receivers(built: Relaxation, dollars: DollarTerms, units: UnitVariables) -> bool:
    """Add a binary b_r for each remote region r that generates, where it matters; return False if there are too few.

        link_r b_r <= tau                  where one version may occupy the link for longer than a step
        sum over r of up b_r <= tau        if the uplink is capped: one version for each receiver
        few <= sum over r of b_r <= many   if the uplink is capped: `Subproblem.receivers`

    b_r is 1 if any unit in r generates (`Relaxation.used`). Valid, since a version must leave before the next one. The
    link's seconds include those of the critic's weights where they certainly take the same link. Regions matter for
    dollars, too. The subproblem has no placement if it asks for more receivers than there are regions.
    """
    model, of, transfers = built.model, units.of, built.transfers
    low, high = built.subproblem.receivers
    link_s = transfers.link_s + critic_link_s(built.data, built.subproblem)
    for region in np.unique(of.region[of.region != built.subproblem.trainer_region]).tolist():
        is_slow = link_s[region] > built.low_s
        # Binaries make the program harder, so a region gets one only if a row needs it.
        if not (is_slow or transfers.up_s > 0 or dollars.counts):
            continue
        binary = built.used(units, region)
        built.receivers.append(binary)
        if is_slow:
            add_at_most(model, [(binary, float(link_s[region]) / built.scale_s)], [(built.step, 1.0)])
        dollars.add_receiver(binary, region)
    # All samples are paid at the most expensive route in use.
    dollars.add_most_expensive_route(model)
    # Without a cap on the uplink the number of receivers makes no difference.
    used = [(binary, 1.0) for binary in built.receivers]
    if transfers.up_s <= 0:
        return True
    if not used:
        return low <= 0
    add_at_most(model, [(binary, transfers.up_s / built.scale_s) for binary in built.receivers], [(built.step, 1.0)])
    model.row(used, low=float(low) if low > 0 else -INFINITE, high=float(min(high, len(used))))
    return True
