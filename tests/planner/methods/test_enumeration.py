"""Small problems are enumerated: as good as the exact method and as all placements, and without OR-Tools."""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.planner_cases import brute_force, small
from bench.planner_cases.enumerated import small_jobs
from planner.answer.outcome import BudgetExhausted, Infeasible
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods import enumeration
from planner.methods.enumeration import EnumeratedGrouping, search_all, small_space
from planner.methods.exact.infeasibility import is_feasible
from planner.methods.exact.method import search as exact
from planner.methods.portfolio import auto
from planner.problem.goal import Goal, Objective, Problem
from tests.support.cases.tiers import rest_is_slow
from tests.support.planner.searches import problem as study

ROOT = Path(__file__).parents[3]


def ticking() -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: next(ticks) * 1e-6


def of_jobs(numbers: range) -> Iterator[Problem]:
    asked = (each for number in numbers for each in small_jobs.problems(number))
    return (each for each in asked if small_space(CostTables(each)) is not None)


def feasible() -> Problem:
    """A job's question that has a plan."""
    return next(each for each in of_jobs(range(10)) if enumerated(each))


def space(problem: Problem) -> tuple[EnumeratedGrouping, ...]:
    found = small_space(CostTables(problem))
    assert found is not None
    return found


def enumerated(problem: Problem, some: Sequence[EnumeratedGrouping] | None = None) -> float | None:
    """The best value of these placements, by default of those that may be best; None if none is valid."""
    cost_tables = CostTables(problem)
    best, is_complete, _ = search_all(cost_tables, some or space(problem), lambda: False)
    assert is_complete
    if best is None:
        return None
    assert evaluate(cost_tables, best.placement) == best.evaluation
    assert best.gap(problem.goal) == 0
    return best.value(problem.goal)


def are_equal(a: float | None, b: float | None, *, rel: float) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= rel * b


@pytest.mark.parametrize("number", rest_is_slow(range(20), quick=3))
def test_no_placement_of_a_jobs_question_is_better(number: int) -> None:
    for problem in of_jobs(range(number, number + 1)):
        found = enumerated(problem)
        if found is None:
            assert is_feasible(CostTables(problem), time.monotonic, lambda: False) is False
        else:
            # CPU seconds: on a busy machine two of the clock may be too few for any answer.
            theirs = exact(CostTables(problem), seed=0, budget_s=4.0, now_s=time.process_time, gap=0.0)
            assert not isinstance(theirs, Infeasible)
            assert theirs.best is not None
            # The bound is within 2e-5 if the time was enough.
            assert (theirs.best.bound or 0.0) <= found * (1 + 1e-9)
            assert found <= theirs.best.value(problem.goal) * (1 + 1e-9)
        every = brute_force.best(problem, most=2000)
        assert every is None or are_equal(found, every.value, rel=1e-9)


@pytest.mark.parametrize("number", rest_is_slow(range(30), quick=10))
def test_no_placement_of_a_small_study_is_better(number: int) -> None:
    problem = small.problem(number, small.DEVICES)
    if small_space(CostTables(problem)) is not None:
        every = brute_force.best(problem, most=1000)
        assert every is None or are_equal(enumerated(problem), every.value, rel=1e-9)


@pytest.mark.parametrize("number", rest_is_slow(range(40), quick=6))
def test_nothing_better_is_left_out_where_classes_have_all_of_their_units_or_none(number: int) -> None:
    for problem in of_jobs(range(number, number + 1)):
        some = space(problem)
        rule_1 = [replace(each, is_full=False) for each in some]
        every_number = [replace(each, is_whole=False) for each in rule_1]
        assert are_equal(enumerated(problem), enumerated(problem, rule_1), rel=2e-9)
        assert are_equal(enumerated(problem), enumerated(problem, every_number), rel=2e-9)


def test_an_ended_budget_gives_the_best_so_far_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "_CHUNK", 1)
    problem = feasible()
    best, is_complete, num = search_all(CostTables(problem), space(problem), lambda: True)
    assert (is_complete, num) == (False, 1)
    assert best is None or best.bound is None
    assert isinstance(auto(CostTables(problem), seed=0, budget_s=0.0, now_s=ticking()), BudgetExhausted)


def test_studies_of_the_whole_plan_space_and_dollars_without_a_deadline_are_not_small() -> None:
    assert small_space(CostTables(study())) is None
    cheap = replace(feasible(), goal=Goal(objective=Objective.COST_AT_THROUGHPUT))
    assert small_space(CostTables(cheap)) is None, "longer steps cost less, so a slower mesh may be the best"


WITHOUT_SOLVER = """
import sys; sys.modules.update(ortools=None)
from dataclasses import replace
from pathlib import Path
from periplus.config import loading
from periplus.job.job_file import JobFile, resolve
from planner.answer.outcome import Found, Infeasible
from planner.devices.catalogue import architecture, gpu_types
from planner.files.capabilities import load_capabilities
from planner.problem.fleet import Machines
from planner.solve import Thinking, plan_job
from tests.support.planner.hosts import host, mesh, tiny_job

def ask(fleet, job, model, size):
    return plan_job(
        fleet, job, architecture=architecture(model), model_bytes=size, capabilities=load_capabilities(),
        thinking=Thinking(budget_s=1e6, now_s=lambda: 0.0),
    )

spelling = resolve(loading.validate(JobFile, loading.read_yaml(Path("examples/spelling.yaml")), "job"))
a, b = (host(name, 8, 64) for name in "ab")
four = Machines(gpu="L4", gpus_per_machine=4, num_machines=1)
two = Machines(gpu="H100-SXM", gpus_per_machine=2, num_machines=1)
cards = replace(mesh([replace(a, machines=(four,)), replace(b, machines=(two,))]), gpu_types=dict(gpu_types()))
large = tiny_job(model={"path": "SomeBody/SomeModel"})
for fleet, job, model, size in (
    (mesh([host("a"), host("b"), host("c", 4)]), spelling, "builtin:qwen3-tiny", None),
    (cards, large, "Qwen3-0.6B", 1_200_000_000),
):
    found = ask(fleet, job, model, size)
    assert isinstance(found, Found), found
    assert found.best.gap == 0, found.best.gap
refused = ask(cards, tiny_job(model={"path": "SomeBody/SomeModel"}, plan={"max_usd_per_hour": 1e-6}), "Qwen3-0.6B", 10)
assert isinstance(refused, Infeasible), refused
"""


def test_jobs_are_planned_without_the_solver() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SOLVER], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
