"""Rough estimate of the step time for all groupings at once, to decide which of them to look at first.

Each group that trains gets one whole class or half of it. The other devices are assigned in batches to the slowest of
the other groups, as in `device_assignment`. Each task is as fast as its own best layout on these devices. Memory across
tasks and the shapes of meshes are left out, which matters little beside which tasks suit which devices. Everything is
one array computation over *rows*, each of which is one division of the fleet in one grouping.

Indices: `g` is a group of a grouping, `c` is a device class in the order of keys, `t` is a task of the workload.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from planner.methods.opening.device_assignment import ClassSpeeds, Floats, Ints, assign_batches, batch_sizes
from planner.methods.opening.settings import SETTINGS
from planner.problem.goal import IMPOSSIBLE_STEP_S
from planner.problem.groupings import Grouping, Tasks
from planner.problem.workload import SCORING, TRAINING, Task


def grouping_estimates(fleet: ClassSpeeds, every: Sequence[Grouping]) -> Floats:
    """Return `[num_groupings]`: estimated seconds per step of the best of a few divisions of the fleet.

    An entry is inf if none of them works.
    """
    # One row for each choice of classes for the groups that train.
    rows = [(i, class_choice) for i, grouping in enumerate(every) for class_choice in _class_choices(fleet, grouping)]
    which = np.array([i for i, _ in rows], dtype=np.int64)
    width, size = max(map(len, every)), len(fleet.whole)
    held = np.zeros((len(rows), width, size), dtype=np.int64)
    mesh_class = {task: np.zeros(len(rows), dtype=np.int64) for task in TRAINING}
    # held: devices by group and class [num_rows, num_groups, num_classes]. mesh_class: class on which each task trains
    # [num_rows].
    for row, (i, class_choice) in enumerate(rows):
        for g, c, num in class_choice:
            held[row, g, c] = num
            for task in every[i][g]:
                if task in TRAINING:
                    mesh_class[task][row] = c
    speeds, favours = np.zeros((len(every), width, size)), np.ones((len(every), width))
    of_task = np.zeros((len(every), len(fleet.tasks)), dtype=np.int64)
    steps = np.zeros((len(every), len(fleet.tasks), size))
    known: dict[Tasks, tuple[dict[Task, Floats], Floats]] = {}
    # Speeds of groups and tasks by grouping; groups with the same tasks share them.
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
    lag_s = fleet.lag_s[mesh_class[Task.ACTOR_TRAINING]]
    generating = of_task[which, fleet.tasks.index(Task.GENERATION)]
    rank = np.arange(len(rows))
    # Generation is assigned only to classes that the trainer's weights reach soon.
    able[rank, generating] = np.where(fleet.is_near(mesh_class[Task.ACTOR_TRAINING]), able[rank, generating], 0.0)
    held += assign_batches(
        able, fleet.whole - held.sum(axis=1), favours[which], batch_sizes(fleet.whole, SETTINGS.rough_batches_per_class)
    )
    step_s = _step_s(fleet, held, steps[which], of_task[which], mesh_class, lag_s)
    # The best row of each grouping.
    found = np.full(len(every), np.inf)
    np.minimum.at(found, which, step_s)
    return found


def _class_choices(fleet: ClassSpeeds, grouping: Grouping) -> list[tuple[tuple[int, int, int], ...]]:
    """Return the choices of one class for each group that trains: tuples of (group, class, devices)."""
    trains = [g for g, tasks in enumerate(grouping) if any(task in TRAINING for task in tasks)]
    whole = fleet.whole.tolist()
    # One mesh takes a class, whole or (if other groups need devices) half. Two meshes on one class halve it.
    if len(trains) == 1:
        parts = (1,) if len(grouping) == 1 else (1, 2)
        return [((trains[0], c, -(-whole[c] // part)),) for c in fleet.strong for part in parts]
    return [
        tuple((g, c, whole[c] // (2 if a == b else 1)) for g, c in zip(trains, (a, b), strict=True))
        for a, b in product(fleet.strong, repeat=2)
    ]


def _speeds(fleet: ClassSpeeds, tasks: Tasks) -> tuple[dict[Task, Floats], Floats]:
    """Return steps per second of one device, `[num_classes]`: (of each task, of all tasks by turns).

    The second one is 0 for groups that train, since they get their devices apart.
    """
    each = fleet.steps_of(tasks)
    if any(task in TRAINING for task in tasks):
        return each, np.zeros(len(fleet.whole))
    with np.errstate(divide="ignore"):
        together: Floats = 1 / sum((1 / one for one in each.values()), np.zeros(len(fleet.whole)))
    return each, together


def _step_s(
    fleet: ClassSpeeds, held: Ints, steps: Floats, group: Ints, mesh_class: dict[Task, Ints], lag_s: Floats
) -> Floats:
    """Return the estimated seconds per step, `[num_rows]`.

    `held` is `[num_rows, num_groups, num_classes]` devices, `steps` is `[num_rows, num_tasks, num_classes]` steps per
    second of one device, and `group` is `[num_rows, num_tasks]`, the group of each task. `mesh_class` has the class on
    which each task trains, `[num_rows]`. `lag_s` is `[num_rows, num_classes]`, the transfer of a version to each class.
    """
    rank = np.arange(len(held))
    # Busy seconds of each task, `[num_rows]` each: work over the joint speed of its group's devices.
    with np.errstate(divide="ignore"):
        times = [1 / (held[rank, group[:, t]] * steps[:, t]).sum(axis=1) for t in range(len(fleet.tasks))]

    def together(some: tuple[Task, ...]) -> Floats:
        """Return the longest time of these tasks together in any group, `[num_rows]`."""
        at = [t for t, task in enumerate(fleet.tasks) if task in some]
        longest = np.zeros(len(held))
        for t in at:
            own = [np.where(group[:, u] == group[:, t], times[u], 0.0) for u in at]
            longest = np.maximum(longest, np.sum(own, axis=0))
        return longest

    place = {task: t for t, task in enumerate(fleet.tasks)}
    makes = place[Task.GENERATION]
    # Longest transfer of a version to a class in use, and of the critic's weights where it infers apart from training.
    used = held[rank, group[:, makes]] > 0
    lag_s = np.where(used, lag_s, 0.0).max(axis=1)
    critic = np.zeros(len(held))
    if Task.CRITIC_INFERENCE in place and Task.CRITIC_TRAINING in place:
        scores = held[rank, group[:, place[Task.CRITIC_INFERENCE]]] > 0
        critic = np.where(scores, fleet.critic_s[mesh_class[Task.CRITIC_TRAINING]], 0.0).max(axis=1)
        critic[group[:, place[Task.CRITIC_INFERENCE]] == group[:, place[Task.CRITIC_TRAINING]]] = 0.0
    # The path of the oracle: training, scoring, the longest sample's tail, generation and transfers in eta + 1 steps.
    train, score = together(TRAINING), together(SCORING)
    path = np.maximum(train + score + fleet.tail_s + times[makes] + lag_s, train + critic + score) / (fleet.eta + 1)
    trains = [group[:, place[task]] == group[:, makes] for task in TRAINING if task in place]
    times[makes] = times[makes] + np.where(np.any(trains, axis=0), fleet.tail_s, 0.0)
    needs = [path, lag_s, critic, *([together(fleet.tasks)] if fleet.eta else [])]
    found: Floats = np.max(needs, axis=0)
    return np.where(found < IMPOSSIBLE_STEP_S, found, np.inf)
