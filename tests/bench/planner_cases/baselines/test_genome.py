"""Random keys decode to placements that the oracle accepts, and reach every part of the plan space."""

from collections import Counter

import numpy as np
import pytest

from bench.planner_cases import small
from bench.planner_cases.baselines.genome import PlacementGenome
from bench.planner_cases.baselines.sampling import drawn, sample
from planner.answer.evaluation import Evaluation, Violation
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import Problem, Rules
from planner.problem.workload import Task


def _problem(number: int) -> Problem:
    case = small.problem(number, small.DEVICES)
    return Problem(fleet=case.fleet, workload=case.workload)


def test_what_is_drawn_is_accepted_by_the_oracle() -> None:
    for number in (0, 3, 5, 16):
        cost_tables = CostTables(_problem(number))
        for placement in sample(cost_tables, np.random.default_rng(number), 5):
            assert isinstance(evaluate(cost_tables, placement), Evaluation)


def test_the_same_generator_gives_the_same_placements() -> None:
    cost_tables = CostTables(_problem(0))
    assert sample(cost_tables, np.random.default_rng(7), 5) == sample(cost_tables, np.random.default_rng(7), 5)


def test_only_memory_routes_and_rules_of_the_whole_refuse_what_keys_say() -> None:
    refusals: Counter[str] = Counter()
    for number in range(12):
        cost_tables = CostTables(small.problem(number, small.DEVICES))
        genome, rng = PlacementGenome(cost_tables), np.random.default_rng(number)
        for _ in range(30):
            placement = genome.placement(rng.random(genome.length))
            estimate = None if placement is None else evaluate(cost_tables, placement)
            if isinstance(estimate, Violation):
                refusals[estimate.kind] += 1
    assert not refusals.keys() & {"shape", "inventory", "limits"}, refusals


def test_every_partition_class_and_kind_of_mesh_comes_up() -> None:
    cost_tables = CostTables(_problem(7))
    found = [placement for placement, _ in drawn(cost_tables, np.random.default_rng(0), 500)]
    partitions = {frozenset(group.tasks for group in placement.groups) for placement in found}
    classes = {pool.device_class for placement in found for group in placement.groups for pool in group.pools}
    meshes = {len(group.pools) for placement in found for group in placement.groups if group.trains}
    assert len(partitions) == 5
    assert classes == set(cost_tables.classes)
    assert meshes == {1, 2}


def test_a_limit_of_regions_holds() -> None:
    for number in (0, 5, 22):
        case = _problem(number)
        cost_tables = CostTables(Problem(fleet=case.fleet, workload=case.workload, rules=Rules(max_regions=1)))
        for placement in sample(cost_tables, np.random.default_rng(0), 3):
            pools = [pool for group in placement.groups for pool in group.pools]
            assert len({cost_tables.classes[pool.device_class].region.name for pool in pools}) == 1


def test_an_impossible_problem_gives_no_sample() -> None:
    case = _problem(0)
    rules = Rules(pins=((Task.GENERATION, frozenset({"nowhere"})),))
    cost_tables = CostTables(Problem(fleet=case.fleet, workload=case.workload, rules=rules))
    assert sample(cost_tables, np.random.default_rng(0), 1) == []


@pytest.mark.parametrize("number", range(3))
def test_keys_at_their_ends_are_read(number: int) -> None:
    cost_tables = CostTables(_problem(number))
    genome = PlacementGenome(cost_tables)
    for keys in (np.zeros(genome.length), np.full(genome.length, np.nextafter(1.0, 0.0))):
        genome.placement(keys)
