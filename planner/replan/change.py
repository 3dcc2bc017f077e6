"""A plan that runs on a fleet that is no longer the same: what a re-plan starts from, and chooses among."""

from dataclasses import dataclass
from functools import cached_property

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.placement import Group, Placement
from planner.cost.columns import mesh_columns
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.exact.blocks import Blocks
from planner.exact.linear import INFINITE
from planner.question.goal import Goal
from planner.replan.columns import units_for
from planner.replan.meshes import others, pairs, repairs, with_others
from planner.replan.migration import Policy
from planner.replan.moves import Uses


def judged(prices: Prices, placement: Placement) -> Evaluation | Violation:
    """The oracle's word, asked once."""
    return prices.known(("judged", placement), lambda: evaluate(prices, placement))


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a re-plan starts from."""

    prices: Prices
    """Of the fleet as it is now."""
    running: Placement
    stays: Uses
    """Of the running plan's devices, those that still run."""
    policy: Policy
    value: float | None
    """Objective value of the running plan as it is; None: it cannot run, or not without moving too much."""
    last: Evaluation
    """Of the running plan, when it last ran."""
    homes: tuple[str, ...]
    """Regions of the fleet in which the running plan trains its actor."""

    @property
    def goal(self) -> Goal:
        return self.prices.problem.goal

    @property
    def most_moved(self) -> int:
        """Devices that may move."""
        return int(self.policy.max_moved * self.running.num_gpus)

    @cached_property
    def blocks(self) -> Blocks:
        """Of few columns: units, and meshes of which few devices move."""
        few = {
            group.tasks: with_others(
                repairs(self.prices, group), others(self.prices, group, self.homes, self.most_moved)
            )
            for group in self._trained
        }
        units = {group.tasks: units_for(self.prices, group) for group in self.running.groups if not group.trains}
        return Blocks(self.prices, INFINITE, 1).of(units=units, meshes=few)

    @cached_property
    def paired_blocks(self) -> Blocks | None:
        """With meshes of two pools of which few devices move; None: they run only where others do.

        Whoever leaves out such a mesh's second pool needs no more memory and moves no more; what it loses is speed,
        and where the operator asks for several regions, one of them.
        """
        goal, prices = self.goal, self.prices
        if goal.max_step_s is None and not prices.problem.rules.demands_regions:
            return None
        most_s = goal.planned_step_s or INFINITE
        more = {group.tasks: pairs(prices, group, self.homes, self.most_moved, most_s) for group in self._trained}
        if not any(more.values()):
            return None
        meshes = {tasks: with_others(self.blocks.meshes(tasks).columns, found) for tasks, found in more.items()}
        return self.blocks.of(units={}, meshes=meshes)

    @cached_property
    def all_blocks(self) -> Blocks:
        """With all meshes of one class."""
        meshes = {
            group.tasks: with_others(repairs(self.prices, group), mesh_columns(self.prices, group.tasks, blocks=1))
            for group in self._trained
        }
        return self.blocks.of(units={}, meshes=meshes)

    @property
    def _trained(self) -> list[Group]:
        return [group for group in self.running.groups if group.trains]
