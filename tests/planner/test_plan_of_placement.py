from dataclasses import replace

import pytest

from planner.plan import PlanEdge, TaskKind
from planner.plan_of_placement import plan_of
from tests.support.planner.gpu_plan import FLEET, PROBLEM, estimate, gpu_plan


def test_a_plan_says_who_runs_where_and_which_way_bytes_go() -> None:
    made = gpu_plan()
    assert made.trainer_region == "us"
    assert [(a.task, a.region, a.num_workers) for a in made.assignments] == [
        (TaskKind.TRAINER, "us", 1),
        (TaskKind.ROLLOUT, "eu", 8),
    ]
    assert made.weights_tree == (PlanEdge(src_region="us", dst_region="eu"),)
    assert made.trajectory_routes == (PlanEdge(src_region="eu", dst_region="us"),)
    assert [(p.region, p.rtt_s) for p in made.predictions] == [("eu", 0.08)]


def test_a_relayed_region_has_two_hops_each_once() -> None:
    walled = tuple(replace(region, is_public=region.name == "ap") for region in FLEET.regions)
    made = gpu_plan(replace(PROBLEM, fleet=replace(FLEET, regions=walled)))
    assert made.weights_tree == (PlanEdge(src_region="us", dst_region="ap"), PlanEdge(src_region="ap", dst_region="eu"))


def test_rates_and_gap_follow_from_the_evaluation_and_the_bound() -> None:
    made = gpu_plan()
    assert made.evaluation is not None
    assert made.rates is not None
    assert made.rates.samples_per_s == pytest.approx(256 / made.evaluation.step_s)
    assert made.gap == pytest.approx(0.1)


def test_without_a_bound_nothing_is_claimed() -> None:
    cost_tables, found = estimate()
    made = plan_of(cost_tables, replace(found, bound=None), method="random", seed=1)
    assert (made.bound, made.gap) == (None, None)
