"""Quick greedy descent over HetRL's levels, with which the portfolio opens.

Groupings are opened one after another: the best by a rough estimate, all tasks together among them, then the others by
their lower bound. Each starts with a few placements of the opening heuristic (`device_assignment`). After each opening,
the most promising grouping takes a step: many children of its best placement are evaluated at once, most of them guided
by what determines the step time, and only the best one counts. A grouping without improvement for a few steps rests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import INFEASIBLE, EvaluationBudget
from planner.methods.hetrl import evolution
from planner.methods.hetrl.candidate_lists import candidate_lists
from planner.methods.hetrl.fluid_bounds import Bounds
from planner.methods.hetrl.genome import GroupingDecoder, GroupingGenome, grouping_decoder
from planner.methods.hetrl.group_sizes import size_vectors as sizes_of
from planner.methods.hetrl.guided_moves import guided
from planner.methods.opening.device_assignment import ClassSpeeds, DeviceAssigner, class_speeds
from planner.methods.opening.grouping_estimates import grouping_estimates
from planner.methods.opening.settings import SETTINGS
from planner.problem.device_classes import MANY_CLASSES
from planner.problem.goal import Objective
from planner.problem.groupings import Grouping, groupings


@dataclass(slots=True)
class _Arm:
    """A grouping that is open, with its best genome."""

    decoder: GroupingDecoder
    bound: float
    genome: GroupingGenome
    loss: float
    failures: int = 0
    explained: Evaluation | None = None
    """Evaluation of the best genome; None until it is needed."""
    known: set[GroupingGenome] = field(default_factory=set)
    """Genomes that were tried."""


class Descent:
    """The descent on one problem.

    Each `run` continues where the last one ended, with an evaluation budget of its own.
    """

    def __init__(self, cost_tables: CostTables, rng: np.random.Generator) -> None:
        self._lists, self._rng = candidate_lists(cost_tables), rng
        self._bounds = Bounds(self._lists)
        every = groupings(cost_tables.problem)
        self._every = every
        self._num_first = SETTINGS.first_groupings + len(every) // SETTINGS.groupings_per_first
        self._waiting = self._in_order(every)
        self._arms: list[_Arm] = []
        self._is_dry = False

    def run(self, budget: EvaluationBudget, value: float = INFEASIBLE, *, patience: int | None = None) -> None:
        """Search until the budget is spent or nothing better is found.

        It ends when every grouping that may beat `value` rests, or when `patience` rounds found nothing better.
        """
        waited = 0
        # A run may have a better incumbent or more time than the one before, so groupings at rest get another chance.
        for arm in self._arms:
            arm.failures = 0
        if not self._arms and budget.cost_tables.problem.asks_for_speed_alone:
            self._begin(budget)
        while not budget.is_over and waited != patience:
            # Open one more grouping, then let the most promising open one take a step.
            for _ in range(1 if self._arms else self._num_first):
                if not self._is_dry and not budget.is_over:
                    self._open(budget, min(value, budget.best_loss))
            # `value` may come from another method; only what is below it counts as progress.
            waited = 0 if budget.best_loss < value else waited + 1
            value = min(value, budget.best_loss)
            hopeful = [arm for arm in self._arms if arm.failures < SETTINGS.max_failures and arm.bound < value]
            if self._is_dry and not hopeful:
                return
            if hopeful and not budget.is_over:
                _step(budget, min(hopeful, key=lambda each: each.loss), self._rng)

    def _begin(self, budget: EvaluationBudget) -> None:
        """Evaluate a first placement at once: all tasks together on the class with the most arithmetic."""
        classes = [at for _, at in sorted(self._lists.cost_tables.classes.items())]
        most = max(range(len(classes)), key=lambda c: classes[c].num_gpus * classes[c].gpu.matmul_flop_per_s)
        held = tuple(at.num_gpus if c == most else 0 for c, at in enumerate(classes))
        genome = GroupingGenome(held=(held,), choice=((0,) * len(held),))
        budget.losses([grouping_decoder(self._lists, each).placement(genome) for each in self._every if len(each) == 1])

    def _in_order(self, every: Sequence[Grouping]) -> Iterator[tuple[float, Grouping]]:
        """Yield (lower bound, grouping): a few by the rough estimate, the others by their bounds.

        All tasks together is among the first few.
        """
        most = (
            SETTINGS.max_groups_of_many_classes
            if len(self._lists.cost_tables.classes) > MANY_CLASSES
            else len(every[-1])
        )
        some = [each for each in every if len(each) <= most] or every
        rough = grouping_estimates(self._fleet, some)
        # Groupings with equal estimates differ only in which of several equal models is where: keep one of them.
        alike: dict[float, Grouping] = {}
        for i in sorted(range(len(some)), key=lambda i: (rough[i], i)):
            alike.setdefault(round(float(rough[i]), 6), some[i])
        order = list(alike.values())[: 2 * self._num_first]
        # The estimate has no meshes of two classes, so all tasks together comes early whatever it says.
        before = self._num_first // 2
        few = list(dict.fromkeys((*order[:before], every[0], *order[before:])))
        yield from ((self._bounds.of_grouping(each), each) for each in few)
        rest = {each: self._bounds.of_grouping(each) for each in every if each not in few}
        yield from ((rest[each], each) for each in sorted(rest, key=lambda each: (rest[each], len(each), each)))

    def _open(self, budget: EvaluationBudget, value: float) -> None:
        """Open the next grouping that has a valid placement."""
        for bound, grouping in self._waiting:
            # Nothing in this grouping can be better. It is dropped for good, since the incumbent only improves.
            if bound >= value:
                continue
            decoder = grouping_decoder(self._lists, grouping)
            # The best of a few first placements becomes the grouping's genome.
            seeds = list(dict.fromkeys(self._seeds(decoder)))
            losses = budget.losses([decoder.placement(each) for each in seeds])
            loss, place = min((loss, i) for i, loss in enumerate(losses))
            if loss < INFEASIBLE:
                self._arms.append(_Arm(decoder=decoder, bound=bound, genome=seeds[place], loss=loss, known=set(seeds)))
                return
            if budget.is_over:
                return
        self._is_dry = True

    @cached_property
    def _fleet(self) -> ClassSpeeds:
        """Numbers per class for the estimates."""
        return class_speeds(self._lists, self._bounds)

    @cached_property
    def _assigner(self) -> DeviceAssigner:
        """Opening heuristic of the problem."""
        return DeviceAssigner(self._lists, self._fleet)

    def _seeds(self, decoder: GroupingDecoder) -> Iterator[GroupingGenome]:
        """Yield first genomes of a grouping: by estimate, and drawn ones.

        They are drawn where estimates say little: for goals in dollars and rules of regions.
        """
        problem = self._lists.cost_tables.problem
        found = tuple(self._assigner.genomes(decoder, SETTINGS.assigned_genomes))
        yield from found
        if found and problem.asks_for_speed_alone:
            return
        whole, all_of_them = sum(at.num_gpus for at in decoder.classes), problem.goal.objective is Objective.THROUGHPUT
        drawn = sizes_of(problem.workload, decoder.grouping, whole, self._rng, all_of_them=all_of_them)
        best = self._bounds.best_sizes(decoder.grouping)
        for turn in range(SETTINGS.drawn_genomes):
            # Half of them with the sizes that have the least lower bound, half with drawn sizes.
            yield evolution.seeded(decoder, next(drawn) if turn % 2 else best, self._rng)


def _step(budget: EvaluationBudget, arm: _Arm, rng: np.random.Generator) -> None:
    """Evaluate the children of the arm's best genome and keep the best one if it is better."""
    # Guided children need the oracle's evaluation of the parent, which the batched oracle does not give.
    if arm.explained is None:
        placement = arm.decoder.placement(arm.genome)
        arm.explained = None if placement is None else budget.explain(placement)
    # Without duplicates, but in the order in which they were made, so that a seed repeats its answer.
    children = list(dict.fromkeys(child for child in _children(arm, rng) if child not in arm.known))
    arm.known.update(children)
    losses = budget.losses([arm.decoder.placement(child) for child in children])
    loss, place = min(((loss, i) for i, loss in enumerate(losses)), default=(INFEASIBLE, 0))
    if loss < arm.loss * (1 - 1e-9):
        arm.genome, arm.loss, arm.failures, arm.explained = children[place], loss, 0, None
    else:
        arm.failures += 1


def _children(arm: _Arm, rng: np.random.Generator) -> Iterator[GroupingGenome]:
    """Yield children of the arm's best genome: guided ones, device swaps and other layouts."""
    for _ in range(SETTINGS.children):
        child = None
        if arm.explained is not None and rng.random() < SETTINGS.guided_share:
            child = guided(arm.decoder, arm.genome, arm.explained, rng)
        if child is None:
            vary = evolution.swapped if rng.random() < 0.5 else evolution.relaid
            child = vary(arm.decoder, arm.genome, rng)
        yield child
