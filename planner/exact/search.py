"""Best first over parts of the plan space: each part has a bound, the one with the least is looked into next.

A part (`model.Node`) is a grouping and the trainer's region; its bound comes first from what its slowest group needs at
least, then from the linear relaxation, then from the integer program, whose optimum is judged by the oracle. What the
oracle says above the program's bound comes from what the program relaxes: tangents, the generation phase at eta 0, the
critic's region, money. Then the part is cut or split there. The search ends when no part's bound is below
`(1 - gap) x incumbent`; a part whose program has no point below that is done.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Infeasible, Outcome
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.exact.blocks import Blocks
from planner.exact.greedy import greedy
from planner.exact.linear import INFINITE, Solution
from planner.exact.model import Node, Relaxation
from planner.exact.solver import solve_relaxed, solve_whole
from planner.groupings import Grouping, groupings
from planner.question.goal import Objective
from planner.question.workload import SCORING, TRAINING, Task

_EXACT = 2e-5
"""A gap of 0 is one that solvers' tolerances cannot tell from it."""
_SLICE_S = 20.0
"""Of one integer program, before the caller is asked again whether to go on."""
_MOST_S = 1e5
"""Longer steps are not planned."""


_DIVE_S, _DIVE_SHARE = 1.0, 0.1
"""Of the first placements."""
_HOMES = 3
_SIMPLE = 12
_MANY_PARTS = 40
_MOST_CUTS = 40
"""Of one part; what is then open stays open, and the bound says so."""
_MANY_CLASSES, _FIRST_SHARE = 12, 0.3
_PROBES = 3
_PROBE_S, _PROBE_SHARE = 0.5, 0.25
"""Of one integer program that is only to find an incumbent, and of all of them."""


@dataclass(order=True, slots=True)
class _Part:
    bound: float
    order: int
    node: Node = field(compare=False)
    is_open: bool = field(compare=False)
    """Whether its linear relaxation is still to be solved."""
    cuts: tuple[tuple[Task, float], ...] = field(compare=False, default=())
    phase_cuts: tuple[float, ...] = field(compare=False, default=())
    depth: int = field(compare=False, default=0)


