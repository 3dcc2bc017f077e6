"""Valid placements by chance: keys are drawn evenly (`genome`), and what the oracle refuses is drawn again.

Even in the keys, not over placements: each partition, region, class and layout comes up, the good ones rarely.
"""

from collections.abc import Iterator

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.baselines.genome import Genome
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices

MOST_TRIES = 2000
"""Draws for one placement. On small fleets with tight memory one in some hundred is valid."""


def sample(prices: Prices, rng: np.random.Generator, count: int) -> list[Placement]:
    """`count` placements that the oracle accepts; fewer, perhaps none, where they are too rare to be drawn."""
    found: list[Placement] = []
    for placement, _ in drawn(prices, rng, MOST_TRIES * count):
        found.append(placement)
        if len(found) == count:
            break
    return found


def drawn(prices: Prices, rng: np.random.Generator, tries: int) -> Iterator[tuple[Placement, Evaluation]]:
    """The valid ones of so many draws, each with what the oracle says of it."""
    genome = Genome(prices)
    for _ in range(tries):
        placement = genome.placement(rng.random(genome.length))
        if placement is None:
            continue
        evaluation = evaluate(prices, placement)
        if isinstance(evaluation, Evaluation):
            yield placement, evaluation
