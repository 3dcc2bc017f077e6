"""There is no model where nothing is within the limits; otherwise its variables say what a placement is."""

from collections.abc import Callable

import pytest

from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.program.ortools_solver import solve_whole
from planner.methods.exact.relaxation.building import build_relaxation
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.goal import Goal, Objective, Problem, Rules
from planner.problem.groupings import Grouping
from planner.problem.workload import Task

APART = ((Task.GENERATION,), (Task.REFERENCE, Task.ACTOR_TRAINING))
TOGETHER = ((Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING),)
MOST_S = 60.0
MakeProblem = Callable[..., Problem]


def built(
    problem: Problem, grouping: Grouping = APART, *, most_s: float = MOST_S, most_usd: float = INFINITE
) -> Relaxation | None:
    data = ProblemArrays(CostTables(problem), most_s, 1)
    return build_relaxation(data, Subproblem(grouping=grouping, trainer_region=0), most_s, most_usd)


def test_no_model_where_no_candidate_is_fast_enough(make_problem: MakeProblem) -> None:
    assert built(make_problem(), most_s=1e-3) is None


def test_no_model_where_the_rent_alone_is_too_high(make_problem: MakeProblem) -> None:
    problem = make_problem(goal=Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=MOST_S))
    assert built(problem, most_usd=0.01) is None
    assert built(problem) is not None


def test_no_model_where_more_regions_must_receive_than_can(make_problem: MakeProblem) -> None:
    problem = make_problem(rules=Rules(max_regions=1))
    uplinks = tuple(
        type(region)(
            name=region.name,
            machines=region.machines,
            fabric_bytes_per_s=region.fabric_bytes_per_s,
            wan_up_bytes_per_s=2e8,
        )
        for region in problem.fleet.regions
    )
    problem = Problem(
        fleet=type(problem.fleet)(regions=uplinks, links=problem.fleet.links, gpu_types=problem.fleet.gpu_types),
        workload=problem.workload,
        rules=problem.rules,
    )
    data = ProblemArrays(CostTables(problem), MOST_S, 1)
    whole = Subproblem(grouping=APART, trainer_region=0)
    assert build_relaxation(data, whole, MOST_S, INFINITE) is not None
    asked = Subproblem(grouping=APART, trainer_region=0, receivers=(1, 9))
    assert build_relaxation(data, asked, MOST_S, INFINITE) is None


def test_generation_by_turns_has_no_window(make_problem: MakeProblem) -> None:
    together, apart = built(make_problem(), TOGETHER), built(make_problem())
    assert together is not None
    assert apart is not None
    assert together.window is None
    assert apart.window is not None
    assert [*together.meshes] == [*TOGETHER]
    assert [*apart.units] == [(Task.GENERATION,)]


@pytest.mark.parametrize("grouping", [APART, TOGETHER])
def test_the_optimum_of_the_program_is_a_placement_of_the_grouping(
    make_problem: MakeProblem, grouping: Grouping
) -> None:
    of = built(make_problem(), grouping)
    assert of is not None
    found = solve_whole(of.model, limit_s=10.0, gap=1e-3)
    assert found.values is not None
    placement = of.placement(found.values)
    assert tuple(group.tasks for group in placement.groups) == grouping
    assert of.low_s <= found.objective * of.scale_s <= MOST_S
