"""Branch and bound, best first, over subproblems of the plan space.

    open a node for each grouping and region of the trainer
    while there is an open node with a bound below (1 - gap) x incumbent:
        take the one with the least bound
        raise its bound: list its meshes, or solve its linear relaxation or its integer program
        make a placement of the solved point, and let the oracle evaluate it
        close the node if its bound has reached the target, else divide it or queue it for the next stage

`Frontier` holds the open nodes and the bound that follows, `NodeBounds` bounds one node, `IncumbentRecord` has the best
placement, `BranchingRule` decides how a node is divided, and `SearchBudget` when the search must end. If the oracle's
value of a program's optimum is higher than the program's, the cause is something that the model relaxes, and the node
is cut or divided there. A node is closed when nothing in it can be below the target, (1 - gap) x incumbent.

`planner.methods.exact.search` decides which candidates are searched, and in what order.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from planner.answer.placement import Placement
from planner.methods.exact.bounding import NodeBounds
from planner.methods.exact.branching import BranchingRule
from planner.methods.exact.events import (
    IncumbentImproved,
    ModelSolved,
    NodeSettled,
    NodesOpened,
    NodeTaken,
    PlacementSource,
    SearchEvent,
)
from planner.methods.exact.frontier import BoundingStage, Frontier, OpenNode
from planner.methods.exact.incumbent import IncumbentRecord
from planner.methods.exact.incumbents.repair import repaired
from planner.methods.exact.incumbents.rounding import rounded
from planner.methods.exact.program.linear_model import INFINITE, Floats, Solution
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.search_budget import EarlyEnd, SearchBudget
from planner.methods.exact.subproblem.mesh_lower_bounds import limit_listed_meshes
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.groupings import groupings

Children = tuple[OpenNode, ...]
"""What is left of a node after a stage: itself at another stage, or its parts. Empty if it is closed."""


@dataclass(slots=True, kw_only=True)
class BranchAndBound:
    """The tree of one search: its open nodes and its incumbent, and the loop that works on them."""

    incumbent: IncumbentRecord
    budget: SearchBudget
    rule: BranchingRule
    observe: Callable[[SearchEvent], None]
    """Called with each action."""
    frontier: Frontier = field(init=False, default_factory=Frontier)
    _repaired: set[Placement] = field(init=False, default_factory=set)
    """Placements that were already repaired (`incumbents.repair`)."""

    def explore(self, bounds: NodeBounds, end: EarlyEnd | None = None) -> None:
        """Open all nodes and work on them, least bound first, until none is below the target or the budget is spent.

        `bounds` has the candidates. With `end` only a part of the tree is searched, so nothing is proved.
        """
        self.frontier.is_complete = self._open_nodes(bounds) and end is None
        while self.frontier.num_open and not self.budget.is_over:
            # None if no open node is below the target: the gap is proved.
            node = self.frontier.take(self.incumbent.target)
            if node is None or (end is not None and not end.allows(node, self.incumbent.value)):
                return
            self.observe(NodeTaken(node=node))
            children = self.frontier.settle(self._work_on(node, bounds))
            self.observe(NodeSettled(node=node, children=children))

    def offer(self, placements: Iterable[Placement], source: PlacementSource) -> None:
        """Evaluate placements; a better one becomes the incumbent."""
        for placement in placements:
            proved = self.frontier.bound
            new = self.incumbent.offer(placement, proved if proved < INFINITE else 0.0)
            if new is not None:
                self.observe(IncumbentImproved(incumbent=new, source=source))

    def _open_nodes(self, bounds: NodeBounds) -> bool:
        """Open a node for each grouping and trainer's region; return False if time ended before all were open."""
        nodes, is_whole = [], True
        for grouping in groupings(bounds.data.cost_tables.problem):
            # Time is over: nodes that are not opened have no bound, so nothing will be proved.
            if self.budget.is_over and self.incumbent.best is not None:
                is_whole = False
                break
            for trainer_region in range(len(bounds.data.regions)):
                subproblem = Subproblem(grouping=grouping, trainer_region=trainer_region)
                # A node starts with a bound that needs no list of meshes. Nodes at infinity have no placement and are
                # never opened.
                bound = bounds.without_model(subproblem, is_listed=False)
                if bound < INFINITE:
                    node = OpenNode(subproblem=subproblem, bound=bound, stage=BoundingStage.MESH_LIST)
                    nodes.append(self.frontier.add(node))
        known = self.incumbent
        # The limits are the least over all open nodes, so they hold only if none is missing.
        if is_whole and bounds.data.max_s < INFINITE:
            limit_listed_meshes(bounds.data, (node.subproblem for node in self.frontier.below(known.target)))
        self.observe(
            NodesOpened(data=bounds.data, nodes=tuple(nodes), value=known.value, gap=known.gap, target=known.target)
        )
        return is_whole

    def _work_on(self, node: OpenNode, bounds: NodeBounds) -> Children:
        """Do what the stage of a node says, and return what is left of it."""
        # First stage: list the group's meshes, which gives a better bound. The model is built at the next turn, if
        # there is one.
        if node.stage is BoundingStage.MESH_LIST:
            bound = max(node.bound, bounds.without_model(node.subproblem, is_listed=True))
            return (replace(node, bound=bound, stage=BoundingStage.RELAXATION),) if bound < INFINITE else ()
        built = bounds.model(node)
        if built is None:
            return self._closed(INFINITE)
        solution = bounds.solve(node, built)
        bound = bounds.in_units(built, solution.bound)
        self.observe(ModelSolved(relaxation=built, solution=solution, bound=bound))
        # Infeasible within the limits: nothing here beats the incumbent.
        if solution.is_infeasible:
            return self._closed(INFINITE)
        # A part lies within its parent, so the parent's bound holds too, whatever rounding did to this one.
        bound = max(node.bound, bound)
        if node.stage is BoundingStage.RELAXATION:
            return self._after_relaxation(node, built, solution.values, bound)
        return self._after_program(node, built, solution, bound, bounds.tolerance(node))

    def _after_relaxation(self, node: OpenNode, built: Relaxation, values: Floats | None, bound: float) -> Children:
        """Round the point of a linear relaxation, then close the node, divide it, or queue its integer program."""
        # After a subproblem's first program, the optima of programs are its placements.
        if values is not None and node.num_programs == 0 and bound < self.incumbent.target:
            self._round(built, values)
        target = self.incumbent.target
        if bound >= target:
            return self._closed(bound)
        if values is not None and target < INFINITE:
            gained, missing = bound - node.bound, target - node.bound
            if parts := self.rule.after_relaxation(built, values, gained=gained, missing=missing):
                return tuple(node.child(part, bound, BoundingStage.RELAXATION) for part in parts)
        return (node.child(node.subproblem, bound, BoundingStage.PROGRAM),)

    def _after_program(
        self, node: OpenNode, built: Relaxation, solution: Solution, bound: float, tolerance: float
    ) -> Children:
        """Evaluate the optimum of an integer program, then close the node, or cut or divide what is left of it."""
        is_last = node.num_programs >= built.data.settings.max_programs
        after = replace(node, num_programs=node.num_programs + 1)
        if solution.values is None:
            if solution.is_complete:
                return self._closed(bound)
            if is_last or self.budget.is_over:
                return self._given_up(bound)
            # The solver found nothing in its time, so it gets another slice.
            return (after.child(node.subproblem, bound, BoundingStage.PROGRAM),)
        # The program's optimum is a placement: the oracle decides what it is worth.
        self.offer((built.placement(solution.values),), PlacementSource.PROGRAM)
        if bound >= self.incumbent.target:
            return self._closed(bound)
        if is_last:
            return self._given_up(bound)
        # The program was too optimistic: tangents at its rates cut its optimum off, and the rule may divide.
        after = replace(after, cuts=(*node.cuts, *built.rates(solution.values)))
        if parts := self.rule.after_program(built, solution.values, bound=bound, tolerance=tolerance):
            return tuple(after.child(part, bound, BoundingStage.RELAXATION) for part in parts)
        return (after.child(node.subproblem, bound, BoundingStage.PROGRAM),)

    def _closed(self, bound: float) -> Children:
        """Close the node at hand: nothing in it is below `bound`, nor below the target of this moment."""
        target = self.incumbent.target
        self.frontier.close(max(bound, target) if bound < INFINITE else target)
        return ()

    def _given_up(self, bound: float) -> Children:
        """Close the node at hand although something in it may be below the target; the proved bound says so."""
        self.frontier.close(bound)
        return ()

    def _round(self, built: Relaxation, values: Floats) -> None:
        """Round a relaxed point to a placement and evaluate it; for least dollars, repair it first."""
        placement = rounded(built, values)
        if placement is not None and built.data.minimises_usd and placement not in self._repaired:
            self._repaired.add(placement)
            placement = repaired(built.data.cost_tables, placement, self.incumbent.value, built.data.settings)
        if placement is not None:
            self.offer((placement,), PlacementSource.ROUNDED)
