"""Each placement that columns form is a feasible point of every subproblem that contains it, at most at its true value.

The models of subproblems are relaxations. A placement that a model forbids, or values higher than the oracle does,
makes its bound wrong, however bad the placement is. Random placements find such errors in places that the best ones do
not reach.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from bench.planner_cases import small
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Group, Placement
from planner.cost.oracle import evaluate
from planner.cost.step.fixed_terms import FixedTerms, fixed_terms
from planner.cost.step.step_estimate import StepEstimate, estimate_step, others_s
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.program.ortools_solver import solve_whole
from planner.methods.exact.relaxation.building import build_relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.goal import STUDY, Goal, Objective, Problem
from planner.problem.groupings import Grouping, Tasks, groupings
from planner.problem.workload import TRAINING, Task

pytestmark = pytest.mark.slow

SIZE = replace(
    small.DEVICES, fewest_gpus=4, most_gpus=12, most_machines=3, etas=(0, 1, 2, 4), machine_sizes=(1, 2, 3, 4, 6, 8)
)
CRITICS = replace(SIZE, task_sets=(*small.TASK_SETS[5:], small.MANY_TASKS[1]), most_gpus=10)
PLACEMENTS, TRIES = 10, 60
LONGEST_S = 1e5
Chosen = dict[Tasks, dict[int, int]]
"""Number of units or meshes of each column, by the column's row, for each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    data: ProblemArrays
    chosen: Chosen
    placed: FixedTerms
    estimate: StepEstimate
    evaluation: Evaluation

    @property
    def is_cost(self) -> bool:
        return self.data.cost_tables.problem.goal.objective is Objective.COST_AT_THROUGHPUT

    @property
    def value(self) -> float:
        return self.evaluation.usd_per_hour if self.is_cost else self.evaluation.step_s


