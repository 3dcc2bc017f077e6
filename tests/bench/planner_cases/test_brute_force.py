"""The brute force that the planner's optimum is compared with tries all placements."""

from itertools import islice

import numpy as np
import pytest

from bench.planner_cases import brute_force, small
from bench.planner_cases.baselines.sampling import drawn
from planner.answer.evaluation import Evaluation
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import Objective, Problem
from planner.problem.workload import TASKS

MOST = 2500


def _some(size: small.Size, count: int) -> list[tuple[Problem, brute_force.Best]]:
    """The first cases that have a plan and are small enough."""
    found: list[tuple[Problem, brute_force.Best]] = []
    for number in range(200):
        problem = small.problem(number, size)
        best = brute_force.best(problem, most=MOST)
        if best is not None and best.value is not None:
            found.append((problem, best))
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize(("num_tasks", "bell"), [(1, 1), (2, 2), (3, 5), (4, 15), (6, 203)])
def test_every_partition_comes_once(num_tasks: int, bell: int) -> None:
    found = [frozenset(frozenset(group) for group in each) for each in brute_force.partitions(TASKS[:num_tasks])]
    assert len(found) == len(set(found)) == bell


def test_no_placement_drawn_by_chance_is_better_than_the_best_of_all() -> None:
    for problem, best in _some(small.DEVICES, 4):
        if problem.goal.objective is Objective.THROUGHPUT:
            rng = np.random.default_rng(0)
            prices = CostTables(problem)
            values = [evaluation.step_s for _, evaluation in islice(drawn(prices, rng, 2000), 300)]
            assert best.value is not None
            assert all(value >= best.value * (1 - 1e-9) for value in values)


def test_every_placement_is_tried_once() -> None:
    (problem, best), *_ = _some(small.DEVICES, 1)
    every = brute_force.placements(CostTables(problem), most=MOST)
    assert every is not None
    listed = list(every)
    assert len(listed) == len(set(listed)) == best.num_placements


@pytest.mark.slow
def test_what_is_left_out_of_large_fleets_is_never_the_best() -> None:
    tried = 0
    for number in range(60):
        problem = small.problem(number, small.ASYNCHRONOUS_CLASSES if number % 2 else small.DEVICES)
        if problem.goal.objective is not Objective.THROUGHPUT or tried == 4:
            continue
        whole = brute_force.best(problem, most=MOST)
        if whole is None or whole.value is None:
            continue
        less = brute_force.best(problem, most=MOST, is_reduced=True)
        assert less is not None
        assert less.value == pytest.approx(whole.value, rel=1e-9)
        tried += less.num_placements < whole.num_placements
    assert tried >= 3


def test_the_best_is_what_the_oracle_says_of_it() -> None:
    for problem, best in _some(small.DEVICES, 3):
        assert best.placement is not None
        assert isinstance(evaluate(CostTables(problem), best.placement), Evaluation)
