"""Level 2 of HetRL's search: how many devices each group of tasks has (a size vector).

There are too many size vectors to list, so candidates are drawn at random: the first one in proportion to the groups'
arithmetic, most others around it, and some anywhere. Level 1, which tasks share devices, is
`planner.problem.groupings`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.methods.hetrl.settings import SETTINGS
from planner.problem.groupings import Grouping
from planner.problem.workload import SCORING, TRAINING, Task, Workload


def size_vectors(
    workload: Workload, grouping: Grouping, num_gpus: int, rng: np.random.Generator, *, all_of_them: bool
) -> Iterator[tuple[int, ...]]:
    """Yield candidate size vectors without end; every group has at least one device.

    If `all_of_them`, all devices of the fleet are assigned. Otherwise, for goals in dollars, a random share stays idle.
    """
    work = np.array([_work(workload, group) for group in grouping])
    turn = 0
    while True:
        # The share of the fleet in use is log-uniform.
        share = 1.0 if all_of_them else float(2.0 ** -(SETTINGS.idle_octaves * rng.random()))
        # Some vectors are uniform on the simplex; the others are log-normal around the groups' work.
        if turn % SETTINGS.uniform_every == SETTINGS.uniform_every - 1:
            weights = rng.dirichlet(np.ones(len(grouping)))
        else:
            weights = work * np.exp(rng.normal(0.0, SETTINGS.size_sigma if turn else 0.0, len(grouping)))
        yield _rounded(weights, max(len(grouping), round(share * num_gpus)))
        turn += 1


def _rounded(weights: np.ndarray, total: int) -> tuple[int, ...]:
    """Return integers of the given sum, at least 1 each, near these proportions (method of largest remainders)."""
    exact = weights / weights.sum() * (total - len(weights))
    whole = np.floor(exact).astype(int)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: total - len(weights) - int(whole.sum())]] += 1
    return tuple(int(n) + 1 for n in whole)


def _work(workload: Workload, group: Sequence[Task]) -> float:
    """Return the relative work of a group: parameters times the factor of each task."""
    total = 0.0
    for task in group:
        if task in TRAINING:
            factor = SETTINGS.training_work * workload.epochs_per_step
        else:
            factor = SETTINGS.scoring_work if task in SCORING else SETTINGS.generation_work
        total += factor * workload.models[task].num_params
    return total
