"""A plan that runs on a fleet that is no longer the same: what a re-plan starts from, and chooses among."""

from dataclasses import dataclass
from functools import cached_property

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.placement import Placement
from planner.cost.columns import mesh_columns
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.exact.blocks import Blocks
from planner.exact.linear import INFINITE
from planner.question.goal import Goal
from planner.question.workload import Task
from planner.replan.columns import repairs, units_for
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

    @property
    def goal(self) -> Goal:
        return self.prices.problem.goal

    @cached_property
    def blocks(self) -> Blocks:
        """Of few columns: units, the running meshes and their repairs."""
        groups = self.running.groups
        return Blocks(self.prices, INFINITE, 1).of(
            units={group.tasks: units_for(self.prices, group) for group in groups if not group.trains},
            meshes={group.tasks: repairs(self.prices, group) for group in groups if group.trains},
        )

    @cached_property
    def all_blocks(self) -> Blocks:
        """With all meshes of one class."""
        meshes = {}
        for group in (group for group in self.running.groups if group.trains):
            own = repairs(self.prices, group)
            had = {each.group for each in own}
            others = mesh_columns(self.prices, group.tasks, blocks=1)
            meshes[group.tasks] = (*own, *(each for each in others if each.group not in had))
        return self.blocks.of(units={}, meshes=meshes)

    @property
    def homes(self) -> tuple[str, ...]:
        """Regions of the fleet in which the running plan trains its actor."""
        group = self.running.group_of(Task.ACTOR_TRAINING)
        found = (self.prices.classes.get(pool.device_class) for pool in group.pools)
        return tuple(dict.fromkeys(at.region.name for at in found if at is not None))
