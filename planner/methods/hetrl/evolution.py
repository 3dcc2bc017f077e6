"""Levels 3 to 5 of HetRL's search: evolution within one arm, which is a grouping with a size vector.

An individual is a partition of the device graph, as in HetRL and in DT-FM, which HetRL builds on. Children come from
two-level swaps: devices of two groups change places (level 3), or a group's tasks move to other devices of it, which
here means another layout (levels 4 and 5). Mutations move a group off a class. Sizes never change (except by guided
children), and the worst individuals die.

`held` is `[num_groups, num_classes]` devices, `choice` the index of a layout for each of them; `g`, `a` and `b` are
groups, `i` and `j` are device classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.methods.evaluation_budget import INFEASIBLE, EvaluationBudget
from planner.methods.hetrl.genome import GroupingDecoder, GroupingGenome
from planner.methods.hetrl.settings import SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Individual:
    """A genome with its loss."""

    genome: GroupingGenome
    loss: float


Guide = Callable[[GroupingDecoder, GroupingGenome, Evaluation, np.random.Generator], GroupingGenome | None]
"""Function that makes a child from the parent's evaluation that should be better, or returns None where it knows
none."""


class Evolution:
    """The population of one arm. It depends only on `rng` and the number of generations."""

    def __init__(
        self, decoder: GroupingDecoder, sizes: tuple[int, ...], rng: np.random.Generator, guide: Guide | None = None
    ):
        self.decoder, self.sizes = decoder, sizes
        self._rng, self._guide = rng, guide
        self.population: list[Individual] = []
        self._known: set[GroupingGenome] = set()
        self._explained: dict[GroupingGenome, Evaluation | None] = {}

    @property
    def best_loss(self) -> float:
        """Least loss so far; `INFEASIBLE` without a valid individual."""
        return self.population[0].loss if self.population else INFEASIBLE

    def advance(self, budget: EvaluationBudget) -> None:
        """Do one generation: create the population, or add children and drop the worst individuals."""
        if self.population:
            genomes = [self._child(budget) for _ in range(SETTINGS.children)]
        else:
            genomes = [seeded(self.decoder, self.sizes, self._rng) for _ in range(SETTINGS.population)]
        fresh = list(dict.fromkeys(genome for genome in genomes if genome not in self._known))
        self._known.update(fresh)
        losses = budget.losses([self.decoder.placement(genome) for genome in fresh])
        born = [Individual(genome=genome, loss=loss) for genome, loss in zip(fresh, losses, strict=True)]
        self.population = sorted([*self.population, *born], key=lambda each: each.loss)[: SETTINGS.population]

    def _child(self, budget: EvaluationBudget) -> GroupingGenome:
        """Return a child that is not known yet, if a few attempts find one."""
        child = self.population[0].genome
        for _ in range(SETTINGS.tries):
            parent = self._parent()
            guided = (
                self._guided(parent, budget) if self._guide and self._rng.random() < SETTINGS.guided_share else None
            )
            # A parent whose evaluation gives no direction is varied at random.
            child = guided or self._varied(parent.genome)
            if child not in self._known:
                break
        return child

    def _guided(self, parent: Individual, budget: EvaluationBudget) -> GroupingGenome | None:
        """Return a guided child of the parent, or None."""
        if parent.genome not in self._explained:
            placement = self.decoder.placement(parent.genome) if parent.loss < INFEASIBLE else None
            self._explained[parent.genome] = None if placement is None else budget.explain(placement)
        estimate = self._explained[parent.genome]
        return self._guide(self.decoder, parent.genome, estimate, self._rng) if self._guide and estimate else None

    def _parent(self) -> Individual:
        """Return the better of two random individuals (tournament of two; the population is sorted)."""
        places = self._rng.integers(len(self.population), size=2)
        return self.population[int(places.min())]

    def _varied(self, genome: GroupingGenome) -> GroupingGenome:
        """Return a random child: a swap, another layout or a mutation."""
        kind = self._rng.random()
        if kind < SETTINGS.swap_share:
            return swapped(self.decoder, genome, self._rng)
        if kind < SETTINGS.swap_share + SETTINGS.layout_share:
            return relaid(self.decoder, genome, self._rng)
        return relaid(self.decoder, mutated(self.decoder, genome, self._rng), self._rng)


def seeded(decoder: GroupingDecoder, sizes: tuple[int, ...], rng: np.random.Generator) -> GroupingGenome:
    """Return a random genome with these sizes.

    Groups that train grow first, each from a random class to the best connected ones.
    """
    num = len(decoder.classes)
    free = np.array([at.num_gpus for at in decoder.classes])
    free[~_regions_in_use(decoder, rng)] = 0
    held = np.zeros((len(sizes), num), dtype=int)
    order = sorted(range(len(sizes)), key=lambda g: (not decoder.trains[g], rng.random()))
    for g in order:
        usable = np.array(decoder.usable[g])
        left, at = sizes[g], -1
        # A mesh has few pools; other groups may be spread over all classes.
        blocks = decoder.max_blocks if decoder.trains[g] else num
        while left and blocks and (usable & (free > 0)).any():
            weights = np.where(usable, free, 0).astype(float)
            if at >= 0:
                # The free class with the best link to the class taken last; ties are broken at random.
                near = np.where(weights > 0, decoder.nearness[at], -1.0)
                at = int(rng.choice(np.flatnonzero(near == near.max())))
            else:
                # The first class, in proportion to its free devices.
                at = int(rng.choice(num, p=weights / weights.sum()))
            taken = min(left, int(free[at]))
            held[g, at] += taken
            free[at] -= taken
            left -= taken
            blocks -= 1
    # Mostly the best layout, sometimes any of the first few.
    choice = np.where(
        rng.random(held.shape) < SETTINGS.best_layout_share, 0, rng.integers(0, SETTINGS.first_layouts, held.shape)
    )
    return _genome(held, choice)


def swapped(decoder: GroupingDecoder, genome: GroupingGenome, rng: np.random.Generator) -> GroupingGenome:
    """Return a child in which some devices of one group change places with another group's, of another class (level 3).

    Idle devices count as a group.
    """
    held = _with_idle(decoder, genome)
    rows = [int(row) for row in rng.permutation(len(held))]
    for a in rows:
        for b in rows:
            # Classes i of group a and j of group b that may change places.
            pairs = (
                [
                    (i, j)
                    for i in np.flatnonzero(held[a])
                    for j in np.flatnonzero(held[b])
                    if i != j and _may_use(decoder, a, int(j)) and _may_use(decoder, b, int(i))
                ]
                if a < b
                else []
            )
            if pairs:
                i, j = pairs[int(rng.integers(len(pairs)))]
                num = amount(decoder, int(min(held[a, i], held[b, j])), rng)
                # Both groups keep their sizes: `num` devices of class i go from a to b, and as many of class j from b
                # to a.
                held[a, i] -= num
                held[a, j] += num
                held[b, j] -= num
                held[b, i] += num
                return _genome(held[:-1], np.array(genome.choice))
    return relaid(decoder, genome, rng)


def relaid(decoder: GroupingDecoder, genome: GroupingGenome, rng: np.random.Generator) -> GroupingGenome:
    """Return a child with another layout of one group on the devices of one class (levels 4 and 5)."""
    choice = np.array(genome.choice)
    g = int(rng.integers(len(choice)))
    # A mesh has one choice for all its devices, in column 0; other groups have one for each class.
    c = 0
    if not decoder.trains[g]:
        used = np.flatnonzero(genome.held[g])
        c = int(rng.choice(used)) if len(used) else 0
    # Layouts are sorted best first, so positions near the front are likelier.
    choice[g, c] = rng.geometric(SETTINGS.next_layout_odds) - 1
    return _genome(np.array(genome.held), choice)


def mutated(decoder: GroupingDecoder, genome: GroupingGenome, rng: np.random.Generator) -> GroupingGenome:
    """Return a child in which one group exchanges all its devices of a class for others."""
    held = _with_idle(decoder, genome)
    # Any group but the idle row, which is last.
    g = int(rng.integers(len(held) - 1))
    for i in rng.permutation(np.flatnonzero(held[g])):
        # Exchange class i for any class j of any other group until nothing of class i is left.
        for j in rng.permutation(held.shape[1]):
            for b in rng.permutation(len(held)):
                num = min(held[g, i], held[b, j])
                if b != g and i != j and num and _may_use(decoder, g, int(j)) and _may_use(decoder, int(b), int(i)):
                    held[g, i] -= num
                    held[g, j] += num
                    held[b, j] -= num
                    held[b, i] += num
            if not held[g, i]:
                break
    return _genome(held[:-1], np.array(genome.choice))


def amount(decoder: GroupingDecoder, most: int, rng: np.random.Generator) -> int:
    """Return a random number of devices from one granule to `most`, log-uniformly distributed."""
    steps = max(1, most // decoder.granule)
    return min(most, max(1, int(2.0 ** (rng.random() * np.log2(steps + 1)))) * decoder.granule)


def _regions_in_use(decoder: GroupingDecoder, rng: np.random.Generator) -> np.ndarray:
    """Return `[num_classes]`: whether this individual may use the class.

    It may use all of them unless the operator limits the number of regions.
    """
    names = sorted({at.region.name for at in decoder.classes})
    most = decoder.lists.cost_tables.problem.rules.max_regions
    if most is not None and most < len(names):
        names = [names[i] for i in rng.permutation(len(names))[:most]]
    return np.array([at.region.name in names for at in decoder.classes])


def _with_idle(decoder: GroupingDecoder, genome: GroupingGenome) -> np.ndarray:
    """Return the devices by group and class with a last row for idle ones."""
    held = np.array(genome.held)
    whole = np.array([at.num_gpus for at in decoder.classes])
    return np.vstack([held, whole - held.sum(axis=0)])


def _may_use(decoder: GroupingDecoder, row: int, column: int) -> bool:
    """Return whether the group, or the idle row, may have devices of the class."""
    return row == len(decoder.grouping) or decoder.usable[row][column]


def _genome(held: np.ndarray, choice: np.ndarray) -> GroupingGenome:
    """Return the genome with these arrays."""
    return GroupingGenome(held=tuple(map(tuple, held.tolist())), choice=tuple(map(tuple, choice.tolist())))
