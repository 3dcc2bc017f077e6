"""The one question: `plan(fleet, workload, objective, capabilities, budget)`.

A pure function of its arguments: the same question gets the same answer, in any order of regions and links. What the
runtime cannot execute is refused here, before any method looks at it.
"""

from typing import assert_never

from planner.plan import Infeasible, Outcome
from planner.problem import Budget, Capabilities, Fleet, Objective, Workload
from planner.static import plan_static

TOPOLOGY = "star"


def plan(fleet: Fleet, workload: Workload, objective: Objective, capabilities: Capabilities, budget: Budget) -> Outcome:
    """The best plan that the runtime can execute.

    Raises: ValueError for a fleet that contradicts itself (`Fleet.contradiction`).
    """
    if contradiction := fleet.contradiction():
        raise ValueError(f"not a fleet: {contradiction}")
    if conflict := _beyond(workload, capabilities):
        return conflict
    match objective:
        case Objective.WEIGHTS_TIME:
            return plan_static(fleet, workload)
        case _:
            assert_never(objective)


def _beyond(workload: Workload, capabilities: Capabilities) -> Infeasible | None:
    if workload.algorithm not in capabilities.algorithms:
        known = ", ".join(sorted(capabilities.algorithms))
        return Infeasible(conflict=f"the runtime executes {known}, not {workload.algorithm}")
    if workload.staleness > capabilities.max_staleness:
        return Infeasible(
            conflict=f"the runtime executes a staleness bound of at most {capabilities.max_staleness}, "
            f"not {workload.staleness}"
        )
    if TOPOLOGY not in capabilities.topologies or capabilities.max_trainers < 1:
        return Infeasible(conflict=f"the static method needs one trainer and a {TOPOLOGY}, which the runtime lacks")
    return None
