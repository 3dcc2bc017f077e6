"""Level 2: how many devices each group of tasks has. Level 1, which tasks share devices, is `planner.groupings`.

Level 2 cannot be listed; its candidates are drawn: the first in proportion to the groups' arithmetic, the others around
it and anywhere.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.groupings import Grouping
from planner.question.workload import SCORING, TRAINING, Task, Workload

_TRAIN, _SCORE, _GENERATE = 3.0, 1.0, 3.0
"""Weights of a parameter of each kind of task in the first candidate: arithmetic is 3 to 1 to 1, and decoding reaches
about a third of what the others do."""


def sizes(
    workload: Workload, grouping: Grouping, num_gpus: int, rng: np.random.Generator, *, all_of_them: bool
) -> Iterator[tuple[int, ...]]:
    """Endless candidates of level 2, at least one device a group. `all_of_them`: no device is left idle."""
    work = np.array([_work(workload, group) for group in grouping])
    turn = 0
    while True:
        share = 1.0 if all_of_them else float(2.0 ** -(4 * rng.random()))
        if turn % 4 == 3:
            weights = rng.dirichlet(np.ones(len(grouping)))
        else:
            weights = work * np.exp(rng.normal(0.0, 0.7 if turn else 0.0, len(grouping)))
        yield _whole(weights, max(len(grouping), round(share * num_gpus)))
        turn += 1


def _whole(weights: np.ndarray, total: int) -> tuple[int, ...]:
    """Integers of that sum, at least 1 each, near proportion (largest remainders)."""
    exact = weights / weights.sum() * (total - len(weights))
    floors = np.floor(exact).astype(int)
    order = np.argsort(floors - exact, kind="stable")
    floors[order[: total - len(weights) - int(floors.sum())]] += 1
    return tuple(int(n) + 1 for n in floors)


def _work(workload: Workload, group: Sequence[Task]) -> float:
    total = 0.0
    for task in group:
        factor = _TRAIN * workload.epochs_per_step if task in TRAINING else _SCORE if task in SCORING else _GENERATE
        total += factor * workload.models[task].num_params
    return total
