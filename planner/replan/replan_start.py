"""Input of a re-plan: the running plan on the changed fleet, and the columns that the program chooses among."""

from dataclasses import dataclass
from functools import cached_property

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.placement import Group, Placement
from planner.cost.candidates.columns import mesh_columns
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.problem.goal import Goal
from planner.replan.columns import units_for
from planner.replan.meshes import merged, repairs, small_single_pool_meshes, two_pool_meshes
from planner.replan.migration import MigrationPolicy
from planner.replan.moves import Uses


def estimate(cost_tables: CostTables, placement: Placement) -> Evaluation | Violation:
    """Return the oracle's result for a placement, computed once."""
    return cost_tables.known(("evaluation", placement), lambda: evaluate(cost_tables, placement))


@dataclass(frozen=True, kw_only=True)
class ReplanStart:
    """State that a re-plan starts from."""

    cost_tables: CostTables
    """Cost tables of the fleet as it is now."""
    running: Placement
    """The running placement. Some of its machines may be gone."""
    stays: Uses
    """Devices of the running plan that still run, by class and use."""
    policy: MigrationPolicy
    value: float | None
    """Objective value of the running plan if it continues. None if it cannot run, or only if too many devices move."""
    last: Evaluation
    """Evaluation of the running plan when it last ran."""
    trainer_regions: tuple[str, ...]
    """Regions of the fleet in which the running plan trains its actor."""

    @property
    def goal(self) -> Goal:
        """The problem's objective, with its limit."""
        return self.cost_tables.problem.goal

    @property
    def most_moved(self) -> int:
        """Largest number of devices that may move."""
        return int(self.policy.max_moved * self.running.num_gpus)

    @cached_property
    def columns(self) -> ProblemArrays:
        """Columns with few moves: units, and meshes for which few devices move."""
        few = {
            group.tasks: merged(
                repairs(self.cost_tables, group),
                small_single_pool_meshes(self.cost_tables, group, self.trainer_regions, self.most_moved),
            )
            for group in self._trained
        }
        units = {group.tasks: units_for(self.cost_tables, group) for group in self.running.groups if not group.trains}
        return ProblemArrays(self.cost_tables, INFINITE, 1).of(units=units, meshes=few)

    @cached_property
    def two_pool_columns(self) -> ProblemArrays | None:
        """Columns with meshes of two pools for which few devices move. None if they run only where others run as well.

        If the second pool of such a mesh is left out, the rest needs no more memory and moves no more devices. It only
        loses speed and, where the operator demands several regions, one of them.
        """
        goal, cost_tables = self.goal, self.cost_tables
        # Without a deadline and without demanded regions the first pool alone runs as well, if slower.
        if goal.max_step_s is None and not cost_tables.problem.rules.demands_regions:
            return None
        most_s = goal.planned_step_s or INFINITE
        more = {
            group.tasks: two_pool_meshes(cost_tables, group, self.trainer_regions, self.most_moved, most_s)
            for group in self._trained
        }
        if not any(more.values()):
            return None
        meshes = {tasks: merged(self.columns.meshes(tasks).columns, found) for tasks, found in more.items()}
        return self.columns.of(units={}, meshes=meshes)

    @cached_property
    def all_columns(self) -> ProblemArrays:
        """Columns with all meshes of one class."""
        meshes = {
            group.tasks: merged(repairs(self.cost_tables, group), mesh_columns(self.cost_tables, group.tasks, blocks=1))
            for group in self._trained
        }
        return self.columns.of(units={}, meshes=meshes)

    @property
    def _trained(self) -> list[Group]:
        return [group for group in self.running.groups if group.trains]
