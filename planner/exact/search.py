"""Best first over parts of the plan space: each part has a bound, the one with the least is looked into next.

A part (`choices.Node`) is a grouping and the trainer's region; its bound comes first from what its slowest group needs
at least, then from the linear relaxation, then from the integer program, whose optimum is judged by the oracle. What
the oracle says above the program's bound comes from what the program relaxes: tangents, how much a window makes, the
critic's region, how many regions share the uplink, money. Then the part is cut or split there. The search ends when no
part's bound is below `(1 - gap) x incumbent`; a part whose program has no point below that is done.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BOUND_TOLERANCE, BudgetExhausted, Found, Incumbent, Infeasible, Outcome, credible
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.exact.blocks import Blocks
from planner.exact.choices import Least, Node, least_alone
from planner.exact.dollars import least_usd
from planner.exact.floors import floor, limit
from planner.exact.greedy import greedy
from planner.exact.linear import INFINITE, Floats, Solution
from planner.exact.mending import mended
from planner.exact.model import Relaxation
from planner.exact.rounding import rounded
from planner.exact.solver import solve_relaxed, solve_whole
from planner.exact.splits import critic_split, late, level_split, others_split
from planner.groupings import Grouping, groupings
from planner.question.goal import Objective
from planner.question.workload import TRAINING, Task

_SLICE_S = 20.0
"""Of one integer program, before the caller is asked again whether to go on."""
_MOST_S, _LONGEST_S = 1e5, 1e9
"""Of a step that is looked for while none is known; if there is none, up to the second one, 31 years."""
_DIVE_S, _DIVE_SHARE = 0.15, 0.1
"""Of the first placements."""
_HOMES = 3
_SIMPLE = 12
_LOOSE = 0.05
"""Part of a step's samples that a program may take for made and that are not, before it is solved in whole numbers."""
_NARROW = 1e-4
"""Windows that differ by less, relative, are the same; a quarter of the gap where that is less."""
_LATE = 0.01
"""Part of the step's limit by which versions may be later than a program takes them for, before it is solved so."""
_MOST_CUTS = 40
"""Of one part; what is then open stays open, and the bound says so."""
_FINEST = 6
_MANY_CLASSES, _FIRST_PROGRAMS, _PATIENCE = 12, 1, 20
"""Of fleets of so many classes meshes of one pool come first: for so many programs, or until so many relaxations find
nothing better. Not for least dollars where groupings are few."""
_GAIN = 0.25
"""Of what a part's bound lacks: if a split window brings less, whole numbers come before another split. Not where
dollars are asked for: many windows cost nearly as much, and whole numbers of one take as long as thirty relaxations."""


@dataclass(order=True, slots=True)
class _Part:
    bound: float
    order: int
    node: Node = field(compare=False)
    is_open: bool = field(compare=False)
    """Whether its linear relaxation is still to be solved."""
    is_listed: bool = field(compare=False, default=True)
    """Whether the meshes of its groups are listed: before, `bound` is of floors."""
    cuts: tuple[tuple[Task, float], ...] = field(compare=False, default=())
    depth: int = field(compare=False, default=0)


