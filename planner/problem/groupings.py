"""Task groupings: the set partitions of a job's tasks, by which devices they share, that the runtime can execute."""

from collections.abc import Iterator

from planner.problem.goal import Problem
from planner.problem.workload import TASKS, Task

Tasks = tuple[Task, ...]
"""Tasks of one group."""
Grouping = tuple[Tasks, ...]
"""Groups in the order of their first tasks, with tasks in the order of `Task`."""
FEW_GROUPINGS = 15
"""Number of partitions of four tasks. Problems with no more are called problems of few groupings; six tasks have
203."""


def groupings(problem: Problem) -> tuple[Grouping, ...]:
    """Return all groupings that can be executed, at most Bell(6) = 203, those with fewest groups first."""
    found = [each for each in _partitions(problem.workload.tasks) if all(executable(problem, tasks) for tasks in each)]
    return tuple(sorted(found, key=lambda each: (len(each), _order(each))))


def executable(problem: Problem, tasks: Tasks) -> bool:
    """Return whether the runtime can run exactly these tasks by turns on the devices of one group."""
    limits = problem.limits
    on_trainer = limits.roles_on_trainer & set(problem.workload.tasks)
    # Roles of the trainer's process are all in actor training's group, and in no other.
    if Task.ACTOR_TRAINING in tasks:
        if not on_trainer <= set(tasks):
            return False
    elif on_trainer & set(tasks) and Task.ACTOR_TRAINING in problem.workload.tasks:
        return False
    return limits.allows_group(tasks, problem.workload.tasks)


def _partitions(tasks: Tasks) -> Iterator[Grouping]:
    if not tasks:
        yield ()
        return
    first, rest = tasks[0], tasks[1:]
    # The first task is alone, or joins one of the groups of the rest. This yields each partition once.
    for others in _partitions(rest):
        yield ((first,), *others)
        for i, group in enumerate(others):
            yield ((first, *group), *others[:i], *others[i + 1 :])


def _order(grouping: Grouping) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(TASKS.index(task) for task in group) for group in grouping)
