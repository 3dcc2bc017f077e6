"""Lower bounds on a grouping and a region of the trainer without a model: each group alone could use the whole fleet.

Groups that train are bounded by `mesh_lower_bounds` until their meshes are listed, and by their best mesh afterwards;
all other groups by `least_alone`. No group can be faster than alone on the whole fleet, and a phase of a step ends when
all groups have ended it. So the slowest group, and the sum of the longest phases over eta + 1 steps, bound a step.
"""

from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.mesh_lower_bounds import mesh_lower_bounds
from planner.methods.exact.subproblem.remaining_candidates import GroupLowerBounds, least_alone
from planner.methods.exact.subproblem.rent_lower_bounds import least_usd
from planner.problem.goal import Objective
from planner.problem.groupings import Grouping
from planner.problem.workload import TRAINING

_TOLERANCE = 1e-9
"""Relative tolerance of comparisons of times."""


def group_lower_bounds(
    data: ProblemArrays, grouping: Grouping, trainer_region: int, *, is_listed: bool
) -> GroupLowerBounds:
    """Return the lower bounds of all groups together; `is_listed` says whether their meshes are listed."""
    least = GroupLowerBounds()
    for tasks in grouping:
        is_mesh = any(task in TRAINING for task in tasks)
        of = mesh_lower_bounds if is_mesh and not is_listed else least_alone
        least = least.with_other(of(data, tasks, trainer_region))
    return least


def objective_lower_bound(
    data: ProblemArrays, grouping: Grouping, trainer_region: int, most_s: float, *, is_listed: bool
) -> float:
    """Return a lower bound on the objective of every placement with this grouping and trainer's region.

    The bound is in seconds per step, or in dollars per hour for least dollars. Steps longer than `most_s` seconds do
    not count for least dollars; inf means that no step is shorter.
    """
    least = group_lower_bounds(data, grouping, trainer_region, is_listed=is_listed)
    # tau >= busy seconds of the slowest group; (eta + 1) tau >= training + scoring + generation + other tasks.
    bound = max(least.busy_s, least.path_s() / data.ends)
    if data.cost_tables.problem.goal.objective is not Objective.COST_AT_THROUGHPUT:
        return bound
    if bound > most_s * (1 + _TOLERANCE):
        return INFINITE
    return least_usd(data, grouping, trainer_region, least, most_s, is_listed=is_listed)