@dataclass(slots=True)
class Search:
    """One problem's search; `best` holds at any moment."""

    prices: Prices
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
    _data: Blocks = field(init=False)
    _current: float = field(init=False, default=INFINITE)
    """The bound of the part that is being looked into."""
    _is_partial: bool = field(init=False, default=True)
    """Whether there are placements that no part has: nothing is proved then."""
    _longest_s: float = field(init=False, default=_MOST_S)
    _closed: float = field(init=False, default=INFINITE)
    """The least bound of parts that are done."""
    _mended: set[Placement] = field(init=False, default_factory=set)
    """Placements that relaxations were rounded to, where dollars are asked for."""

    def __post_init__(self) -> None:
        self._began_s = self.now_s()
        # a gap of 0 is one that rounding cannot tell from it
        self.gap = max(self.gap, BOUND_TOLERANCE)

    def run(self) -> Outcome:
        problem = self.prices.problem
        for placement in self.start:
            self.judge(placement)
        self._data = Blocks(self.prices, INFINITE, 1)
        every = groupings(problem)
        if not problem.asks_for_speed_alone:
            self._dive(every)
        for placement in self.opening():
            self.judge(placement)
        if self.best is None and not self._data.pays_for_few:
            self._dive(every)
        if problem.limits.max_train_blocks > 1 and not self._is_over():
            # meshes of two pools are listed up to the step that is already reached: the fewer the better that is
            # (where dollars are asked for that step is the deadline, but what is found closes groupings unlisted)
            if len(self._data.classes) > _MANY_CLASSES and not self._data.pays_for_few:
                self._data = Blocks(self.prices, self._most_s(), 1)
                self._explore(every, _FIRST_PROGRAMS)
                self._parts, self._closed = [], INFINITE
            self._data = Blocks(self.prices, self._most_s(), 2)
            if self.best is None and not self._data.pays_for_few:
                self._dive(every)
        self._explore(every, None)
        if self.best is None and problem.goal.max_step_s is None and not self._is_over():
            self._longest_s = _LONGEST_S
            self._data = Blocks(self.prices, self._most_s(), self._data.num_blocks)
            self._dive(every)
            self._explore(every, None)
        return self._outcome()

    def _explore(self, every: tuple[Grouping, ...], most_programs: int | None) -> None:
        """Until nothing is left to look into, or so many integer programs are solved."""
        self._is_partial = not self._open(every) or most_programs is not None
        value, waited = self._value(), 0
        while self._parts and not self._is_over() and most_programs != 0:
            part = heapq.heappop(self._parts)
            if part.bound >= self._target():
                heapq.heappush(self._parts, part)
                break
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

    def judge(self, placement: Placement) -> Evaluation | None:
        """The oracle's word; a better placement becomes the incumbent."""
        self.num_evaluations += 1
        evaluation = evaluate(self.prices, placement)
        if not isinstance(evaluation, Evaluation):
            return None
        goal = self.prices.problem.goal
        new = Incumbent(
            placement=placement, evaluation=evaluation, bound=self._proved(), elapsed_s=self.now_s() - self._began_s
        )
        if self.best is None or new.value(goal) < self.best.value(goal) * (1 - 1e-12):
            self._tell(new)
        return evaluation

    def _tell(self, new: Incumbent) -> None:
        self.best = new
        self.trace.append(new)
        self.report(new)

    def _value(self) -> float:
        return INFINITE if self.best is None else self.best.value(self.prices.problem.goal)

    def _target(self) -> float:
        """Parts of at least this bound are of no interest."""
        return INFINITE if self.best is None else self._value() * (1 - self.gap)

    def _proved(self) -> float:
        if self._is_partial:
            return 0.0
        least = min((part.bound for part in self._parts[:1]), default=INFINITE)
        known = min(least, self._current, self._closed)
        return known if known < INFINITE else 0.0

    @property
    def _pays(self) -> bool:
        """Whether dollars are what has to be least."""
        return self.prices.problem.goal.objective is Objective.COST_AT_THROUGHPUT

    def _most_s(self) -> float:
        goal = self.prices.problem.goal
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
        """First placements, so that everything else has something to be better than."""
        until_s = self.now_s() + min(_DIVE_S, _DIVE_SHARE * self.budget_s)
        simple = sorted(every, key=lambda each: (abs(len(each) - 3), each))
        for grouping in dict.fromkeys((every[-1], every[0], *simple[:_SIMPLE])):
            actor = next(tasks for tasks in grouping if Task.ACTOR_TRAINING in tasks)
            block = self._data.meshes(actor)
            homes = sorted({int(h) for h in block.home}, key=lambda h: float(block.busy_s[block.home == h].min()))
            for home in homes[:_HOMES]:
                for placement in greedy(self._data, grouping, home):
                    self.judge(placement)
                    # where dollars are asked for, relaxations are rounded to something without an incumbent, too
                    is_enough = self.best is not None or self._data.pays_for_few
                    if is_enough and (self.now_s() >= until_s or self.should_stop()):
                        return

    def _open(self, every: tuple[Grouping, ...]) -> bool:
        """False if time ended before all parts were there."""
        for grouping in every:
            if self._is_over() and self.best is not None:
                return False
            for home in range(len(self._data.regions)):
                bound = self._cheap(grouping, home, is_listed=False)
                if bound < INFINITE:
                    self._order += 1
                    node = Node(grouping=grouping, home=home)
                    part = _Part(bound=bound, order=self._order, node=node, is_open=True, is_listed=False)
                    heapq.heappush(self._parts, part)
        if self._data.max_s < INFINITE:
            limit(self._data, (part.node for part in self._parts if part.bound < self._target()))
        return True

    def _push(self, node: Node, bound: float, *, is_open: bool, like: _Part | None = None) -> None:
        self._order += 1
        part = _Part(bound=bound, order=self._order, node=node, is_open=is_open)
        if like is not None:
            part = replace(like, bound=bound, order=self._order, node=node, is_open=is_open)
        heapq.heappush(self._parts, part)

    def _cheap(self, grouping: Grouping, home: int, *, is_listed: bool) -> float:
        """What every placement of that grouping and home takes at least, each group by itself on the whole fleet."""
        least = Least()
        for tasks in grouping:
            is_mesh = any(task in TRAINING for task in tasks)
            of = floor if is_mesh and not is_listed else least_alone
            least = least.with_other(of(self._data, tasks, home))
        bound = max(least.busy_s, least.path_s() / self._data.ends)
        if not self._pays:
            return bound
        most_s = self._most_s()
        if bound > most_s * (1 + 1e-9):
            return INFINITE
        return least_usd(self._data, grouping, home, least, most_s, is_listed=is_listed)

    def _relaxation(self, part: _Part) -> Relaxation:
        most_s = self._most_s() if self._pays else min(self._most_s(), self._target())
        return Relaxation(
            self._data, part.node, most_s, self._target() if self._pays else INFINITE, part.cuts,
            is_fine=part.depth > 0 and self.gap < 1e-3,
        )  # fmt: skip

    def _step(self, part: _Part) -> None:
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
        if part.is_open and found.values is not None and part.depth == 0 and bound < self._target():
            self._round(built, found.values)
        if not part.is_open:
            self._branch(part, built, found, bound)
        elif bound >= self._target():
            self._close(bound)
        elif not self._divide(part, built, found, bound):
            self._push(part.node, bound, is_open=False, like=part)

    def _round(self, built: Relaxation, values: Floats) -> None:
        placement = rounded(built, values)
        if placement is not None and self._pays and placement not in self._mended:
            self._mended.add(placement)
            placement = mended(self.prices, placement, self._value())
        if placement is not None:
            self.judge(placement)

    def _divide(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> bool:
        """What is worth a split before the program is solved in whole numbers."""
        if self.best is None or found.values is None:
            return False
        if late(built, found.values) > _LATE and self._split_receivers(part, built, found, bound):
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
        assert found.values is not None
        middle = others_split(built, found.values, loose)
        if middle is None:
            return False
        low, high = part.node.others_s
        for ends in ((low, middle), (middle, high)):
            self._push(replace(part.node, others_s=ends), bound, is_open=True, like=part)
        return True

    def _split_receivers(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> bool:
        """Fewer regions that are sent versions than at a point, or at least so many; False where no more are."""
        assert found.values is not None
        num, (few, many) = built.receivers(found.values), part.node.receivers
        if num <= max(few, 1):
            return False
        for ends in ((few, num - 1), (num, many)):
            self._push(replace(part.node, receivers=ends), bound, is_open=True, like=part)
        return True

    def _split(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> bool:
        """Generation's window in two; False where it is known well enough."""
        assert found.values is not None
        at = built.window_at(found.values)
        if at is None:
            return False
        low, high = built.window_range_s
        if high - low <= min(_NARROW, self.gap / 4) * high:
            return False
        middle = min(max(at, low + 0.2 * (high - low)), high - 0.2 * (high - low))
        for ends in ((low, middle), (middle, high)):
            self._push(replace(part.node, window_s=ends), bound, is_open=True, like=part)
        return True

    def _solved(self, built: Relaxation, part: _Part) -> Solution:
        if part.is_open:
            return solve_relaxed(built.model)
        limit = min(max(self._left_s(), 0.05), _SLICE_S)
        return solve_whole(built.model, limit_s=limit, gap=self._tolerance(part) * 2, seed=self.seed)

    def _tolerance(self, part: _Part) -> float:
        """What a program may leave open: less each time that its optimum was no answer. Where a table is flat, few
        samples are many seconds."""
        return self.gap / 8 / 4.0 ** min(part.depth, _FINEST)

    def _in_units(self, built: Relaxation, bound: float) -> float:
        return bound if self._pays else bound * built.scale_s

    def _close(self, bound: float) -> None:
        """A part is done: nothing in it is below `bound`, nor below the target of this moment."""
        self._closed = min(self._closed, max(bound, self._target()) if bound < INFINITE else self._target())

    def _branch(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> None:
        if found.values is None:
            if not found.is_complete and not self._is_over() and part.depth < _MOST_CUTS:
                self._push(part.node, bound, is_open=False, like=replace(part, depth=part.depth + 1))
            elif not found.is_complete:
                self._closed = min(self._closed, bound)
            else:
                self._close(bound)
            return
        placement = built.placement(found.values)
        self.judge(placement)
        if bound >= self._target():
            self._close(bound)
            return
        self._push_rest(part, built, found, bound)

    def _push_rest(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> None:
        """What is left to look into, cut or split where the program was too hopeful."""
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
        if late(built, found.values) > tolerance and self._split_receivers(after, built, found, bound):
            return
        if built.looseness(found.values) > tolerance and self._split(after, built, found, bound):
            return
        if self._split_others(after, built, found, bound, tolerance):
            return
        if self._data.ways(part.node.home).up_s > 0 and self._split_receivers(after, built, found, bound):
            return
        low, high = part.node.step_s[0], min(part.node.step_s[1], built.most_s)
        if self.prices.problem.goal.max_usd_per_hour is not None and high - low > 1e-4 * high:
            middle = min(max(bound, low + 0.2 * (high - low)), high - 0.2 * (high - low))
            for ends in ((low, middle), (middle, high)):
                self._push(replace(part.node, step_s=ends), bound, is_open=True, like=after)
            return
        self._push(part.node, bound, is_open=False, like=after)

    # --- the end

    def _outcome(self) -> Outcome:
        bound = 0.0 if self._is_partial else min([part.bound for part in self._parts] + [self._closed])
        if self.best is None:
            if self._parts or self._is_over() or self._is_partial or self._closed < INFINITE:
                return BudgetExhausted(
                    best=None, bound=bound if bound < INFINITE else None, trace=tuple(self.trace),
                    num_evaluations=self.num_evaluations, method="exact",
                )  # fmt: skip
            return Infeasible(conflict=(), is_minimal=False, method="exact")
        value = self._value()
        bound = credible(bound, value) or 0.0
        final = replace(self.best, bound=bound, elapsed_s=self.now_s() - self._began_s)
        self.trace.append(final)
        self.report(final)
        if bound < self._target():
            return BudgetExhausted(
                best=final, bound=bound, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method="exact"
            )
        return Found(best=final, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method="exact")
