"""All groupings at once, roughly: which of them are worth a look before anything is priced for them.

As `dealing`, but each group that trains has one whole class, or half of it, and each task takes as long as on its own
best layout. What that leaves out (memory, meshes' shapes) is small beside what it sees: what fits which devices.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from planner.groupings import Grouping, Tasks
from planner.hetrl.dealing import Fleet, Floats, Ints, batches, share
from planner.question.workload import SCORING, TRAINING, Task

_NEVER_S = 1e9
_BATCHES = 3
"""That a class is dealt in."""


def estimates(fleet: Fleet, every: Sequence[Grouping]) -> Floats:
    """Seconds a step of the best of a few ways to share the fleet, of each grouping."""
    rows = [(i, holds) for i, grouping in enumerate(every) for holds in _ways(fleet, grouping)]
    which = np.array([i for i, _ in rows], dtype=np.int64)
    width, size = max(map(len, every)), len(fleet.whole)
    held = np.zeros((len(rows), width, size), dtype=np.int64)
    home = {task: np.zeros(len(rows), dtype=np.int64) for task in TRAINING}
    for row, (i, holds) in enumerate(rows):
        for g, c, num in holds:
            held[row, g, c] = num
            for task in every[i][g]:
                if task in TRAINING:
                    home[task][row] = c
    speeds, favours = np.zeros((len(every), width, size)), np.ones((len(every), width))
    of_task = np.zeros((len(every), len(fleet.tasks)), dtype=np.int64)
    steps = np.zeros((len(every), len(fleet.tasks), size))
    known: dict[Tasks, tuple[dict[Task, Floats], Floats]] = {}
    for i, grouping in enumerate(every):
        for g, tasks in enumerate(grouping):
            if tasks not in known:
                known[tasks] = _speeds(fleet, tasks)
            for task, each in known[tasks][0].items():
                at = fleet.tasks.index(task)
                of_task[i, at], steps[i, at] = g, each
            speeds[i, g] = known[tasks][1]
            favours[i, g] = fleet.favour if Task.GENERATION in tasks else 1.0
    able = speeds[which]
    lag_s = fleet.lag_s[home[Task.ACTOR_TRAINING]]
    generating = of_task[which, fleet.tasks.index(Task.GENERATION)]
    rank = np.arange(len(rows))
    able[rank, generating] = np.where(fleet.is_near(home[Task.ACTOR_TRAINING]), able[rank, generating], 0.0)
    held += share(able, fleet.whole - held.sum(axis=1), favours[which], batches(fleet.whole, _BATCHES))
    step_s = _step_s(fleet, held, steps[which], of_task[which], home, lag_s)
    found = np.full(len(every), np.inf)
    np.minimum.at(found, which, step_s)
    return found


def _ways(fleet: Fleet, grouping: Grouping) -> list[tuple[tuple[int, int, int], ...]]:
    """(group, class, devices) of each group that trains."""
    trains = [g for g, tasks in enumerate(grouping) if any(task in TRAINING for task in tasks)]
    whole = fleet.whole.tolist()
    if len(trains) == 1:
        parts = (1,) if len(grouping) == 1 else (1, 2)
        return [((trains[0], c, -(-whole[c] // part)),) for c in fleet.strong for part in parts]
    return [
        tuple((g, c, whole[c] // (2 if a == b else 1)) for g, c in zip(trains, (a, b), strict=True))
        for a, b in product(fleet.strong, repeat=2)
    ]


def _speeds(fleet: Fleet, tasks: Tasks) -> tuple[dict[Task, Floats], Floats]:
    """[classes]: steps a second of one device, of each task; and of all of them, 0 where they train."""
    each = fleet.steps_of(tasks)
    if any(task in TRAINING for task in tasks):
        return each, np.zeros(len(fleet.whole))
    with np.errstate(divide="ignore"):
        together: Floats = 1 / sum((1 / one for one in each.values()), np.zeros(len(fleet.whole)))
    return each, together


def _step_s(fleet: Fleet, held: Ints, steps: Floats, group: Ints, home: dict[Task, Ints], lag_s: Floats) -> Floats:
    """[rows]"""
    rank = np.arange(len(held))
    with np.errstate(divide="ignore"):
        times = [1 / (held[rank, group[:, t]] * steps[:, t]).sum(axis=1) for t in range(len(fleet.tasks))]

    def together(some: tuple[Task, ...]) -> Floats:
        """The longest, over groups, of these tasks."""
        at = [t for t, task in enumerate(fleet.tasks) if task in some]
        longest = np.zeros(len(held))
        for t in at:
            own = [np.where(group[:, u] == group[:, t], times[u], 0.0) for u in at]
            longest = np.maximum(longest, np.sum(own, axis=0))
        return longest

    place = {task: t for t, task in enumerate(fleet.tasks)}
    makes = place[Task.GENERATION]
    used = held[rank, group[:, makes]] > 0
    lag_s = np.where(used, lag_s, 0.0).max(axis=1)
    critic = np.zeros(len(held))
    if Task.CRITIC_INFERENCE in place and Task.CRITIC_TRAINING in place:
        scores = held[rank, group[:, place[Task.CRITIC_INFERENCE]]] > 0
        critic = np.where(scores, fleet.critic_s[home[Task.CRITIC_TRAINING]], 0.0).max(axis=1)
        critic[group[:, place[Task.CRITIC_INFERENCE]] == group[:, place[Task.CRITIC_TRAINING]]] = 0.0
    train, score = together(TRAINING), together(SCORING)
    path = np.maximum(train + score + fleet.tail_s + times[makes] + lag_s, train + critic + score) / (fleet.eta + 1)
    trains = [group[:, place[task]] == group[:, makes] for task in TRAINING if task in place]
    times[makes] = times[makes] + np.where(np.any(trains, axis=0), fleet.tail_s, 0.0)
    needs = [path, lag_s, critic, *([together(fleet.tasks)] if fleet.eta else [])]
    found: Floats = np.max(needs, axis=0)
    return np.where(found < _NEVER_S, found, np.inf)
