"""A quick descent: what `auto` opens with, over the same levels as HetRL's search, greedy where that one is patient.

Groupings are opened in the order of their bounds, all tasks together first, each with a few placements of the sizes
that its bound likes best. After each the most promising grouping takes a step: many children of its best placement at
once, most of them guided by what binds, of which the best one counts. A grouping that finds nothing better for a few
steps rests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.cost.pools import Prices
from planner.groupings import Grouping, groupings
from planner.hetrl import evolution
from planner.hetrl.bounds import Bounds
from planner.hetrl.genome import Genome, Space, space
from planner.hetrl.guide import guided
from planner.hetrl.menu import menu_of
from planner.hetrl.sizes import sizes as sizes_of
from planner.judge import INFEASIBLE, Judge
from planner.question.goal import Objective
from planner.question.workload import TRAINING, Task

_PAIRS, _GROUPINGS = 2, 60
"""So many groupings of two groups come first, and one more for each so many that there are."""
_SEEDS = 8
_CHILDREN = 32
_GUIDED = 0.6
"""Share of the children."""
_STUCK = 3
"""Steps without anything better."""


@dataclass(slots=True)
class _Arm:
    space: Space
    bound: float
    genome: Genome
    loss: float
    failures: int = 0
    explained: Evaluation | None = None
    known: set[Genome] = field(default_factory=set)


class Descent:
    """Of one problem; each `run` goes on where the last one ended, with a judge of its own."""

    def __init__(self, prices: Prices, rng: np.random.Generator) -> None:
        self._menu, self._rng = menu_of(prices), rng
        self._bounds = Bounds(self._menu)
        every = groupings(prices.problem)
        self._first = {1: 1, 2: _PAIRS + len(every) // _GROUPINGS}
        self._waiting = self._in_order(every)
        self._arms: list[_Arm] = []
        self._is_dry = False

    def run(self, judge: Judge, value: float = INFEASIBLE, *, patience: int | None = None) -> None:
        """Until time is over, every grouping that may win over `value` rests, or nothing better came for so many
        rounds."""
        waited = 0
        for arm in self._arms:
            arm.failures = 0
        while not judge.is_over and waited != patience:
            for _ in range(1 if self._arms else sum(self._first.values())):
                if not self._is_dry and not judge.is_over:
                    self._open(judge, min(value, judge.best_loss))
            waited = 0 if judge.best_loss < value else waited + 1
            value = min(value, judge.best_loss)
            hopeful = [arm for arm in self._arms if arm.failures < _STUCK and arm.bound < value]
            if self._is_dry and not hopeful:
                return
            if hopeful and not judge.is_over:
                _step(judge, min(hopeful, key=lambda each: each.loss), self._rng)

    def _in_order(self, every: Sequence[Grouping]) -> Iterator[tuple[float, Grouping]]:
        """By their bounds; but first all tasks together, and a few of two groups: few groups are soon laid out well."""
        known: dict[Grouping, float] = {}
        told: set[Grouping] = set()
        for size, num in self._first.items():
            some = [each for each in every if len(each) == size and (size == 1 or _is_plain(each))]
            known |= {each: self._bounds.of_grouping(each) for each in some}
            told |= set(some)
            some.sort(key=lambda each: ((Task.GENERATION,) not in each, known[each], each))
            yield from ((known.pop(each), each) for each in some[:num])
        rest = {each: self._bounds.of_grouping(each) for each in every if each not in told} | known
        yield from ((rest[each], each) for each in sorted(rest, key=lambda each: (rest[each], len(each), each)))

    def _open(self, judge: Judge, value: float) -> None:
        """The next grouping that has a placement."""
        for bound, grouping in self._waiting:
            if bound >= value:
                break
            of = space(self._menu, grouping)
            seeds = list(dict.fromkeys(self._seeds(of)))
            losses = judge.losses([of.placement(each) for each in seeds])
            loss, place = min((loss, i) for i, loss in enumerate(losses))
            if loss < INFEASIBLE:
                self._arms.append(_Arm(space=of, bound=bound, genome=seeds[place], loss=loss, known=set(seeds)))
                return
            if judge.is_over:
                return
        self._is_dry = True

    def _seeds(self, of: Space) -> Iterator[Genome]:
        """Of the sizes that the bound likes best, and of others."""
        problem = self._menu.prices.problem
        whole, all_of_them = sum(at.num_gpus for at in of.classes), problem.goal.objective is Objective.THROUGHPUT
        drawn = sizes_of(problem.workload, of.grouping, whole, self._rng, all_of_them=all_of_them)
        best = self._bounds.best_sizes(of.grouping)
        for turn in range(_SEEDS):
            yield evolution.seeded(of, next(drawn) if turn % 2 else best, self._rng)


def _is_plain(grouping: Grouping) -> bool:
    """Generation is alone, or no group trains two models, whose states are large."""
    return (Task.GENERATION,) in grouping or all(sum(task in TRAINING for task in tasks) < 2 for tasks in grouping)


def _step(judge: Judge, arm: _Arm, rng: np.random.Generator) -> None:
    if arm.explained is None:
        placement = arm.space.placement(arm.genome)
        arm.explained = None if placement is None else judge.explain(placement)
    children = list(dict.fromkeys(child for child in _children(arm, rng) if child not in arm.known))
    arm.known.update(children)
    losses = judge.losses([arm.space.placement(child) for child in children])
    loss, place = min(((loss, i) for i, loss in enumerate(losses)), default=(INFEASIBLE, 0))
    if loss < arm.loss * (1 - 1e-9):
        arm.genome, arm.loss, arm.failures, arm.explained = children[place], loss, 0, None
    else:
        arm.failures += 1


def _children(arm: _Arm, rng: np.random.Generator) -> Iterator[Genome]:
    for _ in range(_CHILDREN):
        child = None
        if arm.explained is not None and rng.random() < _GUIDED:
            child = guided(arm.space, arm.genome, arm.explained, rng)
        if child is None:
            vary = evolution.swapped if rng.random() < 0.5 else evolution.relaid
            child = vary(arm.space, arm.genome, rng)
        yield child
