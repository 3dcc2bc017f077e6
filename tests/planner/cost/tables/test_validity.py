"""Placements that are invalid, with the violated constraint."""

from dataclasses import replace

import pytest

from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.validity import violation
from planner.problem.goal import STUDY, Limits, Problem, Rules
from planner.problem.workload import Task
from tests.support.planner.cost import GPU, fleet, machines, problem, region, slower, workload

PAIR = (Task.GENERATION, Task.ACTOR_TRAINING)
SLOW = slower(GPU, "slow", factor=0.5)
ASKED = problem(
    fleet(region("x", machines(per_machine=4, num=2)), region("y", machines(SLOW, per_machine=2)), types=(GPU, SLOW)),
    workload(PAIR),
)


def pool(task: Task, *, key: str = "x/simple/4", unit: int = 1, num: int = 1, layout: Layout | None = None) -> Pool:
    layouts = ((task, layout or Layout(tensor=unit)),)
    return Pool(device_class=key, unit_gpus=unit, num_units=num, layouts=layouts)


MADE, TRAINED = pool(Task.GENERATION), pool(Task.ACTOR_TRAINING)


def kind(
    *, made: tuple[Pool, ...] = (MADE,), trained: tuple[Pool, ...] = (TRAINED,), of: Problem = ASKED
) -> str | None:
    groups = (Group(tasks=PAIR[:1], pools=made), Group(tasks=PAIR[1:], pools=trained))
    found = violation(CostTables(of), Placement(groups=groups))
    return found.kind if found else None


def test_a_placement_of_the_plan_space_has_none() -> None:
    assert kind() is None


@pytest.mark.parametrize(
    "trained",
    [
        (),
        (pool(PAIR[1], unit=2, layout=Layout(tensor=1)),),
        (pool(PAIR[1], num=3, layout=Layout(tensor=1, pipeline=2)),),
        (pool(PAIR[1], num=5),),
        (pool(PAIR[1], layout=Layout(tensor=1, sharding=Sharding.OPTIMIZER)),),
        (pool(PAIR[1], num=4, layout=Layout(tensor=1, pipeline=2, sharding=Sharding.FULL)),),
        (pool(PAIR[1], layout=Layout(tensor=1, micro_batch=3)),),
        (TRAINED, TRAINED),
        (pool(PAIR[1], num=2, layout=Layout(tensor=1, sharding=Sharding.FULL)), pool(PAIR[1], key="y/slow/2")),
    ],
)
def test_shapes_that_the_plan_space_does_not_have(trained: tuple[Pool, ...]) -> None:
    assert kind(trained=trained) == "shape"


def test_a_task_left_out_is_no_placement() -> None:
    found = violation(CostTables(ASKED), Placement(groups=(Group(tasks=PAIR[:1], pools=(MADE,)),)))
    assert found is not None
    assert "exactly once" in found.what


def test_units_must_fit_into_machines() -> None:
    assert kind(made=(pool(PAIR[0], unit=4, num=2),)) == "inventory"
    assert kind(made=(pool(PAIR[0], unit=4, num=1), pool(PAIR[0], num=3))) is None


@pytest.mark.parametrize(
    "rules",
    [
        Rules(pins=((Task.GENERATION, frozenset({"y"})),)),
        Rules(forbidden=((Task.ACTOR_TRAINING, frozenset({"x"})),)),
        Rules(forbidden_regions=frozenset({"x"})),
        Rules(min_regions=2),
        Rules(generating=frozenset({"y"})),
    ],
)
def test_rules_are_kept(rules: Rules) -> None:
    assert kind(of=replace(ASKED, rules=rules)) == "rules"


def test_at_most_so_many_regions() -> None:
    asked = replace(ASKED, rules=Rules(max_regions=1))
    assert kind(of=asked) is None
    assert kind(made=(pool(PAIR[0], key="y/slow/2"),), of=asked) == "rules"


@pytest.mark.parametrize(
    "limits", [replace(STUDY, max_data=1), replace(STUDY, max_train_blocks=1), replace(STUDY, max_tensor=1)]
)
def test_limits_of_the_runtime_are_kept(limits: Limits) -> None:
    mesh = (pool(PAIR[1], unit=2, num=2), pool(PAIR[1], key="y/slow/2", unit=2))
    assert kind(trained=mesh) is None
    assert kind(trained=mesh, of=replace(ASKED, limits=limits)) == "limits"


def test_what_the_trainer_does_itself_is_in_its_group() -> None:
    limits = replace(STUDY, roles_on_trainer=frozenset({Task.GENERATION}))
    assert kind(of=replace(ASKED, limits=limits)) == "limits"
