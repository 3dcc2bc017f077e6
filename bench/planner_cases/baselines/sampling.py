"""Random valid placements: keys are drawn uniformly (`genome`), and placements that the oracle rejects are drawn again.

The distribution is uniform in the keys, not over placements. Each partition, region, class and layout occurs, but good
ones are rare.
"""

from collections.abc import Iterator

import numpy as np

from bench.planner_cases.baselines.genome import PlacementGenome
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables

MOST_TRIES = 2000
"""Number of draws for one placement. On small fleets with tight memory one draw in a few hundred is valid."""


def sample(cost_tables: CostTables, rng: np.random.Generator, count: int) -> list[Placement]:
    """Return `count` placements that the oracle accepts; fewer, possibly none, if they are too rare."""
    found: list[Placement] = []
    for placement, _ in drawn(cost_tables, rng, MOST_TRIES * count):
        found.append(placement)
        if len(found) == count:
            break
    return found


def drawn(cost_tables: CostTables, rng: np.random.Generator, tries: int) -> Iterator[tuple[Placement, Evaluation]]:
    """Yield the valid placements among this number of draws, each with its evaluation."""
    genome = PlacementGenome(cost_tables)
    for _ in range(tries):
        placement = genome.placement(rng.random(genome.length))
        if placement is None:
            continue
        evaluation = evaluate(cost_tables, placement)
        if isinstance(evaluation, Evaluation):
            yield placement, evaluation
