from dataclasses import replace

import pytest

from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.goal import Goal, Objective, Problem, Rules
from planner.problem.workload import Task
from tests.support.planner_cost import fleet, machines, problem, region, workload

BOTH = (Task.GENERATION, Task.ACTOR_TRAINING)


def one_class(*, usd: float | None = 1.0, is_spot: bool = False) -> tuple[Problem, DeviceClass]:
    """Return a problem whose fleet has one class of devices, in the region `home`, and that class."""
    offered = replace(machines(usd=usd), is_spot=is_spot)
    asked = problem(fleet(region("home", offered)), workload())
    return asked, next(iter(classes_of(asked.fleet)))


@pytest.mark.parametrize(
    ("rules", "tasks", "allowed"),
    [
        (Rules(), BOTH, True),
        (Rules(forbidden_regions=frozenset({"home"})), BOTH, False),
        (Rules(pins=((Task.GENERATION, frozenset({"far"})),)), BOTH, False),
        (Rules(pins=((Task.GENERATION, frozenset({"far"})),)), (Task.ACTOR_TRAINING,), True),
    ],
)
def test_a_class_may_run_tasks_that_the_rules_allow_all_together(
    rules: Rules, tasks: tuple[Task, ...], allowed: bool
) -> None:
    asked, at = one_class()
    assert replace(asked, rules=rules).allows(tasks, at) is allowed


def test_spot_devices_may_only_generate() -> None:
    asked, at = one_class(is_spot=True)
    assert [asked.allows((task,), at) for task in BOTH] == [True, False]


@pytest.mark.parametrize("objective", list(Objective))
def test_devices_without_a_price_are_refused_when_the_objective_needs_prices(objective: Objective) -> None:
    asked, at = one_class(usd=None)
    assert replace(asked, goal=Goal(objective=objective)).allows(BOTH, at) is (objective is Objective.THROUGHPUT)
