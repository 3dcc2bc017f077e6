"""Levels 3 to 5: a population of one arm (a grouping with the groups' sizes), in which the worst die.

As in HetRL, and in DT-FM, its ancestor in public, an individual is a partition of the device graph. Children come from
two-level swaps: devices of two groups change places (level 3), or a group's tasklets move to other devices of it, which
is here another layout (levels 4 and 5); and from mutations, which empty a group's hold on a class. Sizes stay.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.hetrl.genome import Genome, Space
from planner.judge import INFEASIBLE, Judge

POPULATION = 12
CHILDREN = 8
"""A generation."""
_TRIES = 6
"""At a child that is not yet in the population."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Individual:
    genome: Genome
    loss: float


Guide = Callable[[Space, Genome, Evaluation, np.random.Generator], Genome | None]
"""A child that should do better than its parent, by the parent's evaluation, or None where it knows none."""


class Evolution:
    """One arm. Deterministic in `rng` and the number of generations."""

    def __init__(self, space: Space, sizes: tuple[int, ...], rng: np.random.Generator, guide: Guide | None = None):
        self.space, self.sizes = space, sizes
        self._rng, self._guide = rng, guide
        self.population: list[Individual] = []
        self._known: set[Genome] = set()
        self._explained: dict[Genome, Evaluation | None] = {}

    @property
    def best_loss(self) -> float:
        return self.population[0].loss if self.population else INFEASIBLE

    def advance(self, judge: Judge) -> None:
        """One generation: found the population, or add children and let the worst die."""
        if self.population:
            genomes = [self._child(judge) for _ in range(CHILDREN)]
        else:
            genomes = [seeded(self.space, self.sizes, self._rng) for _ in range(POPULATION)]
        fresh = list(dict.fromkeys(genome for genome in genomes if genome not in self._known))
        self._known.update(fresh)
        losses = judge.losses([self.space.placement(genome) for genome in fresh])
        born = [Individual(genome=genome, loss=loss) for genome, loss in zip(fresh, losses, strict=True)]
        self.population = sorted([*self.population, *born], key=lambda each: each.loss)[:POPULATION]

    def _child(self, judge: Judge) -> Genome:
        child = self.population[0].genome
        for _ in range(_TRIES):
            parent = self._parent()
            guided = self._guided(parent, judge) if self._guide and self._rng.random() < 0.5 else None
            child = guided or self._varied(parent.genome)
            if child not in self._known:
                break
        return child

    def _guided(self, parent: Individual, judge: Judge) -> Genome | None:
        if parent.genome not in self._explained:
            placement = self.space.placement(parent.genome) if parent.loss < INFEASIBLE else None
            self._explained[parent.genome] = None if placement is None else judge.explain(placement)
        judged = self._explained[parent.genome]
        return self._guide(self.space, parent.genome, judged, self._rng) if self._guide and judged else None

    def _parent(self) -> Individual:
        """The better of two."""
        places = self._rng.integers(len(self.population), size=2)
        return self.population[int(places.min())]

    def _varied(self, genome: Genome) -> Genome:
        kind = self._rng.random()
        if kind < 0.45:
            return swapped(self.space, genome, self._rng)
        if kind < 0.9:
            return relaid(self.space, genome, self._rng)
        return relaid(self.space, mutated(self.space, genome, self._rng), self._rng)


def seeded(space: Space, sizes: tuple[int, ...], rng: np.random.Generator) -> Genome:
    """Groups grow over the device graph, each from a random class to the nearest ones; those that train first."""
    num = len(space.classes)
    free = np.array([at.num_gpus for at in space.classes])
    free[~_regions_in_use(space, rng)] = 0
    held = np.zeros((len(sizes), num), dtype=int)
    order = sorted(range(len(sizes)), key=lambda g: (not space.trains[g], rng.random()))
    for g in order:
        usable = np.array(space.usable[g])
        left, at = sizes[g], -1
        blocks = space.max_blocks if space.trains[g] else num
        while left and blocks and (usable & (free > 0)).any():
            weights = np.where(usable, free, 0).astype(float)
            if at >= 0:
                near = np.where(weights > 0, space.nearness[at], -1.0)
                at = int(rng.choice(np.flatnonzero(near == near.max())))
            else:
                at = int(rng.choice(num, p=weights / weights.sum()))
            taken = min(left, int(free[at]))
            held[g, at] += taken
            free[at] -= taken
            left -= taken
            blocks -= 1
    choice = np.where(rng.random(held.shape) < 0.7, 0, rng.integers(0, 12, held.shape))
    return _genome(held, choice)


