"""A running plan is changed only where it must be, and only where that pays."""

import time
from dataclasses import replace

import pytest

from planner.answer.outcome import Found
from planner.answer.placement import Placement
from planner.catalogue import architectures, gpu_types
from planner.cost.pools import Prices
from planner.exact.method import search
from planner.lengths import lognormal
from planner.question.fleet import Fleet, Link, Machines, Region
from planner.question.goal import STUDY, Problem
from planner.question.workload import Task, Workload
from planner.replan.migration import Policy, migration
from planner.replan.moves import diff, num_moved
from planner.replan.replanner import Replanner


def problem(num_l40s: int = 4, bytes_per_s: float = 2e9) -> Problem:
    names = ("east", "west")
    machines = {"east": ("A100-40GB-SXM", 4), "west": ("L40S", num_l40s)}
    regions = tuple(
        Region(
            name=name, machines=(Machines(gpu=machines[name][0], gpus_per_machine=8, num_machines=machines[name][1]),),
            fabric_bytes_per_s=12.5e9,
        )
        for name in names
    )  # fmt: skip
    links = tuple(
        Link(src_region=a, dst_region=b, rtt_s=0.02, bytes_per_s=bytes_per_s) for a in names for b in names if a != b
    )
    arch = architectures()["Qwen3-4B"]
    workload = Workload(
        algorithm="grpo", models=dict.fromkeys((Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING), arch), eta=1,
        prompts_per_step=64, group_size=8,
        prompt_tokens=lognormal(median_tokens=200, sigma=0.4, cap_tokens=512),
        completion_tokens=lognormal(median_tokens=350, sigma=0.6, cap_tokens=1024),
    )  # fmt: skip
    return Problem(
        fleet=Fleet(regions=regions, links=links, gpu_types=gpu_types()), workload=workload,
        limits=replace(STUDY, max_train_blocks=1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def running() -> tuple[Prices, Placement]:
    prices = Prices(problem())
    found = search(prices, seed=0, budget_s=20.0, now_s=time.perf_counter)
    assert isinstance(found, Found)
    return prices, found.best.placement


def test_the_difference_of_a_plan_to_itself_is_nothing(running: tuple[Prices, Placement]) -> None:
    prices, placement = running
    assert diff(placement, placement) == ()
    assert migration(prices, placement, placement, Policy()).total_s == 0.0


def test_a_change_that_changes_nothing_keeps_the_plan(running: tuple[Prices, Placement]) -> None:
    prices, placement = running
    replanner = Replanner(prices, placement, now_s=time.perf_counter)
    answer = replanner.links_changed({})
    assert answer.is_kept
    assert answer.moves == ()


def test_machines_that_are_lost_move_little(running: tuple[Prices, Placement]) -> None:
    prices, placement = running
    fewer = problem(num_l40s=3).fleet
    answer = Replanner(prices, placement, now_s=time.perf_counter).fleet_changed(fewer)
    lost = prices.problem.fleet.num_gpus - fewer.num_gpus
    assert num_moved(placement, answer.placement) <= lost


def test_a_small_gain_is_not_worth_a_long_move(running: tuple[Prices, Placement]) -> None:
    prices, placement = running
    more = problem(num_l40s=5).fleet
    slow = Policy(horizon_s=60.0, unit_start_s=50.0, hysteresis=0.1)
    assert Replanner(prices, placement, now_s=time.perf_counter, policy=slow).fleet_changed(more).is_kept


def test_the_loss_of_the_trainers_region_has_an_answer_ready(running: tuple[Prices, Placement]) -> None:
    prices, placement = running
    replanner = Replanner(prices, placement, now_s=time.perf_counter)
    replanner.prepare(budget_s=10.0)
    (home,) = replanner.contingencies
    fleet = prices.problem.fleet
    rest = replace(
        fleet, regions=tuple(r for r in fleet.regions if r.name != home),
        links=tuple(x for x in fleet.links if home not in (x.src_region, x.dst_region)),
    )  # fmt: skip
    answer = replanner.fleet_changed(rest)
    assert answer.placement == replanner.contingencies[home]
