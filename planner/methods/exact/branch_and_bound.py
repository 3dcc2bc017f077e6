"""Branch and bound, best first, over subproblems of the plan space.

A subproblem (`remaining_candidates.Subproblem`) starts as a grouping and a trainer's region. Its lower bound first
comes from what its slowest group needs, then from the linear relaxation, then from the integer program. The oracle
evaluates the program's optimum. If the oracle's value is higher than the program's, the cause is something that the
program relaxes: tangents, windows, the critic's region, regions that share the uplink, or dollars. The subproblem is
cut or divided there (`branching`).

The search ends when no bound is below `(1 - gap) x incumbent`. A subproblem is closed when nothing in it can be below
that. Nothing counts as proved until every subproblem of the whole plan space, with meshes of two pools, is open.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BOUND_TOLERANCE, BudgetExhausted, Found, Incumbent, Infeasible, Outcome, credible
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.branching import arrival_underestimate, critic_split, level_split, others_split
from planner.methods.exact.incumbents.greedy import greedy
from planner.methods.exact.incumbents.repair import repaired
from planner.methods.exact.incumbents.rounding import rounded
from planner.methods.exact.program.linear_model import INFINITE, Floats, Solution
from planner.methods.exact.program.ortools_solver import solve_relaxed, solve_whole
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.mesh_lower_bounds import limit_listed_meshes, mesh_lower_bounds
from planner.methods.exact.subproblem.remaining_candidates import GroupLowerBounds, Subproblem, least_alone
from planner.methods.exact.subproblem.rent_lower_bounds import least_usd
from planner.problem.device_classes import MANY_CLASSES
from planner.problem.goal import IMPOSSIBLE_STEP_S, Objective
from planner.problem.groupings import Grouping, groupings
from planner.problem.workload import TRAINING, Task

_SLICE_S = 20.0
"""Seconds of one integer program before the caller is asked again whether to go on. Chosen by hand."""
_MOST_S = 1e5
"""Longest step in seconds that the search looks for first. If it finds nothing, it looks for steps up to
`IMPOSSIBLE_STEP_S`; longer ones count as none. Chosen by hand."""
_DIVE_S, _DIVE_SHARE = 0.15, 0.1
"""Limits of the time for first placements: seconds, and share of the budget. Chosen by hand."""
_HOMES = 3
"""Trainer's regions for which first placements are made, per grouping. Chosen by hand."""
_SIMPLE = 12
"""Groupings with about three groups for which first placements are made. Chosen by hand."""
_LOOSE = 0.05
"""Share of a step's samples that a linear relaxation may wrongly count as made before its window is divided. Chosen by
hand."""
_NARROW = 1e-4
"""Relative length below which an interval of windows is not divided; a quarter of the gap if that is less."""
_LATE = 0.01
"""Share of the step limit by which versions may be later than counted before receivers are divided. Chosen by hand."""
_MOST_CUTS = 40
"""Most rounds of cuts of one subproblem. What is open then stays open, and the bound says so. Chosen by hand."""
_FINEST = 6
"""Round after which the tolerance of integer programs no longer shrinks. Chosen by hand."""
_FIRST_PROGRAMS, _PATIENCE = 1, 20
"""On fleets with more than `MANY_CLASSES` device classes, meshes of one pool are searched first. That search ends
after `_FIRST_PROGRAMS` integer programs, or after `_PATIENCE` linear relaxations without improvement. It is left out
for least dollars with few groupings. Chosen by hand."""
_GAIN = 0.25
"""Share of the missing bound that dividing a window must bring; with less, the integer program comes first. Chosen by
hand.

It is not used for least dollars: many windows cost nearly the same, and one integer program takes as long as thirty
relaxations.
"""


@dataclass(order=True, slots=True)
class _Part:
    """An open subproblem in the queue, ordered by its bound."""

    bound: float
    """Lower bound on the objective."""
    order: int
    """Number of its creation; breaks ties."""
    node: Subproblem = field(compare=False)
    is_open: bool = field(compare=False)
    """Whether its linear relaxation is next; otherwise its integer program is."""
    is_listed: bool = field(compare=False, default=True)
    """Whether the meshes of its groups are listed; until then `bound` comes from `mesh_lower_bounds`."""
    cuts: tuple[tuple[Task, float], ...] = field(compare=False, default=())
    """Rates at which the model gets further tangents."""
    depth: int = field(compare=False, default=0)
    """Integer programs that were solved for it."""


