"""Building the linear model of a subproblem, whose optimum no placement of the subproblem beats.

The model is a relaxation: each placement of the subproblem that takes at most `most_s` seconds a step, and costs at
most `most_usd` dollars per hour, is a point of it, at no more than its true value. What is not linear in the variables
is replaced by a lower bound:

- Busy time W / R of a task: tangents, since it is convex in the rate R (`row_builders`).
- Generation's window: the most that units make in an interval of windows (`window_rows`).
- Scoring that waits for the most distant unit: a chain of binaries, and rows in which each unit loses its own transfer
  time (`scoring_rows`).
- Transfer of a version over a shared uplink: as if only as few regions received it as the subproblem allows.
- The critic's region: the least over all regions that the subproblem leaves open (`critic_rows`).

The oracle evaluates the model's optimum. If its value is higher, the search cuts or divides the subproblem.
"""

from collections.abc import Sequence

from planner.methods.exact.program.linear_model import INFINITE, LinearModel
from planner.methods.exact.relaxation.critic_rows import add_critic
from planner.methods.exact.relaxation.dollar_rows import DollarTerms
from planner.methods.exact.relaxation.inventory_rows import add_inventory
from planner.methods.exact.relaxation.mesh_rows import add_mesh
from planner.methods.exact.relaxation.region_rows import add_region_rules
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.unit_rows import add_units
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.remaining_candidates import RemainingCandidates, Subproblem, remaining_candidates
from planner.methods.exact.subproblem.rent_lower_bounds import chosen_usd
from planner.problem.workload import Task

_ROUNDING = 1e-9
"""Relative tolerance of comparisons of dollars."""
_STEP_ROUNDING = 1e-12
"""Relative decrease of the least step time, so that rounding does not make it larger than that of a placement."""


def build_relaxation(
    data: ProblemArrays,
    subproblem: Subproblem,
    most_s: float,
    most_usd: float,
    cuts: Sequence[tuple[Task, float]] = (),
    *,
    is_fine: bool = False,
) -> Relaxation | None:
    """Return the model of a subproblem, or None if nothing in it is within the limits.

    No placement with more than `most_s` seconds a step or `most_usd` dollars per hour is of interest. `cuts` are (task,
    samples per second) at which further tangents are added. `is_fine` keeps nearly equal latency levels apart.
    """
    most_s = min(most_s, subproblem.step_s[1], data.cost_tables.problem.goal.planned_step_s or INFINITE)
    # First rule out subproblems without candidates, or whose rent is already too high.
    candidates = remaining_candidates(data, subproblem, most_s)
    if candidates is None or _is_too_expensive(data, candidates, most_s, most_usd):
        return None
    built = _with_phases(data, subproblem, candidates, most_s, cuts, is_fine)
    dollars = DollarTerms(data=data, trainer_region=subproblem.trainer_region)
    # Then add the groups, and the rows that join them.
    for tasks in subproblem.grouping:
        if tasks in candidates.meshes:
            add_mesh(built, dollars, tasks)
        elif not add_units(built, dollars, tasks):
            return None
    if not add_critic(built, dollars):
        return None
    add_inventory(data, built.model, built.meshes.values(), built.units.values())
    add_region_rules(built)
    ends_s = (subproblem.step_s[0], most_s)
    dollars.add_objective(built.model, built.step, ends_s, built.scale_s, most_usd)
    return built


def _is_too_expensive(data: ProblemArrays, candidates: RemainingCandidates, most_s: float, most_usd: float) -> bool:
    """Return whether dollars are minimised and the candidates' rent alone is above `most_usd`."""
    if not data.minimises_usd:
        return False
    least_usd = chosen_usd(data, candidates.meshes, candidates.units, candidates.least, most_s)
    return least_usd > most_usd * (1 + _ROUNDING)


def _with_phases(
    data: ProblemArrays,
    subproblem: Subproblem,
    candidates: RemainingCandidates,
    most_s: float,
    cuts: Sequence[tuple[Task, float]],
    is_fine: bool,
) -> Relaxation:
    """Return a model that has only the variables of the step and its phases: tau in its range, T and S >= 0."""
    model, least = LinearModel(), candidates.least
    # Times in units of the limit, so that rows have entries of about 1.
    scale_s = most_s if most_s < INFINITE else 1.0
    # tau is at least the busiest group and the path's share of a step; rounding must not exclude the true value.
    low_s = max(subproblem.step_s[0], least.busy_s, least.path_s() / data.ends)
    return Relaxation(
        data=data,
        subproblem=subproblem,
        candidates=candidates,
        most_s=most_s,
        low_s=low_s,
        scale_s=scale_s,
        cuts=cuts,
        is_fine=is_fine,
        model=model,
        step=model.variable(min(low_s / scale_s * (1 - _STEP_ROUNDING), 1.0), most_s / scale_s),
        train=model.variable(),
        score=model.variable(),
    )
