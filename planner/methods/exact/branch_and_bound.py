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
is cut or divided there.

A node is closed when nothing in it can be below the target. Nothing counts as proved until every subproblem of the
whole plan space, with meshes of two pools, is open.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from planner.answer.outcome import BOUND_TOLERANCE, Incumbent, Infeasible, Outcome
from planner.answer.placement import Placement
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.bounding import NodeBounds, longest_step_s
from planner.methods.exact.branching import BranchingRule
from planner.methods.exact.events import (
    IncumbentImproved,
    ModelSolved,
    NodeSettled,
    NodesOpened,
    NodeTaken,
    PlacementSource,
    SearchEvent,
    unobserved,
)
from planner.methods.exact.frontier import BoundingStage, Frontier, OpenNode
from planner.methods.exact.incumbent import IncumbentRecord
from planner.methods.exact.incumbents.first_placements import first_placements
from planner.methods.exact.incumbents.repair import repaired
from planner.methods.exact.incumbents.rounding import rounded
from planner.methods.exact.program.linear_model import INFINITE, Floats, Solution
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.search_budget import SearchBudget
from planner.methods.exact.settings import DEFAULT_SETTINGS, IMPOSSIBLE_S, ExactSettings
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.mesh_lower_bounds import limit_listed_meshes
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.groupings import groupings

Children = tuple[OpenNode, ...]
"""What is left of a node after a stage: itself at another stage, or its parts. Empty if it is closed."""


@dataclass(slots=True)
class _QuickEnd:
    """The end of a search that only looks for an incumbent: after some programs, or after models without progress."""

    programs_left: int
    patience: int
    """Most models in a row without a better placement."""
    value: float
    """Objective value of the incumbent when the last node was taken."""
    waited: int = 0

    def allows(self, node: OpenNode, value: float) -> bool:
        """Return whether this node may still be worked on; `value` is the incumbent's."""
        if self.programs_left == 0:
            return False
        self.programs_left -= node.stage is BoundingStage.PROGRAM
        is_model = node.stage is not BoundingStage.MESH_LIST
        self.waited = self.waited + is_model if value == self.value else 0
        self.value = value
        return self.waited <= self.patience