@dataclass(slots=True)
class Search:
    """The search of one problem. `best` is valid at any moment.

    `start` are placements that are known already. `opening` is called once for more of them.
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
    best: Incumbent | None = field(init=False, default=None)
    trace: list[Incumbent] = field(init=False, default_factory=list)
    num_evaluations: int = field(init=False, default=0)
    _began_s: float = field(init=False)
    _parts: list[_Part] = field(init=False, default_factory=list)
    _order: int = field(init=False, default=0)
    _data: ProblemArrays = field(init=False)
    _current: float = field(init=False, default=INFINITE)
    """Bound of the subproblem that is being worked on."""
    _is_partial: bool = field(init=False, default=True)
    """Whether some placements are in no open subproblem; then nothing is proved."""
    _longest_s: float = field(init=False, default=_MOST_S)
    """Longest step that is looked for."""
    _closed: float = field(init=False, default=INFINITE)
    """Least bound of the subproblems that are closed."""
    _repaired: set[Placement] = field(init=False, default_factory=set)
    """Placements that were already repaired (`incumbents.repair`)."""

    def __post_init__(self) -> None:
        self._began_s = self.now_s()
        # A gap of 0 would never be reached because of rounding.
        self.gap = max(self.gap, BOUND_TOLERANCE)

    def run(self) -> Outcome:
        """Search until the gap is proved, the budget is spent or the caller stops, and return the outcome."""
        problem = self.cost_tables.problem
        for placement in self.start:
            self.evaluate(placement)
        self._data = ProblemArrays(self.cost_tables, INFINITE, 1)
        every = groupings(problem)
        if not problem.asks_for_speed_alone:
            self._dive(every)
        for placement in self.opening():
            self.evaluate(placement)
        if self.best is None and not self._data.pays_for_few:
            self._dive(every)
        if problem.limits.max_train_blocks > 1 and not self._is_over():
            # Meshes of two pools are listed up to the step that is already reached, so a good one makes the list short.
            # For least dollars the limit is the deadline, but an incumbent closes groupings before they are listed.
            if len(self._data.classes) > MANY_CLASSES and not self._data.pays_for_few:
                self._data = ProblemArrays(self.cost_tables, self._most_s(), 1)
                self._explore(every, _FIRST_PROGRAMS)
                self._parts, self._closed = [], INFINITE
            self._data = ProblemArrays(self.cost_tables, self._most_s(), 2)
            if self.best is None and not self._data.pays_for_few:
                self._dive(every)
        self._explore(every, None)
        if self.best is None and problem.goal.max_step_s is None and not self._is_over():
            self._longest_s = IMPOSSIBLE_STEP_S
            self._data = ProblemArrays(self.cost_tables, self._most_s(), self._data.num_blocks)
            self._dive(every)
            self._explore(every, None)
        return self._outcome()

    def _explore(self, every: tuple[Grouping, ...], most_programs: int | None) -> None:
        """Work on subproblems, least bound first, until none is left or `most_programs` integer programs are solved."""
        self._is_partial = not self._open(every) or most_programs is not None
        value, waited = self._value(), 0
        while self._parts and not self._is_over() and most_programs != 0:
            part = heapq.heappop(self._parts)
            if part.bound >= self._target():
                heapq.heappush(self._parts, part)
                break
            # The search with meshes of one pool ends after some integer programs or rounds without improvement.
            if most_programs is not None:
                most_programs -= not part.is_open
                waited = waited + part.is_listed if value == self._value() else 0
                value = self._value()
                if waited > _PATIENCE:
                    break
            self._current = part.bound
            self._step(part)
            self._current = INFINITE

    # --- the incumbent

    def evaluate(self, placement: Placement) -> Evaluation | None:
        """Return the oracle's evaluation, or None if the placement is invalid.

        A better placement becomes the incumbent.
        """
        self.num_evaluations += 1
        evaluation = evaluate(self.cost_tables, placement)
        if not isinstance(evaluation, Evaluation):
            return None
        goal = self.cost_tables.problem.goal
        new = Incumbent(
            placement=placement, evaluation=evaluation, bound=self._proved(), elapsed_s=self.now_s() - self._began_s
        )
        if self.best is None or new.value(goal) < self.best.value(goal) * (1 - 1e-12):
            self._tell(new)
        return evaluation

    def _tell(self, new: Incumbent) -> None:
        """Record and report a new incumbent."""
        self.best = new
        self.trace.append(new)
        self.report(new)

    def _value(self) -> float:
        """Return the incumbent's objective value, inf without one."""
        return INFINITE if self.best is None else self.best.value(self.cost_tables.problem.goal)

    def _target(self) -> float:
        """Return the bound from which subproblems are of no interest: (1 - gap) x incumbent."""
        return INFINITE if self.best is None else self._value() * (1 - self.gap)

    def _proved(self) -> float:
        """Return the bound that is proved at this moment; 0 if none is."""
        if self._is_partial:
            return 0.0
        least = min((part.bound for part in self._parts[:1]), default=INFINITE)
        known = min(least, self._current, self._closed)
        return known if known < INFINITE else 0.0

    @property
    def _pays(self) -> bool:
        """Whether the objective is least dollars."""
        return self.cost_tables.problem.goal.objective is Objective.COST_AT_THROUGHPUT

    def _most_s(self) -> float:
        """Return the upper bound on the step time of any placement of interest."""
        goal = self.cost_tables.problem.goal
        if self._pays:
            return goal.planned_step_s or self._longest_s
        most_s = min(self._value(), goal.planned_step_s or INFINITE)
        return most_s if most_s < INFINITE else self._longest_s

    def _is_over(self) -> bool:
        return self.should_stop() or self.now_s() - self._began_s >= self.budget_s

    def _left_s(self) -> float:
        return max(0.0, self.budget_s - (self.now_s() - self._began_s))

    # --- parts

    def _dive(self, every: tuple[Grouping, ...]) -> None:
        """Make first placements with `greedy`, so that the search has an incumbent to improve on."""
        until_s = self.now_s() + min(_DIVE_S, _DIVE_SHARE * self.budget_s)
        simple = sorted(every, key=lambda each: (abs(len(each) - 3), each))
        for grouping in dict.fromkeys((every[-1], every[0], *simple[:_SIMPLE])):
            actor = next(tasks for tasks in grouping if Task.ACTOR_TRAINING in tasks)
            block = self._data.meshes(actor)
            homes = sorted({int(h) for h in block.home}, key=lambda h: float(block.busy_s[block.home == h].min()))
            for home in homes[:_HOMES]:
                for placement in greedy(self._data, grouping, home):
                    self.evaluate(placement)
                    # For least dollars relaxations are rounded well without an incumbent, too.
                    is_enough = self.best is not None or self._data.pays_for_few
                    if is_enough and (self.now_s() >= until_s or self.should_stop()):
                        return

    def _open(self, every: tuple[Grouping, ...]) -> bool:
        """Open a subproblem for each grouping and trainer's region; return False if time ended before all were open."""
        for grouping in every:
            if self._is_over() and self.best is not None:
                return False
            for home in range(len(self._data.regions)):
                bound = self._cheap(grouping, home, is_listed=False)
                if bound < INFINITE:
                    self._order += 1
                    node = Subproblem(grouping=grouping, home=home)
                    part = _Part(bound=bound, order=self._order, node=node, is_open=True, is_listed=False)
                    heapq.heappush(self._parts, part)
        if self._data.max_s < INFINITE:
            limit_listed_meshes(self._data, (part.node for part in self._parts if part.bound < self._target()))
        return True

    def _push(self, node: Subproblem, bound: float, *, is_open: bool, like: _Part | None = None) -> None:
        """Queue a subproblem; `like` gives its other fields."""
        self._order += 1
        part = _Part(bound=bound, order=self._order, node=node, is_open=is_open)
        if like is not None:
            part = replace(like, bound=bound, order=self._order, node=node, is_open=is_open)
        heapq.heappush(self._parts, part)

    def _cheap(self, grouping: Grouping, home: int, *, is_listed: bool) -> float:
        """Return a lower bound on a grouping and region, with each group alone on the whole fleet."""
        least = GroupLowerBounds()
        for tasks in grouping:
            is_mesh = any(task in TRAINING for task in tasks)
            of = mesh_lower_bounds if is_mesh and not is_listed else least_alone
            least = least.with_other(of(self._data, tasks, home))
        # Seconds of the slowest group and of the path; for least dollars the rent within the deadline.
        bound = max(least.busy_s, least.path_s() / self._data.ends)
        if not self._pays:
            return bound
        most_s = self._most_s()
        if bound > most_s * (1 + 1e-9):
            return INFINITE
        return least_usd(self._data, grouping, home, least, most_s, is_listed=is_listed)

    def _relaxation(self, part: _Part) -> Relaxation:
        """Build the model of a subproblem."""
        most_s = self._most_s() if self._pays else min(self._most_s(), self._target())
        return Relaxation(
            self._data,
            part.node,
            most_s,
            self._target() if self._pays else INFINITE,
            part.cuts,
            is_fine=part.depth > 0 and self.gap < 1e-3,
        )

    def _step(self, part: _Part) -> None:
        """Work on one subproblem: list its meshes, solve its linear relaxation, or solve its integer program."""
        if not part.is_listed:
            bound = max(part.bound, self._cheap(part.node.grouping, part.node.home, is_listed=True))
            if bound < INFINITE:
                heapq.heappush(self._parts, replace(part, bound=bound, is_listed=True))
            return
        built = self._relaxation(part)
        if built.is_empty:
            self._close(INFINITE)
            return
        found = self._solved(built, part)
        if found.is_infeasible:
            self._close(INFINITE)
            return
        bound = max(part.bound, self._in_units(built, found.bound))
        # The first relaxation of a subproblem is also rounded to a placement.
        if part.is_open and found.values is not None and part.depth == 0 and bound < self._target():
            self._round(built, found.values)
        if not part.is_open:
            self._branch(part, built, found, bound)
        elif bound >= self._target():
            self._close(bound)
        elif not self._divide(part, built, found, bound):
            self._push(part.node, bound, is_open=False, like=part)

    def _round(self, built: Relaxation, values: Floats) -> None:
        """Round a relaxed point to a placement and evaluate it; for least dollars, repair it first."""
        placement = rounded(built, values)
        if placement is not None and self._pays and placement not in self._repaired:
            self._repaired.add(placement)
            placement = repaired(self.cost_tables, placement, self._value())
        if placement is not None:
            self.evaluate(placement)

    def _divide(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> bool:
        """Divide the subproblem where its relaxed point is too optimistic.

        Return False if the integer program is next.
        """
        if self.best is None or found.values is None:
            return False
        # In this order: receivers of versions, generation's window, other tasks of its group, distant scoring.
        if arrival_underestimate(built, found.values) > _LATE and self._split_receivers(part, built, found, bound):
            return True
        if built.looseness(found.values) > _LOOSE:
            lacks = 0.0 if self._pays else self._target() - part.bound
            if part.node.window_s != (0.0, INFINITE) and bound - part.bound < _GAIN * lacks:
                return False
            if self._split(part, built, found, bound):
                return True
        if self._split_others(part, built, found, bound, _LOOSE):
            return True
        far = level_split(built, found.values)
        for node in part.node.by_level(*far) if far else ():
            self._push(node, bound, is_open=True, like=part)
        return far is not None

    def _split_others(self, part: _Part, built: Relaxation, found: Solution, bound: float, loose: float) -> bool:
        """Divide the range of what other tasks take of generation's group; False if that does not help."""
        assert found.values is not None
        middle = others_split(built, found.values, loose)
        if middle is None:
            return False
        low, high = part.node.others_s
        for ends in ((low, middle), (middle, high)):
            self._push(replace(part.node, others_s=ends), bound, is_open=True, like=part)
        return True

    def _split_receivers(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> bool:
        """Divide into fewer receiving regions than at the point, and at least as many.

        The result is False if that changes nothing.
        """
        assert found.values is not None
        num, (few, many) = built.receivers(found.values), part.node.receivers
        if num <= max(few, 1):
            return False
        for ends in ((few, num - 1), (num, many)):
            self._push(replace(part.node, receivers=ends), bound, is_open=True, like=part)
        return True

    def _split(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> bool:
        """Divide generation's window; False if its range is already narrow."""
        assert found.values is not None
        at = built.window_at(found.values)
        if at is None:
            return False
        low, high = built.window_range_s
        if high - low <= min(_NARROW, self.gap / 4) * high:
            return False
        # Divide at the point's window, but not close to an end.
        middle = min(max(at, low + 0.2 * (high - low)), high - 0.2 * (high - low))
        for ends in ((low, middle), (middle, high)):
            self._push(replace(part.node, window_s=ends), bound, is_open=True, like=part)
        return True

    def _solved(self, built: Relaxation, part: _Part) -> Solution:
        """Solve the linear relaxation or the integer program of a subproblem."""
        if part.is_open:
            return solve_relaxed(built.model)
        limit = min(max(self._left_s(), 0.05), _SLICE_S)
        return solve_whole(built.model, limit_s=limit, gap=self._tolerance(part) * 2, seed=self.seed)

    def _tolerance(self, part: _Part) -> float:
        """Return the relative gap that an integer program may leave open.

        It shrinks with each program of the subproblem.

        It has to, because a few samples are many seconds where a table is flat.
        """
        return self.gap / 8 / 4.0 ** min(part.depth, _FINEST)

    def _in_units(self, built: Relaxation, bound: float) -> float:
        """Return a bound of the model in seconds, or in dollars per hour."""
        return bound if self._pays else bound * built.scale_s

    def _close(self, bound: float) -> None:
        """Close a subproblem: nothing in it is below `bound`, nor below the target of this moment."""
        self._closed = min(self._closed, max(bound, self._target()) if bound < INFINITE else self._target())

    def _branch(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> None:
        """Evaluate the optimum of an integer program, then close the subproblem or queue what is left of it."""
        if found.values is None:
            if not found.is_complete and not self._is_over() and part.depth < _MOST_CUTS:
                self._push(part.node, bound, is_open=False, like=replace(part, depth=part.depth + 1))
            elif not found.is_complete:
                self._closed = min(self._closed, bound)
            else:
                self._close(bound)
            return
        # The program's optimum is a placement: the oracle decides what it is worth.
        placement = built.placement(found.values)
        self.evaluate(placement)
        if bound >= self._target():
            self._close(bound)
            return
        self._push_rest(part, built, found, bound)

    def _push_rest(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> None:
        """Queue what is left of a subproblem, cut or divided where its program was too optimistic."""
        assert found.values is not None
        if part.depth >= _MOST_CUTS:
            self._closed = min(self._closed, bound)
            return
        cuts = (*part.cuts, *built.rates(found.values))
        after = replace(part, cuts=cuts, depth=part.depth + 1)
        tolerance = self._tolerance(part)
        if nodes := critic_split(built, found.values):
            for node in nodes:
                self._push(node, bound, is_open=True, like=after)
            return
        if arrival_underestimate(built, found.values) > tolerance and self._split_receivers(after, built, found, bound):
            return
        if built.looseness(found.values) > tolerance and self._split(after, built, found, bound):
            return
        if self._split_others(after, built, found, bound, tolerance):
            return
        if self._data.ways(part.node.home).up_s > 0 and self._split_receivers(after, built, found, bound):
            return
        # With a budget, the bilinear relation between step time and rent is relaxed: divide the range of steps.
        low, high = part.node.step_s[0], min(part.node.step_s[1], built.most_s)
        if self.cost_tables.problem.goal.max_usd_per_hour is not None and high - low > 1e-4 * high:
            middle = min(max(bound, low + 0.2 * (high - low)), high - 0.2 * (high - low))
            for ends in ((low, middle), (middle, high)):
                self._push(replace(part.node, step_s=ends), bound, is_open=True, like=after)
            return
        self._push(part.node, bound, is_open=False, like=after)

    # --- the end

    def _outcome(self) -> Outcome:
        """Return the result with the bound that is proved."""
        bound = 0.0 if self._is_partial else min([part.bound for part in self._parts] + [self._closed])
        if self.best is None:
            if self._parts or self._is_over() or self._is_partial or self._closed < INFINITE:
                return BudgetExhausted(
                    best=None,
                    bound=bound if bound < INFINITE else None,
                    trace=tuple(self.trace),
                    num_evaluations=self.num_evaluations,
                    method="exact",
                )
            return Infeasible(facts=(), is_minimal=False, method="exact")
        value = self._value()
        # A bound above a known value is an error of ours; then nothing counts as proved.
        bound = credible(bound, value) or 0.0
        final = replace(self.best, bound=bound, elapsed_s=self.now_s() - self._began_s)
        self.trace.append(final)
        self.report(final)
        if bound < self._target():
            return BudgetExhausted(
                best=final, bound=bound, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method="exact"
            )
        return Found(best=final, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method="exact")
