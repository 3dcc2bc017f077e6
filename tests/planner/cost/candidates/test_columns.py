"""Columns, compared with the whole plan space on fleets that are small enough to list it."""

from collections.abc import Iterable
from itertools import islice

import numpy as np
import pytest

from planner.answer.placement import Placement
from planner.cost.batched.evaluate_many import PlacementVerdict, evaluate_many
from planner.cost.candidates.columns import mesh_columns
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import Goal, Objective
from planner.problem.workload import Task
from tests.support.cases.tiers import rest_is_slow
from tests.support.planner.cost import (
    GPU,
    GRPO,
    fleet,
    machines,
    of_columns,
    placements,
    problem,
    region,
    slower,
    workload,
)

PAIR = (Task.GENERATION, Task.ACTOR_TRAINING)


def cost_tables(
    *, eta: int, regions: int, memory: float, tasks: tuple[Task, ...] = PAIR, goal: Goal | None = None
) -> CostTables:
    fast, slow = slower(GPU, "fast", factor=1, memory=memory), slower(GPU, "slow", factor=0.6, memory=memory)
    a, b = machines(fast, per_machine=2), machines(slow, per_machine=1, usd=0.5)
    where = (region("x", a, b),) if regions == 1 else (region("x", a), region("y", b))
    return CostTables(problem(fleet(*where, types=(fast, slow)), workload(tasks, eta=eta), goal=goal))


def best(of: CostTables, every: Iterable[Placement]) -> float:
    """Of the goal's objective."""
    least, rest = np.inf, iter(every)
    while some := list(islice(rest, 20_000)):
        found = evaluate_many(of, some)
        value = found.usd_per_hour if of.problem.goal.objective is Objective.COST_AT_THROUGHPUT else found.step_s
        least = min(least, float(np.where(found.verdict == PlacementVerdict.VALID, value, np.inf).min()))
    return least


@pytest.mark.parametrize("eta", rest_is_slow([1, 0, 3]))
@pytest.mark.parametrize("regions", [1, 2])
@pytest.mark.parametrize("memory", [1.0, 0.05])
def test_no_placement_is_better_than_the_best_of_columns(eta: int, regions: int, memory: float) -> None:
    of = cost_tables(eta=eta, regions=regions, memory=memory)
    listed = best(of, placements(of, batches=(0, 16)))
    assert np.isfinite(listed)
    assert best(of, of_columns(of)) <= listed * (1 + 1e-9)


@pytest.mark.parametrize(
    "goal",
    [
        Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=0.6),
        Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=60.0),
    ],
)
def test_nor_is_one_that_costs_less(goal: Goal) -> None:
    of = cost_tables(eta=0, regions=2, memory=1.0, goal=goal)
    listed = best(of, placements(of))
    assert np.isfinite(listed)
    assert best(of, of_columns(of)) <= listed * (1 + 1e-9)


def test_every_column_makes_a_valid_placement() -> None:
    of = cost_tables(eta=1, regions=2, memory=1.0, tasks=GRPO)
    every = list(of_columns(of))
    assert (evaluate_many(of, every).verdict == PlacementVerdict.VALID).all()


def test_what_takes_longer_is_left_out() -> None:
    of = cost_tables(eta=1, regions=2, memory=1.0)
    every = mesh_columns(of, (Task.ACTOR_TRAINING,))
    times = sorted(column.times[Task.ACTOR_TRAINING] for column in every)
    fast = mesh_columns(of, (Task.ACTOR_TRAINING,), times[len(times) // 2])
    assert 0 < len(fast) < len(every)
    assert {column.group for column in fast} == {
        column.group for column in every if column.times[Task.ACTOR_TRAINING] <= times[len(times) // 2]
    }


def test_one_pool_and_two_make_all() -> None:
    of = cost_tables(eta=1, regions=2, memory=1.0)
    one, two = (mesh_columns(of, (Task.ACTOR_TRAINING,), blocks=blocks) for blocks in (1, 2))
    assert (*one, *two) == mesh_columns(of, (Task.ACTOR_TRAINING,))
    assert {len(column.group.pools) for column in one} == {1}
    assert {len(column.group.pools) for column in two} <= {2}


@pytest.mark.parametrize("scores", [True, False])
def test_a_mesh_that_sends_weights_is_listed_from_either_end(scores: bool) -> None:
    """The critic's leave from its first pool's region, if it scores apart; where they go nowhere, one end is enough."""
    tasks = (*PAIR, Task.CRITIC_TRAINING, *((Task.CRITIC_INFERENCE,) if scores else ()))
    near = fleet(region("x", machines()), region("y", machines()), bytes_per_s=1e12, rtt_s=1e-6)
    of = CostTables(problem(near, workload(tasks, eta=1)))
    first = {each.regions[0] for each in mesh_columns(of, (Task.CRITIC_TRAINING,), blocks=2)}
    assert first == ({"x", "y"} if scores else {"x"})
