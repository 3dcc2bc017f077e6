"""The opening heuristic: first placements of one grouping, and the order in which groupings are opened."""

import numpy as np
import pytest

from bench.planner_cases.fleets.published import HetrlScenario
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import INFEASIBLE, EvaluationBudget
from planner.methods.hetrl.candidate_lists import candidate_lists
from planner.methods.hetrl.fluid_bounds import Bounds
from planner.methods.hetrl.genome import grouping_decoder
from planner.methods.opening.device_assignment import DeviceAssigner, assign_batches, class_speeds
from planner.methods.opening.grouping_estimates import grouping_estimates
from planner.problem.goal import Problem
from planner.problem.groupings import groupings
from tests.support.planner.searches import problem, still

ASKED = [
    problem(HetrlScenario.MULTI_CONTINENT),
    problem(algorithm="ppo", is_async=False),
    problem(HetrlScenario.SINGLE_REGION, algorithm="ppo"),
]
IDS = ["async", "sync ppo", "async ppo"]


@pytest.mark.parametrize("asked", ASKED, ids=IDS)
def test_no_genome_takes_more_than_there_is_or_leaves_a_group_with_nothing(asked: Problem) -> None:
    lists = candidate_lists(CostTables(asked))
    assigner = DeviceAssigner(lists, class_speeds(lists, Bounds(lists)))
    for grouping in groupings(asked)[:40]:
        of = grouping_decoder(lists, grouping)
        found = list(assigner.genomes(of, 6))
        assert len(set(found)) == len(found)
        for genome in found:
            held = np.array(genome.held)
            assert (held.sum(axis=0) <= [at.num_gpus for at in of.classes]).all()
            assert held.any(axis=1).all()


@pytest.mark.parametrize("asked", ASKED, ids=IDS)
def test_the_likeliest_groupings_have_a_better_placement_than_the_unlikeliest(asked: Problem) -> None:
    cost_tables = CostTables(asked)
    lists, every = candidate_lists(cost_tables), groupings(asked)
    of_fleet = class_speeds(lists, Bounds(lists))
    assigner, budget = (
        DeviceAssigner(lists, of_fleet),
        EvaluationBudget(cost_tables, budget_s=1.0, now_s=still, max_evals=100_000),
    )
    order = np.argsort(grouping_estimates(of_fleet, every), kind="stable").tolist()

    def best(some: list[int]) -> float:
        spaces = [grouping_decoder(lists, every[i]) for i in some]
        placements = [of.placement(genome) for of in spaces for genome in assigner.genomes(of, 4)]
        return min(budget.losses(placements), default=INFEASIBLE)

    num = min(8, len(order) // 3)
    assert best(order[:num]) < INFEASIBLE
    assert best(order[:num]) < best(order[-num:])


def test_batches_go_to_the_slowest_group_of_the_class_that_suits_it() -> None:
    speeds = np.array([[[2.0, 1.0], [1.0, 1.0]]])
    held = assign_batches(speeds, np.array([[4, 4]]), np.ones(2), np.array([1, 1]))
    assert held[0].sum(axis=0).tolist() == [4, 4]
    assert held[0, 0, 0] > 0
    assert held[0, 1, 1] > 0
    assert held[0, 0, 0] >= held[0, 1, 0]