@pytest.mark.parametrize("number", [*range(20), 31, 47, 233, 374])
def test_a_placement_is_a_point_of_every_part_that_holds_it(number: int) -> None:
    rng = np.random.default_rng(number)
    problem = replace(small.problem(100_000 + number, CRITICS if number % 3 else SIZE), limits=STUDY)
    links = tuple(replace(each, bytes_per_s=each.bytes_per_s / 10 ** rng.uniform(0, 2)) for each in problem.fleet.links)
    problem = replace(problem, fleet=replace(problem.fleet, links=links))
    for point in points(problem, list(Objective)[number // 2 % 3], rng):
        whole = Subproblem(grouping=tuple(point.chosen), trainer_region=point.data.region_at[point.placed.trainer.name])
        for node in (whole, narrower(point, whole, rng)):
            assert value_in(point, node) <= point.value * (1 + 3e-6), (node, point.placed.placement)


def points(problem: Problem, objective: Objective, rng: np.random.Generator) -> Iterator[Point]:
    """Of columns by chance, with a goal that binds."""
    is_cost, is_budget = (objective is each for each in list(Objective)[1:])
    loose = Goal(
        objective=objective, max_step_s=LONGEST_S if is_cost else None, max_usd_per_hour=1e9 if is_budget else None
    )
    free = replace(problem, goal=loose)
    every, data, num = groupings(free), ProblemArrays(CostTables(free), LONGEST_S, 2), 0
    for _ in range(TRIES if data.classes else 0):
        chosen = drawn(data, every[rng.integers(len(every))], rng)
        found = chosen and evaluate(data.cost_tables, placement(data, chosen))
        if not chosen or not isinstance(found, Evaluation) or num == PLACEMENTS:
            continue
        near = float(rng.choice([1.0, 1.1]))
        goal = replace(loose, max_step_s=near * found.step_s) if is_cost else loose
        goal = replace(goal, max_usd_per_hour=near * found.usd_per_hour + 1e-6) if is_budget else goal
        asked = ProblemArrays(CostTables(replace(problem, goal=goal)), LONGEST_S, 2)
        placed = fixed_terms(asked.cost_tables, placement(asked, chosen))
        evaluation = evaluate(asked.cost_tables, placement(asked, chosen))
        assert isinstance(placed, FixedTerms)
        assert isinstance(evaluation, Evaluation)
        estimate = estimate_step(asked.cost_tables, placed)
        if evaluation.idle and placed.generating.tasks == (Task.GENERATION,):
            continue  # better without the pools that idle
        num += 1
        yield Point(data=asked, chosen=chosen, placed=placed, estimate=estimate, evaluation=evaluation)


def drawn(data: ProblemArrays, grouping: Grouping, rng: np.random.Generator) -> Chosen:
    """Empty where some group has nothing to choose from."""
    chosen: Chosen = {}
    for tasks in grouping:
        trains = any(task in TRAINING for task in tasks)
        num = len(data.meshes(tasks).columns if trains else data.units(tasks).columns)
        if not num:
            return {}
        rows = rng.integers(num, size=1 if trains else rng.integers(1, 4)).tolist()
        chosen[tasks] = {row: 1 if trains else int(rng.integers(1, 4)) for row in rows}
    return chosen


def placement(data: ProblemArrays, chosen: Chosen) -> Placement:
    groups = []
    for tasks, counts in chosen.items():
        if any(task in TRAINING for task in tasks):
            groups.append(data.meshes(tasks).columns[next(iter(counts))].group)
            continue
        pools = [replace(data.units(tasks).columns[row].unit, num_units=num) for row, num in counts.items()]
        groups.append(Group(tasks=tasks, pools=tuple(pools)))
    return Placement(groups=tuple(groups))


def narrower(point: Point, node: Subproblem, rng: np.random.Generator) -> Subproblem:
    """A part of it that the search may split off, with the placement in it."""
    cost_tables, placed, estimate = point.data.cost_tables, point.placed, point.estimate

    def around(value: float, least: float) -> tuple[float, float]:
        width = 10 ** rng.uniform(least, -0.5)
        return value * (1 - width * rng.random()) * (1 - 1e-10), value * (1 + width * rng.random()) * (1 + 1e-10)

    regions = {
        group.tasks: {point.data.region_at[cost_tables.classes[pool.device_class].region.name] for pool in group.pools}
        for group in placed.placement.groups
    }
    if placed.critics:
        source, scores = next(iter(placed.critics))[0], next(t for t in regions if Task.CRITIC_INFERENCE in t)
        node = replace(node, critic_regions=frozenset({point.data.region_at[source]}))
        known = [r for r in range(len(point.data.regions)) if r != node.trainer_region and rng.random() < 0.7]
        node = replace(node, critic_in=tuple((r, r in regions[scores]) for r in known))
    if estimate.phase_s is None:
        window_s = (estimate.eta + 1) * point.evaluation.step_s - estimate.before_s
        receives = len({each.region for each in estimate.active} - {placed.trainer.name})
        node = replace(node, window_s=around(window_s, -6), receivers=(receives, receives))
        if (beside_s := others_s(cost_tables, placed)) > 0 and rng.random() < 0.7:
            node = replace(node, others_s=around(beside_s, -6))
    if cost_tables.problem.goal.objective is Objective.THROUGHPUT_UNDER_BUDGET:
        node = replace(node, step_s=around(point.evaluation.step_s, -5))
    return node


def value_in(point: Point, node: Subproblem) -> float:
    """What a part's model says of the placement; infinite where it has none such."""
    most_s = point.data.cost_tables.problem.goal.max_step_s or point.evaluation.step_s * (1 + 1e-9)
    built = build_relaxation(point.data, node, most_s, INFINITE)
    if built is None:
        return INFINITE
    for tasks, counts in point.chosen.items():
        of = built.meshes.get(tasks) or built.units[tasks]
        places = dict(zip(of.of.rows.tolist(), of.at.tolist(), strict=True))
        for row, x in places.items():
            num = float(counts.get(row, 0))
            built.model.low[x], built.model.high[x] = num, min(num, built.model.high[x])
        if not counts.keys() <= places.keys():
            return INFINITE
    found = solve_whole(built.model, limit_s=10.0, gap=1e-7)
    return found.bound * (1.0 if point.is_cost else built.scale_s)
