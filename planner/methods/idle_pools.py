"""Removal of idle pools from a placement: generating devices that complete no sample within their window.

Their rent is paid for nothing.
"""

from dataclasses import replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.problem.workload import Task

_TOLERANCE = 1e-12
"""Relative tolerance within which a value counts as no worse."""


def trimmed(cost_tables: CostTables, found: Incumbent) -> Incumbent:
    """Return the incumbent without pools that idle in generation's windows, if its objective value is no worse then.

    Methods that only look at seconds keep such pools: they slow nothing down, but they cost money.
    """
    best = found
    # From the last pool to the first, so that removing one leaves the indices of the others valid.
    for place in sorted(found.evaluation.idle, reverse=True):
        group = best.placement.group_of(Task.GENERATION)
        # A group needs a pool, even if it idles.
        if len(group.pools) == 1:
            break
        fewer = replace(group, pools=(*group.pools[:place], *group.pools[place + 1 :]))
        placement = Placement(groups=tuple(fewer if each is group else each for each in best.placement.groups))
        evaluation = evaluate(cost_tables, placement)
        if not isinstance(evaluation, Evaluation):
            continue
        after = replace(best, placement=placement, evaluation=evaluation)
        if after.value(cost_tables.problem.goal) <= found.value(cost_tables.problem.goal) * (1 + _TOLERANCE):
            best = after
    return best