@dataclass(slots=True)
class Search:
    """One problem's search; `best` and `bound` hold at any moment."""

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
    bound: float = field(init=False, default=0.0)
    trace: list[Incumbent] = field(init=False, default_factory=list)
    num_evaluations: int = field(init=False, default=0)
    _began_s: float = field(init=False)
    _parts: list[_Part] = field(init=False, default_factory=list)
    _order: int = field(init=False, default=0)
    _least: dict[object, float] = field(init=False, default_factory=dict)
    _data: Blocks = field(init=False)
    _current: float = field(init=False, default=INFINITE)
    """The bound of the part that is being looked into."""
    _closed: float = field(init=False, default=INFINITE)
    """The least bound of parts that are done."""

    def __post_init__(self) -> None:
        self._began_s = self.now_s()
        self.gap = max(self.gap, _EXACT)

    def run(self) -> Outcome:
        problem = self.prices.problem
        for placement in self.start:
            self.judge(placement)
        self._data = Blocks(self.prices, INFINITE, 1)
        every = groupings(problem)
        self._dive(every)
        for placement in self.opening():
            self.judge(placement)
        if problem.limits.max_train_blocks > 1:
            # meshes of two pools are listed up to the step that is already reached: the fewer the better that is
            if len(self._data.classes) > _MANY_CLASSES:
                self._explore(every, _FIRST_SHARE)
                self._parts, self._closed, self._least = [], INFINITE, {}
            self._data = Blocks(self.prices, self._most_s(), 2)
            if self.best is None:
                self._dive(every)
        self._explore(every, 1.0)
        return self._outcome()

    def _explore(self, every: tuple[Grouping, ...], share: float) -> None:
        """Until nothing is left to look into, or that share of the budget is used."""
        until_s = self._began_s + share * self.budget_s
        self._open(every)
        if len(self._parts) > _MANY_PARTS:
            self._probe()
        while self._parts and not self._is_over() and self.now_s() < until_s:
            part = heapq.heappop(self._parts)
            if part.bound >= self._target():
                heapq.heappush(self._parts, part)
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
        least = min((part.bound for part in self._parts[:1]), default=INFINITE)
        known = min(least, self._current, self._closed)
        return known if known < INFINITE else 0.0

    def _most_s(self) -> float:
        goal = self.prices.problem.goal
        if goal.objective is Objective.COST_AT_THROUGHPUT:
            return goal.max_step_s or _MOST_S
        return min(self._value(), goal.max_step_s or INFINITE, _MOST_S)

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
                    if self.best is not None and (self.now_s() >= until_s or self.should_stop()):
                        return

    def _probe(self) -> None:
        """Integer programs of the most hopeful parts with each number of groups, briefly: for a good incumbent."""
        until_s = self.now_s() + _PROBE_SHARE * self.budget_s
        chosen: dict[int, list[_Part]] = {}
        for part in sorted(self._parts):
            same = chosen.setdefault(len(part.node.grouping), [])
            if len(same) < _PROBES:
                same.append(part)
        waiting = sorted((part for same in chosen.values() for part in same), key=lambda part: len(part.node.grouping))
        for part in waiting:
            if self.now_s() >= until_s or self._is_over():
                return
            if part.bound >= self._target():
                continue
            built = self._relaxation(part)
            if built.is_empty:
                continue
            found = solve_whole(built.model, limit_s=min(_PROBE_S, self._left_s()), gap=0.05, seed=self.seed)
            if found.values is not None:
                self.judge(built.placement(found.values))

    def _open(self, every: tuple[Grouping, ...]) -> None:
        for grouping in every:
            actor = next(tasks for tasks in grouping if Task.ACTOR_TRAINING in tasks)
            for home in np.unique(self._data.meshes(actor).home).tolist():
                bound = self._cheap(grouping, home)
                if bound < INFINITE:
                    self._push(Node(grouping=grouping, home=home), bound, is_open=True)

    def _push(self, node: Node, bound: float, *, is_open: bool, like: _Part | None = None) -> None:
        self._order += 1
        part = _Part(bound=bound, order=self._order, node=node, is_open=is_open)
        if like is not None:
            part = replace(like, bound=bound, order=self._order, node=node, is_open=is_open)
        heapq.heappush(self._parts, part)

    def _cheap(self, grouping: Grouping, home: int) -> float:
        """What every placement of that grouping and home takes at least, each group by itself on the whole fleet."""
        if self.prices.problem.goal.objective is Objective.COST_AT_THROUGHPUT:
            return 0.0
        parts = [self._alone(tasks, home) for tasks in grouping]
        busy = max(part[0] for part in parts)
        path = max(part[1] for part in parts) + max(part[2] for part in parts) + max(part[3] for part in parts)
        return max(busy, path / self._data.ends)

    def _alone(self, tasks: tuple[Task, ...], home: int) -> tuple[float, float, float, float]:
        """(busy, training, scoring, generation with its ways) at least."""
        actor = Task.ACTOR_TRAINING in tasks
        key = (tasks, home)
        if key in self._least:
            return self._least[key]  # type: ignore[return-value]
        ways, least = self._data.ways(home), (INFINITE, INFINITE, INFINITE, INFINITE)
        if any(task in TRAINING for task in tasks):
            block = self._data.meshes(tasks)
            rows = np.flatnonzero(block.home == home) if actor else np.arange(len(block.home))
            if len(rows):
                least = (
                    float(block.busy_s[rows].min()), float(block.train_s[rows].min()),
                    float(block.score_s[rows].min()), float(block.gen_s[rows].min()),
                )  # fmt: skip
        else:
            block_u = self._data.units(tasks)
            near = np.isfinite(ways.scoring_s[block_u.at_region])
            if near.any():
                classes = [self._data.classes[c] for c in block_u.at_class[near]]
                held = np.array([c.num_gpus for c in classes], dtype=np.float64) / block_u.gpus[near]
                made = held[:, None] * block_u.rates[near]
                seconds = []
                for column, task in enumerate(tasks):
                    by_class: dict[int, float] = {}
                    for c, value in zip(block_u.at_class[near].tolist(), made[:, column].tolist(), strict=True):
                        by_class[c] = max(by_class.get(c, 0.0), value)
                    in_phase = task is Task.GENERATION and block_u.phases
                    seconds.append(0.0 if in_phase else self._data.samples / sum(by_class.values()))
                lag = 0.0
                if Task.GENERATION in tasks:
                    lags = (ways.weights_s + ways.trajectories_s)[block_u.at_region] + (
                        0.0 if self._data.is_sync else block_u.group_s
                    )
                    lag = float(lags[near].min()) + self._least_phase_s(tasks, near)
                score = sum(s for s, task in zip(seconds, tasks, strict=True) if task in SCORING)
                least = (sum(seconds), 0.0, score, lag)
        self._least[key] = least  # type: ignore[assignment]
        return least

    def _least_phase_s(self, tasks: tuple[Task, ...], near: "np.typing.NDArray[np.bool_]") -> float:
        """No generation phase is shorter, were every unit of the fleet its own."""
        block = self._data.units(tasks)
        if not block.phases:
            return 0.0
        made: dict[int, np.typing.NDArray[np.float64]] = {}
        for i in np.flatnonzero(near).tolist():
            c = int(block.at_class[i])
            each = block.samples[i] * self._data.classes[c].num_units(int(block.gpus[i]))
            made[c] = np.maximum(made[c], each) if c in made else each
        enough = np.flatnonzero(sum(made.values()) >= self._data.samples * (1 - 1e-9))
        seconds = block.seconds[0]
        first = int(enough[0]) if len(enough) else len(seconds) - 1
        return float(seconds[max(first - 1, 0)])

    def _relaxation(self, part: _Part) -> Relaxation:
        is_cost = self.prices.problem.goal.objective is Objective.COST_AT_THROUGHPUT
        most_s = self._most_s() if is_cost else min(self._most_s(), self._target())
        return Relaxation(
            self._data, part.node, most_s, self._target() if is_cost else INFINITE, part.cuts, part.phase_cuts,
            is_fine=part.depth > 0 and self.gap < 1e-3,
        )  # fmt: skip

    def _step(self, part: _Part) -> None:
        built = self._relaxation(part)
        if built.is_empty:
            self._close(INFINITE)
            return
        found = self._solved(built, whole=not part.is_open)
        if found.is_infeasible:
            self._close(INFINITE)
            return
        bound = max(part.bound, self._in_units(built, found.bound))
        if part.is_open:
            self._push(part.node, bound, is_open=False, like=part)
            return
        self._branch(part, built, found, bound)

    def _solved(self, built: Relaxation, *, whole: bool) -> Solution:
        if not whole:
            return solve_relaxed(built.model)
        limit = min(max(self._left_s(), 0.05), _SLICE_S)
        return solve_whole(built.model, limit_s=limit, gap=self.gap / 4, seed=self.seed)

    def _in_units(self, built: Relaxation, bound: float) -> float:
        if self.prices.problem.goal.objective is Objective.COST_AT_THROUGHPUT:
            return bound
        return bound * built.scale_s

    def _close(self, bound: float) -> None:
        """A part is done: nothing in it is below `bound`, nor below the target of this moment."""
        self._closed = min(self._closed, max(bound, self._target()) if bound < INFINITE else self._target())

    def _branch(self, part: _Part, built: Relaxation, found: Solution, bound: float) -> None:
        if found.values is None:
            if not found.is_complete and not self._is_over():
                self._push(part.node, bound, is_open=False, like=part)
            elif not found.is_complete:
                heapq.heappush(self._parts, replace(part, bound=bound))
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
        at = built.phase_at(found.values)
        if at is not None:
            low, high = built.phase_range()
            if high - low > 1e-4 * high:
                middle = min(max(at, low + 0.2 * (high - low)), high - 0.2 * (high - low))
                self._push(replace(part.node, phase_s=(low, middle)), bound, is_open=True, like=after)
                self._push(replace(part.node, phase_s=(middle, high)), bound, is_open=True, like=after)
                return
        low, high = part.node.step_s[0], min(part.node.step_s[1], built.most_s)
        if self.prices.problem.goal.max_usd_per_hour is not None and high - low > 1e-4 * high:
            middle = min(max(bound, low + 0.2 * (high - low)), high - 0.2 * (high - low))
            self._push(replace(part.node, step_s=(low, middle)), bound, is_open=True, like=after)
            self._push(replace(part.node, step_s=(middle, high)), bound, is_open=True, like=after)
            return
        self._push(part.node, bound, is_open=False, like=after)

    # --- the end

    def _outcome(self) -> Outcome:
        bound = min([part.bound for part in self._parts] + [self._closed])
        if self.best is None:
            if self._parts or self._is_over():
                return BudgetExhausted(
                    best=None, bound=bound if bound < INFINITE else None, trace=tuple(self.trace),
                    num_evaluations=self.num_evaluations, method="exact",
                )  # fmt: skip
            return Infeasible(conflict=(), is_minimal=False, method="exact")
        value = self._value()
        bound = min(bound, value)
        final = replace(self.best, bound=bound, elapsed_s=self.now_s() - self._began_s)
        self.trace.append(final)
        self.report(final)
        if bound < self._target():
            return BudgetExhausted(
                best=final, bound=bound, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method="exact"
            )
        return Found(best=final, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method="exact")