@dataclass(slots=True)
class Search:
    """The search of one problem.

    `gap` is the relative gap to prove, `budget_s` the seconds that the search may take on the clock `now_s`. `report`
    gets each incumbent, and `observe` each action. `start` are placements that are known already, and `opening` is
    called once for more of them.
    """

    cost_tables: CostTables
    gap: float
    budget_s: float
    now_s: Callable[[], float]
    report: Callable[[Incumbent], None]
    should_stop: Callable[[], bool]
    seed: int = 0
    start: tuple[Placement, ...] = ()
    opening: Callable[[], tuple[Placement, ...]] = tuple
    settings: ExactSettings = DEFAULT_SETTINGS
    observe: Callable[[SearchEvent], None] = unobserved
    _budget: SearchBudget = field(init=False)
    _incumbent: IncumbentRecord = field(init=False)
    _rule: BranchingRule = field(init=False)
    _frontier: Frontier = field(init=False, default_factory=Frontier)
    _longest_s: float = field(init=False)
    """Longest step that is looked for."""
    _data: ProblemArrays = field(init=False)
    """Candidates that are searched now."""
    _repaired: set[Placement] = field(init=False, default_factory=set)
    """Placements that were already repaired (`incumbents.repair`)."""

    def __post_init__(self) -> None:
        budget = SearchBudget(
            budget_s=self.budget_s, now_s=self.now_s, should_stop=self.should_stop, began_s=self.now_s()
        )
        # A gap of 0 would never be reached because of rounding.
        gap = max(self.gap, BOUND_TOLERANCE)
        self._budget = budget
        self._incumbent = IncumbentRecord(
            cost_tables=self.cost_tables, gap=gap, elapsed_s=lambda: budget.elapsed_s, report=self.report
        )
        self._rule = BranchingRule(gap=gap)
        self._longest_s = self.settings.max_step_s
        self._data = ProblemArrays(self.cost_tables, INFINITE, 1, self.settings)

    def run(self) -> Outcome:
        """Search until the gap is proved, the budget is spent or the caller stops, and return the outcome."""
        problem = self.cost_tables.problem
        self._offer(self.start, PlacementSource.KNOWN)
        if not problem.asks_for_speed_alone:
            self._make_first_placements()
        self._offer(self.opening(), PlacementSource.KNOWN)
        self._make_first_placements_if_none()
        if problem.limits.max_train_blocks > 1 and not self._budget.is_over:
            # Meshes of two pools are listed up to the step that is already reached, so a good one makes the list short.
            # For least dollars the limit is the deadline, but an incumbent closes groupings before they are listed.
            if len(self._data.classes) > self.settings.one_pool_min_classes and not self._data.pays_for_few:
                self._explore_meshes_of_one_pool()
            self._list_candidates(num_blocks=2)
            self._make_first_placements_if_none()
        self._explore()
        if self._incumbent.best is None and problem.goal.max_step_s is None and not self._budget.is_over:
            self._longest_s = IMPOSSIBLE_S
            self._list_candidates(self._data.num_blocks)
            self._make_first_placements()
            self._explore()
        return self._outcome()

    def _list_candidates(self, num_blocks: int) -> None:
        """Start over with meshes of at most so many pools, and no slower than what is already reached."""
        most_s = longest_step_s(self._incumbent, self._longest_s)
        self._data = ProblemArrays(self.cost_tables, most_s, num_blocks, self.settings)

    # --- the loop

    def _explore(self, end: _QuickEnd | None = None) -> None:
        """Work on nodes, least bound first, until none is below the target; with `end` nothing is proved."""
        bounds = NodeBounds(
            data=self._data,
            incumbent=self._incumbent,
            budget=self._budget,
            longest_s=self._longest_s,
            seed=self.seed,
        )
        self._frontier.is_complete = self._open_nodes(bounds) and end is None
        while self._frontier.num_open and not self._budget.is_over:
            node = self._frontier.take(self._incumbent.target)
            if node is None or (end is not None and not end.allows(node, self._incumbent.value)):
                return
            self.observe(NodeTaken(node=node))
            children = self._frontier.settle(self._work_on(node, bounds))
            self.observe(NodeSettled(node=node, children=children))

    def _explore_meshes_of_one_pool(self) -> None:
        """Search the part of the plan space whose meshes are quick to list, only for an incumbent."""
        self._list_candidates(num_blocks=1)
        settings = self.settings
        self._explore(_QuickEnd(settings.one_pool_programs, settings.one_pool_patience, self._incumbent.value))
        self._frontier.clear()

    def _open_nodes(self, bounds: NodeBounds) -> bool:
        """Open a node for each grouping and trainer's region; return False if time ended before all were open."""
        nodes, is_whole = [], True
        for grouping in groupings(self.cost_tables.problem):
            if self._budget.is_over and self._incumbent.best is not None:
                is_whole = False
                break
            for trainer_region in range(len(self._data.regions)):
                subproblem = Subproblem(grouping=grouping, trainer_region=trainer_region)
                bound = bounds.without_model(subproblem, is_listed=False)
                if bound < INFINITE:
                    node = OpenNode(subproblem=subproblem, bound=bound, stage=BoundingStage.MESH_LIST)
                    nodes.append(self._frontier.add(node))
        known = self._incumbent
        if is_whole and self._data.max_s < INFINITE:
            limit_listed_meshes(self._data, (node.subproblem for node in self._frontier.below(known.target)))
        self.observe(
            NodesOpened(data=self._data, nodes=tuple(nodes), value=known.value, gap=known.gap, target=known.target)
        )
        return is_whole

    def _work_on(self, node: OpenNode, bounds: NodeBounds) -> Children:
        """Do what the stage of a node says, and return what is left of it."""
        if node.stage is BoundingStage.MESH_LIST:
            bound = max(node.bound, bounds.without_model(node.subproblem, is_listed=True))
            return (replace(node, bound=bound, stage=BoundingStage.RELAXATION),) if bound < INFINITE else ()
        built = bounds.model(node)
        if built is None:
            return self._closed(INFINITE)
        solution = bounds.solve(node, built)
        bound = bounds.in_units(built, solution.bound)
        self.observe(ModelSolved(relaxation=built, solution=solution, bound=bound))
        if solution.is_infeasible:
            return self._closed(INFINITE)
        bound = max(node.bound, bound)
        if node.stage is BoundingStage.RELAXATION:
            return self._after_relaxation(node, built, solution.values, bound)
        return self._after_program(node, built, solution, bound, bounds.tolerance(node))

    def _after_relaxation(self, node: OpenNode, built: Relaxation, values: Floats | None, bound: float) -> Children:
        """Round the point of a linear relaxation, then close the node, divide it, or queue its integer program."""
        # Only relaxations before the first program are rounded; with its cuts a point moves little.
        if values is not None and node.num_programs == 0 and bound < self._incumbent.target:
            self._round(built, values)
        target = self._incumbent.target
        if bound >= target:
            return self._closed(bound)
        if values is not None and target < INFINITE:
            gained, missing = bound - node.bound, target - node.bound
            if parts := self._rule.after_relaxation(built, values, gained=gained, missing=missing):
                return tuple(node.child(part, bound, BoundingStage.RELAXATION) for part in parts)
        return (node.child(node.subproblem, bound, BoundingStage.PROGRAM),)

    def _after_program(
        self, node: OpenNode, built: Relaxation, solution: Solution, bound: float, tolerance: float
    ) -> Children:
        """Evaluate the optimum of an integer program, then close the node, or cut or divide what is left of it."""
        is_last = node.num_programs >= self.settings.max_programs
        after = replace(node, num_programs=node.num_programs + 1)
        if solution.values is None:
            if solution.is_complete:
                return self._closed(bound)
            if is_last or self._budget.is_over:
                return self._given_up(bound)
            # The solver found nothing in its time, so it gets another slice.
            return (after.child(node.subproblem, bound, BoundingStage.PROGRAM),)
        # The program's optimum is a placement: the oracle decides what it is worth.
        self._offer((built.placement(solution.values),), PlacementSource.PROGRAM)
        if bound >= self._incumbent.target:
            return self._closed(bound)
        if is_last:
            return self._given_up(bound)
        # The program was too optimistic: tangents at its rates cut its optimum off, and the rule may divide.
        after = replace(after, cuts=(*node.cuts, *built.rates(solution.values)))
        if parts := self._rule.after_program(built, solution.values, bound=bound, tolerance=tolerance):
            return tuple(after.child(part, bound, BoundingStage.RELAXATION) for part in parts)
        return (after.child(node.subproblem, bound, BoundingStage.PROGRAM),)

    def _closed(self, bound: float) -> Children:
        """Close the node at hand: nothing in it is below `bound`, nor below the target of this moment."""
        target = self._incumbent.target
        self._frontier.close(max(bound, target) if bound < INFINITE else target)
        return ()

    def _given_up(self, bound: float) -> Children:
        """Close the node at hand although something in it may be below the target; the proved bound says so."""
        self._frontier.close(bound)
        return ()

    # --- placements

    def _make_first_placements_if_none(self) -> None:
        """Make first placements if there is no incumbent, unless relaxations are rounded well without one."""
        if self._incumbent.best is None and not self._data.pays_for_few:
            self._make_first_placements()

    def _make_first_placements(self) -> None:
        """Evaluate greedy placements, for a short time once one of them is valid."""
        settings = self.settings
        until_s = self.now_s() + min(settings.first_placements_s, settings.first_placements_share * self.budget_s)
        for placement in first_placements(self._data, groupings(self.cost_tables.problem)):
            self._offer((placement,), PlacementSource.GREEDY)
            is_enough = self._incumbent.best is not None or self._data.pays_for_few
            if is_enough and self._budget.is_past(until_s):
                return

    def _round(self, built: Relaxation, values: Floats) -> None:
        """Round a relaxed point to a placement and evaluate it; for least dollars, repair it first."""
        placement = rounded(built, values)
        if placement is not None and self._data.minimises_usd and placement not in self._repaired:
            self._repaired.add(placement)
            placement = repaired(self.cost_tables, placement, self._incumbent.value, self.settings)
        if placement is not None:
            self._offer((placement,), PlacementSource.ROUNDED)

    def _offer(self, placements: Iterable[Placement], source: PlacementSource) -> None:
        """Evaluate placements; a better one becomes the incumbent."""
        for placement in placements:
            proved = self._frontier.bound
            new = self._incumbent.offer(placement, proved if proved < INFINITE else 0.0)
            if new is not None:
                self.observe(IncumbentImproved(incumbent=new, source=source))

    def _outcome(self) -> Outcome:
        """Return the result with the bound that is proved."""
        bound = self._frontier.bound
        if self._incumbent.best is None and bound == INFINITE and not self._budget.is_over:
            return Infeasible(conflict=(), is_minimal=False, method="exact")
        return self._incumbent.outcome(bound)