def swapped(space: Space, genome: Genome, rng: np.random.Generator) -> Genome:
    """Level 3: some devices of one group for as many of another's, of another class. Idle devices are a group too."""
    held = _with_idle(space, genome)
    rows = [int(row) for row in rng.permutation(len(held))]
    for a in rows:
        for b in rows:
            pairs = [
                (i, j) for i in np.flatnonzero(held[a]) for j in np.flatnonzero(held[b])
                if i != j and _may(space, a, int(j)) and _may(space, b, int(i))
            ] if a < b else []  # fmt: skip
            if pairs:
                i, j = pairs[int(rng.integers(len(pairs)))]
                num = amount(space, int(min(held[a, i], held[b, j])), rng)
                held[a, i] -= num
                held[a, j] += num
                held[b, j] -= num
                held[b, i] += num
                return _genome(held[:-1], np.array(genome.choice))
    return relaid(space, genome, rng)


def relaid(space: Space, genome: Genome, rng: np.random.Generator) -> Genome:
    """Levels 4 and 5: another layout of one group's tasklets on the devices of one class."""
    choice = np.array(genome.choice)
    g = int(rng.integers(len(choice)))
    c = 0
    if not space.trains[g]:
        used = np.flatnonzero(genome.held[g])
        c = int(rng.choice(used)) if len(used) else 0
    choice[g, c] = rng.geometric(0.35) - 1
    return _genome(np.array(genome.held), choice)


def mutated(space: Space, genome: Genome, rng: np.random.Generator) -> Genome:
    """One group gives up a class, and takes as much wherever others then find that class."""
    held = _with_idle(space, genome)
    g = int(rng.integers(len(held) - 1))
    for i in rng.permutation(np.flatnonzero(held[g])):
        for j in rng.permutation(held.shape[1]):
            for b in rng.permutation(len(held)):
                num = min(held[g, i], held[b, j])
                if b != g and i != j and num and _may(space, g, int(j)) and _may(space, int(b), int(i)):
                    held[g, i] -= num
                    held[g, j] += num
                    held[b, j] -= num
                    held[b, i] += num
            if not held[g, i]:
                break
    return _genome(held[:-1], np.array(genome.choice))


def amount(space: Space, most: int, rng: np.random.Generator) -> int:
    """From one granule to everything, small steps as likely as large ones."""
    steps = max(1, most // space.granule)
    return min(most, max(1, int(2.0 ** (rng.random() * np.log2(steps + 1)))) * space.granule)


def _regions_in_use(space: Space, rng: np.random.Generator) -> np.ndarray:
    """Classes of the regions that this individual uses: all, unless the operator allows fewer."""
    names = sorted({at.region.name for at in space.classes})
    most = space.menu.prices.problem.rules.max_regions
    if most is not None and most < len(names):
        names = [names[i] for i in rng.permutation(len(names))[:most]]
    return np.array([at.region.name in names for at in space.classes])


def _with_idle(space: Space, genome: Genome) -> np.ndarray:
    held = np.array(genome.held)
    whole = np.array([at.num_gpus for at in space.classes])
    return np.vstack([held, whole - held.sum(axis=0)])


def _may(space: Space, row: int, column: int) -> bool:
    return row == len(space.grouping) or space.usable[row][column]


def _genome(held: np.ndarray, choice: np.ndarray) -> Genome:
    return Genome(held=tuple(map(tuple, held.tolist())), choice=tuple(map(tuple, choice.tolist())))
