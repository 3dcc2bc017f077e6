"""The search of one problem by the exact method: which candidates are searched, in what order, and its outcome.

Branch and bound (`planner.methods.exact.branch_and_bound`) needs a good incumbent, since it closes what cannot beat it
and lists only candidates that are fast enough. So the search goes on in steps, each with the incumbent of those before:

1. Placements that the caller knows, and greedy ones.
2. On fleets with many device classes: meshes of one pool, only for an incumbent.
3. All meshes, with up to two pools. Only here is anything proved.
4. If there is none that takes at most `ExactSettings.max_step_s`: the same without that limit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.answer.outcome import BOUND_TOLERANCE, Incumbent, Infeasible, Outcome
from planner.answer.placement import Placement
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.bounding import NodeBounds, longest_step_s
from planner.methods.exact.branch_and_bound import BranchAndBound
from planner.methods.exact.branching import BranchingRule
from planner.methods.exact.events import PlacementSource, SearchEvent, unobserved
from planner.methods.exact.incumbent import IncumbentRecord
from planner.methods.exact.incumbents.first_placements import first_placements
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.search_budget import EarlyEnd, SearchBudget
from planner.methods.exact.settings import DEFAULT_SETTINGS, ExactSettings
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.problem.goal import IMPOSSIBLE_STEP_S
from planner.problem.groupings import groupings


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
    _tree: BranchAndBound = field(init=False)
    _longest_s: float = field(init=False)
    """Longest step that is looked for."""
    _data: ProblemArrays = field(init=False)
    """Candidates that are searched now."""

    def __post_init__(self) -> None:
        # A gap of 0 would never be reached because of rounding.
        gap = max(self.gap, BOUND_TOLERANCE)
        budget = SearchBudget(
            budget_s=self.budget_s, now_s=self.now_s, should_stop=self.should_stop, began_s=self.now_s()
        )
        self._budget = budget
        self._incumbent = IncumbentRecord(
            cost_tables=self.cost_tables, gap=gap, elapsed_s=lambda: budget.elapsed_s, report=self.report
        )
        self._tree = BranchAndBound(
            incumbent=self._incumbent, budget=budget, rule=BranchingRule(gap=gap), observe=self.observe
        )
        self._longest_s = self.settings.max_step_s
        self._data = ProblemArrays(self.cost_tables, INFINITE, 1, self.settings)

    def run(self) -> Outcome:
        """Search until the gap is proved, the budget is spent or the caller stops, and return the outcome."""
        problem = self.cost_tables.problem
        self._tree.offer(self.start, PlacementSource.KNOWN)
        if not problem.asks_for_speed_alone:
            self._make_first_placements()
        self._tree.offer(self.opening(), PlacementSource.KNOWN)
        self._make_first_placements_if_none()
        if problem.limits.max_train_blocks > 1 and not self._budget.is_over:
            # Meshes of two pools are listed up to the step that is already reached, so a good one makes the list short.
            # For least dollars the limit is the deadline, but an incumbent closes groupings before they are listed.
            if len(self._data.classes) > self.settings.one_pool_min_classes and not self._data.pays_for_few:
                self._explore_meshes_of_one_pool()
            self._list_candidates(num_blocks=2)
            self._make_first_placements_if_none()
        self._tree.explore(self._bounds())
        if self._incumbent.best is None and problem.goal.max_step_s is None and not self._budget.is_over:
            self._longest_s = IMPOSSIBLE_STEP_S
            self._list_candidates(self._data.num_blocks)
            self._make_first_placements()
            self._tree.explore(self._bounds())
        return self._outcome()

    def _list_candidates(self, num_blocks: int) -> None:
        """Start over with meshes of at most so many pools, and no slower than what is already reached."""
        most_s = longest_step_s(self._incumbent, self._longest_s)
        self._data = ProblemArrays(self.cost_tables, most_s, num_blocks, self.settings)

    def _bounds(self) -> NodeBounds:
        """Return the bounds of nodes with the present candidates."""
        return NodeBounds(
            data=self._data,
            incumbent=self._incumbent,
            budget=self._budget,
            longest_s=self._longest_s,
            seed=self.seed,
        )

    def _explore_meshes_of_one_pool(self) -> None:
        """Search the part of the plan space whose meshes are quick to list, only for an incumbent."""
        self._list_candidates(num_blocks=1)
        settings = self.settings
        end = EarlyEnd(
            programs_left=settings.one_pool_programs,
            patience=settings.one_pool_patience,
            value=self._incumbent.value,
        )
        self._tree.explore(self._bounds(), end)
        self._tree.frontier.clear()

    def _make_first_placements_if_none(self) -> None:
        """Make first placements if there is no incumbent, unless relaxations are rounded well without one."""
        if self._incumbent.best is None and not self._data.pays_for_few:
            self._make_first_placements()

    def _make_first_placements(self) -> None:
        """Evaluate greedy placements, for a short time once one of them is valid."""
        settings = self.settings
        until_s = self.now_s() + min(settings.first_placements_s, settings.first_placements_share * self.budget_s)
        for placement in first_placements(self._data, groupings(self.cost_tables.problem)):
            self._tree.offer((placement,), PlacementSource.GREEDY)
            is_enough = self._incumbent.best is not None or self._data.pays_for_few
            if is_enough and self._budget.is_past(until_s):
                return

    def _outcome(self) -> Outcome:
        """Return the result with the bound that is proved."""
        bound = self._tree.frontier.bound
        if self._incumbent.best is None and bound == INFINITE and not self._budget.is_over:
            return Infeasible(facts=(), is_minimal=False, method="exact")
        return self._incumbent.outcome(bound)
