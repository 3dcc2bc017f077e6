"""Meshes that lower bounds keep off the list are meshes that no subproblem would have kept as candidates."""

from collections.abc import Callable

import numpy as np
import pytest

from bench.planner_cases.baselines.sampling import drawn
from planner.answer.placement import Group
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.mesh_lower_bounds import limit_listed_meshes
from planner.methods.exact.subproblem.remaining_candidates import Subproblem, remaining_candidates
from planner.problem.goal import Problem
from planner.problem.groupings import Tasks, groupings
from planner.problem.workload import Task
from tests.support.cases.tiers import rest_is_slow


def chosen_among(data: ProblemArrays, node: Subproblem, most_s: float) -> dict[Tasks, set[Group]] | None:
    found = remaining_candidates(data, node, most_s)
    if found is None:
        return None
    return {tasks: {at.block.columns[i].group for i in at.rows.tolist()} for tasks, at in found.meshes.items()}


@pytest.mark.parametrize("num_blocks", rest_is_slow([1, 2]))
@pytest.mark.parametrize(("eta", "critic"), [(0, False), (1, False), (0, True), (1, True)])
def test_what_is_left_unlisted_is_left_out_of_every_part(
    make_problem: Callable[..., Problem], eta: int, critic: bool, num_blocks: int
) -> None:
    cost_tables = CostTables(make_problem(eta=eta, critic=critic))
    most_s = min(evaluation.step_s for _, evaluation in drawn(cost_tables, np.random.default_rng(1), 40))
    whole, limited = (ProblemArrays(cost_tables, most_s, num_blocks) for _ in range(2))
    nodes = [
        Subproblem(grouping=each, trainer_region=h)
        for each in groupings(cost_tables.problem)
        for h in range(len(whole.regions))
    ]
    limit_listed_meshes(limited, nodes)
    assert sum(limits.path_s < INFINITE for limits, _ in limited.mesh_limits.values()) > 0
    for node in nodes:
        assert chosen_among(limited, node, most_s) == chosen_among(whole, node, most_s)


def test_fewer_meshes_are_listed_where_generation_takes_most_of_a_path(make_problem: Callable[..., Problem]) -> None:
    cost_tables = CostTables(make_problem(eta=0))
    most_s = min(evaluation.step_s for _, evaluation in drawn(cost_tables, np.random.default_rng(1), 40))
    whole, limited = (ProblemArrays(cost_tables, most_s * 0.6, 2) for _ in range(2))
    apart = next(each for each in groupings(cost_tables.problem) if (Task.GENERATION,) in each)
    trains = next(tasks for tasks in apart if Task.ACTOR_TRAINING in tasks)
    limit_listed_meshes(limited, [Subproblem(grouping=apart, trainer_region=0)])
    assert len(limited.meshes(trains, 0).columns) < len(whole.meshes(trains, 0).columns)
