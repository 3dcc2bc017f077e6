"""Bounding: lower bounds on the nodes of one search, from cheap to expensive.

A node is bounded without a model first, each group alone on the whole fleet. Then the linear relaxation of its model
bounds it, and at last the integer program. Models are built for placements below the target only, so an infeasible
model means that the node has none. `NodeBounds` never changes the incumbent or the frontier.
"""

from dataclasses import dataclass

from planner.methods.exact.frontier import BoundingStage, OpenNode
from planner.methods.exact.incumbent import IncumbentRecord
from planner.methods.exact.program.linear_model import INFINITE, Solution
from planner.methods.exact.program.ortools_solver import solve_relaxed, solve_whole
from planner.methods.exact.relaxation.building import build_relaxation
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.search_budget import SearchBudget
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.group_lower_bounds import objective_lower_bound
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.goal import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBounds:
    """Lower bounds on nodes for one set of candidates."""

    data: ProblemArrays
    incumbent: IncumbentRecord
    """Read only: its target decides which placements count."""
    budget: SearchBudget
    longest_s: float
    """Longest step in seconds that is looked for."""
    seed: int
    """Seed of the integer programs' solver."""

    @property
    def most_s(self) -> float:
        """Upper bound in seconds on the step time of any placement of interest."""
        return longest_step_s(self.incumbent, self.longest_s)

    def without_model(self, subproblem: Subproblem, *, is_listed: bool) -> float:
        """Return the lower bound with each group alone; `is_listed` says whether meshes are listed."""
        grouping, region = subproblem.grouping, subproblem.trainer_region
        return objective_lower_bound(self.data, grouping, region, self.most_s, is_listed=is_listed)

    def model(self, node: OpenNode) -> Relaxation | None:
        """Return the model of a node for placements that are better than the target; None if it has none such."""
        minimises_usd, target = self.data.minimises_usd, self.incumbent.target
        # The target limits what is minimised, dollars or seconds. Fine levels are worth their binaries only near the
        # end.
        return build_relaxation(
            self.data,
            node.subproblem,
            self.most_s if minimises_usd else min(self.most_s, target),
            target if minimises_usd else INFINITE,
            node.cuts,
            is_fine=node.num_programs > 0 and self.incumbent.gap < self.data.settings.fine_gap,
        )

    def solve(self, node: OpenNode, built: Relaxation) -> Solution:
        """Solve the linear relaxation or the integer program of a node, whichever its stage says."""
        if node.stage is BoundingStage.RELAXATION:
            return solve_relaxed(built.model)
        settings = self.data.settings
        limit_s = min(max(self.budget.left_s, settings.program_least_s), settings.program_slice_s)
        return solve_whole(built.model, limit_s=limit_s, gap=self.tolerance(node) * 2, seed=self.seed)

    def tolerance(self, node: OpenNode) -> float:
        """Return the relative gap that the next integer program of a node may leave open.

        It shrinks with each program of the node, because a few samples are many seconds where a table is flat.
        """
        settings = self.data.settings
        shrinks = min(node.num_programs, settings.program_gap_shrinks)
        return self.incumbent.gap / settings.program_gap_divisor / settings.program_gap_shrinkage**shrinks

    def in_units(self, built: Relaxation, bound: float) -> float:
        """Return a bound of the model in seconds, or in dollars per hour."""
        return bound if self.data.minimises_usd else bound * built.scale_s


def longest_step_s(incumbent: IncumbentRecord, longest_s: float) -> float:
    """Return the upper bound in seconds on the step time of any placement that may be better than the incumbent.

    `longest_s` is the bound if neither an incumbent nor the goal gives one.
    """
    goal = incumbent.cost_tables.problem.goal
    if goal.objective is Objective.COST_AT_THROUGHPUT:
        return goal.planned_step_s or longest_s
    most_s = min(incumbent.value, goal.planned_step_s or INFINITE)
    return most_s if most_s < INFINITE else longest_s
