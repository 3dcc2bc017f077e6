"""Rows of a group without training: counts of its units, and the busy time of its tasks within a step."""

from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.relaxation.dollar_rows import DollarTerms
from planner.methods.exact.relaxation.generation_rows import add_generation, full_rate_seconds, generating_units
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.row_builders import add_at_most
from planner.methods.exact.relaxation.scoring_rows import add_scoring_phase
from planner.methods.exact.relaxation.variables import Terms, UnitVariables
from planner.problem.groupings import Tasks
from planner.problem.workload import SCORING


def add_units(built: Relaxation, dollars: DollarTerms, tasks: Tasks) -> bool:
    """Add the counts n of a group's units and its rows; return False if the subproblem has no placement.

        sum over scoring tasks t of B_t + F <= tau
        low <= sum over scoring tasks t of B_t <= high       if it generates, too: `Subproblem.others_s`

    with B_t >= W / (sum over u of rate_tu n_u) the busy time of task t, and F that of generation at full rates, which
    counts at eta >= 1. Valid, since the tasks of a group take turns on its devices. At eta 0 a step's own window bounds
    generation.
    """
    data, model, of = built.data, built.model, built.candidates.units[tasks]
    # Counts of units, up to what each class holds.
    units = UnitVariables(of=of, at=model.variables(of.most, whole=True))
    built.units[tasks] = units
    scoring = _scoring_seconds(built, units)
    busy, generating = list(scoring), units
    if of.generates:
        # Units of remote regions may score and yet idle in generation, so those that generate may be fewer.
        generating = generating_units(built, units)
        busy += [] if data.is_sync else [(full_rate_seconds(built, generating), 1.0)]
    if busy:
        add_at_most(model, busy, [(built.step, 1.0)])
    if scoring:
        add_scoring_phase(built, units, scoring)
    if of.generates:
        # The range of the other tasks' time by which the search may have divided this subproblem.
        low, high = (each / built.scale_s for each in built.subproblem.others_s)
        if scoring and (low > 0 or high < INFINITE):
            model.row(scoring, low=low, high=high)
        if not add_generation(built, dollars, generating, [] if data.is_sync else scoring):
            return False
    dollars.add_units(model, units, built.is_fine)
    return True


def _scoring_seconds(built: Relaxation, units: UnitVariables) -> Terms:
    """Add B_t for each scoring task of the group, and return their sum."""
    of, found = units.of, []
    for column, task in enumerate(task for task in of.block.tasks if task in SCORING):
        rates = of.score_rates[:, column] / built.data.samples * built.scale_s
        found.append((built.busy_time(units.at, rates, built.longest, built.cuts_of(task)), 1.0))
    return found
