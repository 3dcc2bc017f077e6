"""No good placement of a subproblem is below any of its bounds: meshes, rent, relaxation, integer program."""

from dataclasses import dataclass, replace
from functools import cache

import pytest

from bench.planner_cases import small
from planner.methods.exact.program.linear_model import INFINITE, Solution
from planner.methods.exact.program.ortools_solver import solve_relaxed, solve_whole
from planner.methods.exact.relaxation.building import build_relaxation
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.group_lower_bounds import group_lower_bounds
from planner.methods.exact.subproblem.remaining_candidates import GroupLowerBounds, Subproblem
from planner.methods.exact.subproblem.rent_lower_bounds import least_usd
from planner.problem.goal import STUDY, Goal, Objective
from planner.problem.groupings import Grouping
from tests.support.planner.known_parts import Known, known_parts, with_binding_goal

pytestmark = pytest.mark.slow

TOLERANCE = 2e-6
PARTS = 5
"""Number of the best known placements of each problem that are tested."""
GRPO, PPO = small.TASK_SETS[:4], small.TASK_SETS[4:]
SIZE = replace(small.DEVICES, fewest_gpus=4, most_gpus=12, most_machines=3, etas=(0,), tensors=(1, 2, 4, 8))
ODD = (3, 3, 6, 1)
SIZES = {
    f"{name}, eta {eta}{', odd machines' if sizes == ODD else ''}": replace(
        SIZE, etas=(eta,), task_sets=tasks, machine_sizes=sizes, memory_gib=(1.6, 3.0 if sizes == ODD else 5.0)
    )
    for name, tasks in (("grpo", GRPO), ("ppo", PPO))
    for eta in (0, 1, 2)
    for sizes in ((1, 2, 4, 8), ODD)
}
THREES = "grpo, machines of three"
SIZES[THREES] = replace(
    SIZE,
    fewest_gpus=6,
    most_gpus=18,
    kv_heads=(1, 2, 4, 8),
    memory_gib=(1.6, 6.0),
    etas=(0, 1, 2),
    most_regions=2,
    blocks=(1, 2, 2),
    machine_sizes=(1, 3, 3, 3, 6, 3),
    task_sets=GRPO,
)
OBJECTIVES = list(Objective)
PROBLEMS = [(size, number) for size in SIZES for number in (0, 2, 4) if size != THREES] + [(THREES, 21)]
"""Problems with each objective. In the last one, units of one and of two devices together use a machine of three
devices better than units of either size alone."""
of_each = pytest.mark.parametrize(("size", "number"), PROBLEMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A good placement, with the arrays of its problem, its grouping and the region of the trainer."""

    name: str
    data: ProblemArrays
    grouping: Grouping
    trainer_region: int
    known: Known

    @property
    def goal(self) -> Goal:
        return self.data.cost_tables.problem.goal

    def least(self, *, is_listed: bool) -> GroupLowerBounds:
        return group_lower_bounds(self.data, self.grouping, self.trainer_region, is_listed=is_listed)

    def relaxation(self) -> Relaxation:
        """Of what takes no longer than the placement, or costs no more."""
        is_cost = self.goal.objective is Objective.COST_AT_THROUGHPUT
        most_s = self.goal.max_step_s if is_cost else self.known.step_s * (1 + 1e-6)
        most_usd = self.known.usd_per_hour * (1 + 1e-6) if is_cost else INFINITE
        subproblem = Subproblem(grouping=self.grouping, trainer_region=self.trainer_region)
        built = build_relaxation(self.data, subproblem, most_s or INFINITE, most_usd)
        assert built is not None, self.name
        return built

    def bound(self, built: Relaxation, solved: Solution) -> float:
        is_cost = self.goal.objective is Objective.COST_AT_THROUGHPUT
        return solved.bound * (1.0 if is_cost else built.scale_s)


@cache
def cases(size: str, number: int) -> tuple[Case, ...]:
    problem = replace(small.problem(number, SIZES[size]), goal=Goal(objective=OBJECTIVES[number % len(OBJECTIVES)]))
    asked = with_binding_goal(replace(problem, limits=STUDY))
    parts = known_parts(asked)
    longest_s = max((known.step_s for known in parts.best.values()), default=1.0)
    data = ProblemArrays(parts.cost_tables, longest_s * 1.001, 2)
    found = []
    for (grouping, home), known in parts.parts()[:PARTS]:
        name = f"{size}: problem {number}, {asked.goal.objective}, {grouping} from {home}"
        found.append(Case(name=name, data=data, grouping=grouping, trainer_region=data.region_at[home], known=known))
    return tuple(found)


@of_each
def test_what_groups_need_alone_is_less_than_what_a_placement_takes(size: str, number: int) -> None:
    for case in cases(size, number):
        for is_listed in (False, True):
            least = case.least(is_listed=is_listed)
            bound = max(least.busy_s, least.path_s() / case.data.ends)
            assert bound <= case.known.step_s * (1 + TOLERANCE), (case.name, is_listed)


@of_each
def test_what_groups_cost_alone_is_less_than_what_a_placement_costs(size: str, number: int) -> None:
    for case in cases(size, number):
        if not case.goal.needs_prices:
            continue
        most_s = case.known.step_s * (1 + 1e-6)
        for is_listed in (False, True):
            least = case.least(is_listed=is_listed)
            usd = least_usd(case.data, case.grouping, case.trainer_region, least, most_s, is_listed=is_listed)
            assert usd <= case.known.usd_per_hour * (1 + TOLERANCE), (case.name, is_listed)


@of_each
def test_no_placement_is_better_than_its_parts_relaxation(size: str, number: int) -> None:
    for case in cases(size, number):
        built = case.relaxation()
        bound = case.bound(built, solve_relaxed(built.model))
        assert bound <= case.known.value * (1 + TOLERANCE), case.name


@of_each
def test_no_placement_is_better_than_its_parts_program(size: str, number: int) -> None:
    for case in cases(size, number)[:2]:
        built = case.relaxation()
        bound = case.bound(built, solve_whole(built.model, limit_s=1.0, gap=1e-4))
        assert bound <= case.known.value * (1 + TOLERANCE), case.name


@pytest.mark.parametrize("size", ["grpo, eta 0", "grpo, eta 1", "grpo, eta 2"])
def test_placements_are_so_good_that_a_bound_that_is_little_too_high_shows(size: str) -> None:
    near = []
    for case in cases(size, 0):
        built = case.relaxation()
        near.append(case.bound(built, solve_relaxed(built.model)) / case.known.value)
    assert max(near) > 1 - 1e-3
    assert any(
        case.least(is_listed=True).path_s() > 0.99 * case.data.ends * case.known.step_s
        or case.least(is_listed=True).busy_s > 0.99 * case.known.step_s
        for case in cases(size, 0)
    )
