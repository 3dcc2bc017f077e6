"""A quick descent: what `auto` opens with, over the same levels as HetRL's search, greedy where that one is patient.

Groupings are opened one after another: all tasks together, then those that a rough estimate likes best, then by their
bounds; each with a few placements that are dealt by estimate. After each the most promising grouping takes a step: many
children of its best placement at once, most of them guided by what binds, of which the best one counts. A grouping that
finds nothing better for a few steps rests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.cost.pools import Prices
from planner.groupings import Grouping, groupings
from planner.hetrl import evolution
from planner.hetrl.bounds import Bounds
from planner.hetrl.dealing import MANY_CLASSES, Dealer, Fleet, fleet
from planner.hetrl.genome import Genome, Space, space
from planner.hetrl.guide import guided
from planner.hetrl.menu import menu_of
from planner.hetrl.rough import estimates
from planner.hetrl.sizes import sizes as sizes_of
from planner.judge import INFEASIBLE, Judge
from planner.question.goal import Objective

_FIRST, _GROUPINGS = 4, 40
"""So many groupings are opened at once, and one more for each so many that there are."""
_LARGEST = 2
"""Groups of a grouping that is estimated in a fleet of many classes."""
_DEALT, _DRAWN = 4, 8
"""First placements of a grouping: by estimate, and drawn."""
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
        self._every = every
        self._num_first = _FIRST + len(every) // _GROUPINGS
        self._waiting = self._in_order(every)
        self._arms: list[_Arm] = []
        self._is_dry = False

    def run(self, judge: Judge, value: float = INFEASIBLE, *, patience: int | None = None) -> None:
        """Until time is over, every grouping that may win over `value` rests, or nothing better came for so many
        rounds."""
        waited = 0
        for arm in self._arms:
            arm.failures = 0
        if not self._arms and judge.prices.problem.asks_for_speed_alone:
            self._begin(judge)
        while not judge.is_over and waited != patience:
            for _ in range(1 if self._arms else self._num_first):
                if not self._is_dry and not judge.is_over:
                    self._open(judge, min(value, judge.best_loss))
            waited = 0 if judge.best_loss < value else waited + 1
            value = min(value, judge.best_loss)
            hopeful = [arm for arm in self._arms if arm.failures < _STUCK and arm.bound < value]
            if self._is_dry and not hopeful:
                return
            if hopeful and not judge.is_over:
                _step(judge, min(hopeful, key=lambda each: each.loss), self._rng)

    def _begin(self, judge: Judge) -> None:
        """A first placement at once: all tasks together on the class with the most arithmetic."""
        classes = [at for _, at in sorted(self._menu.prices.classes.items())]
        most = max(range(len(classes)), key=lambda c: classes[c].num_gpus * classes[c].gpu.matmul_flop_per_s)
        held = tuple(at.num_gpus if c == most else 0 for c, at in enumerate(classes))
        genome = Genome(held=(held,), choice=((0,) * len(held),))
        judge.losses([space(self._menu, each).placement(genome) for each in self._every if len(each) == 1])

    def _in_order(self, every: Sequence[Grouping]) -> Iterator[tuple[float, Grouping]]:
        """A few by a rough estimate, all tasks together soon, and then by their bounds."""
        most = _LARGEST if len(self._menu.prices.classes) > MANY_CLASSES else len(every[-1])
        some = [each for each in every if len(each) <= most] or every
        rough = estimates(self._fleet, some)
        alike: dict[float, Grouping] = {}  # equal models in each other's place are a look at the same thing
        for i in sorted(range(len(some)), key=lambda i: (rough[i], i)):
            alike.setdefault(round(float(rough[i]), 6), some[i])
        order = list(alike.values())[: 2 * self._num_first]
        before = self._num_first // 2  # no rough estimate knows the best mesh of two classes for all tasks together
        few = list(dict.fromkeys((*order[:before], every[0], *order[before:])))
        yield from ((self._bounds.of_grouping(each), each) for each in few)
        rest = {each: self._bounds.of_grouping(each) for each in every if each not in few}
        yield from ((rest[each], each) for each in sorted(rest, key=lambda each: (rest[each], len(each), each)))

    def _open(self, judge: Judge, value: float) -> None:
        """The next grouping that has a placement."""
        for bound, grouping in self._waiting:
            if bound >= value:
                continue
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

    @cached_property
    def _fleet(self) -> Fleet:
        return fleet(self._menu, self._bounds)

    @cached_property
    def _dealer(self) -> Dealer:
        return Dealer(self._menu, self._fleet)

    def _seeds(self, of: Space) -> Iterator[Genome]:
        """By estimate; and of the sizes that the bound likes best, and of others, where estimates say little."""
        problem = self._menu.prices.problem
        found = tuple(self._dealer.genomes(of, _DEALT))
        yield from found
        if found and problem.asks_for_speed_alone:
            return
        whole, all_of_them = sum(at.num_gpus for at in of.classes), problem.goal.objective is Objective.THROUGHPUT
        drawn = sizes_of(problem.workload, of.grouping, whole, self._rng, all_of_them=all_of_them)
        best = self._bounds.best_sizes(of.grouping)
        for turn in range(_DRAWN):
            yield evolution.seeded(of, next(drawn) if turn % 2 else best, self._rng)


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
