"""A running plan changes only if it must or if that pays, and never by more devices than allowed."""

import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.outcome import Found
from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.files.importers.published_workloads import areal_hex_workload
from planner.methods.exact.method import search
from planner.problem.fleet import Fleet
from planner.problem.goal import Goal, Objective, Problem
from planner.problem.workload import Task
from planner.replan.migration import MigrationPolicy, migration
from planner.replan.moves import Lost, Use, num_moved, use_of, uses
from planner.replan.replanner import Replan, Replanner
from tests.support.planner.replanning import problem

MACHINES = {"num_a100": 4, "num_l40s": 4, "num_l4": 3}
REGIONS = {"east": "num_a100", "west": "num_l40s", "south": "num_l4"}
changes = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)


@cache
def running(eta: int) -> tuple[CostTables, Placement, float]:
    """A problem, its plan, and the plan's bound."""
    cost_tables = CostTables(problem(**MACHINES, eta=eta))
    found = search(cost_tables, seed=0, budget_s=20.0, now_s=time.perf_counter)
    assert isinstance(found, Found)
    assert found.best.bound is not None
    return cost_tables, found.best.placement, found.best.bound


def replanner(eta: int = 1, policy: MigrationPolicy | None = None) -> Replanner:
    cost_tables, placement, bound = running(eta)
    return Replanner(cost_tables, placement, now_s=time.perf_counter, policy=policy, bound=bound)


def without_home(fleet: Fleet, home: str) -> Fleet:
    return replace(
        fleet,
        regions=tuple(r for r in fleet.regions if r.name != home),
        links=tuple(x for x in fleet.links if home not in (x.src_region, x.dst_region)),
    )


def drawn(plan: Placement, eta: int, seed: int) -> tuple[Fleet, Lost]:
    """Machines gone or more, links of other rates; of what was in use on machines that are gone some part is lost."""
    rng = np.random.default_rng(seed)
    counts = {name: int(rng.integers(0, num + 2)) for name, num in MACHINES.items()}
    fleet = problem(**counts, eta=eta).fleet
    links = tuple(
        replace(link, bytes_per_s=link.bytes_per_s * float(rng.choice([0.01, 0.3, 1.0, 4.0]))) for link in fleet.links
    )
    left = {region: 8 * max(0, MACHINES[name] - counts[name]) for region, name in REGIONS.items()}
    lost: dict[str, dict[Use, int]] = {}
    for key, of_class in sorted(uses(plan).items()):
        region = key.split("/")[0]
        for use, held in sorted(of_class.items()):
            gone = int(rng.integers(0, min(left[region], held) // use.unit_gpus + 1)) * use.unit_gpus
            lost.setdefault(key, {})[use] = gone
            left[region] -= gone
    return replace(fleet, links=links), lost


@changes
@given(st.integers(0, 1 << 20), st.sampled_from([0, 1]), st.sampled_from([0.0, 0.05, 0.1, 0.3]))
def test_an_answer_is_a_placement_within_the_limit_or_says_that_nothing_else_runs(
    seed: int, eta: int, max_moved: float
) -> None:
    cost_tables, placement, _ = running(eta)
    fleet, lost = drawn(placement, eta, seed)
    planner = replanner(eta, MigrationPolicy(max_moved=max_moved))
    try:
        answer = planner.fleet_changed(fleet, lost)
    except LookupError:
        return
    after = CostTables(replace(cost_tables.problem, fleet=fleet))
    again = evaluate(after, answer.placement)
    assert isinstance(again, Evaluation)
    assert again.step_s == pytest.approx(answer.evaluation.step_s, rel=1e-9)
    assert answer.num_moved == num_moved(placement, answer.placement, lost)
    assert answer.num_moved == sum(move.num_gpus for move in answer.moves if move.after)
    assert answer.is_within_limit == (answer.num_moved <= max_moved * placement.num_gpus)
    stays = evaluate(after, placement)
    if isinstance(stays, Evaluation) and num_moved(placement, placement, lost) <= max_moved * placement.num_gpus:
        assert answer.is_within_limit
        assert answer.is_kept or answer.gain >= 1 + planner.policy.hysteresis - 1e-9
    if answer.bound is not None:
        assert answer.bound <= again.step_s * (1 + 1e-6)


def test_a_change_that_changes_nothing_keeps_the_plan_and_its_bound() -> None:
    answer = replanner().links_changed({})
    assert answer.is_kept
    assert answer.moves == ()
    assert answer.bound == running(1)[2]


def test_a_tenth_of_the_machines_lost_moves_a_tenth_at_most() -> None:
    for name in MACHINES:
        fewer = problem(**{**MACHINES, name: MACHINES[name] - 1}).fleet
        answer = replanner().fleet_changed(fewer)
        assert answer.is_within_limit
        assert answer.bound is not None


def test_a_mesh_whose_rest_lacks_memory_goes_on_with_smaller_micro_batches() -> None:
    """With 48 shards of the model two samples of 16k tokens fit on a device, with 32 shards one does."""
    cost_tables, plan = fully_sharded()
    train = plan.group_of(Task.ACTOR_TRAINING)
    smaller = replace(train, pools=(replace(train.pools[0], num_units=32),))
    assert isinstance(evaluate(cost_tables, replace(plan, groups=(plan.groups[0], smaller))), Violation)
    lost = {train.pools[0].device_class: {use_of(train.tasks, train.pools[0]): 8}}
    east, west = cost_tables.problem.fleet.regions
    fewer = replace(east, machines=tuple(replace(each, num_machines=each.num_machines - 1) for each in east.machines))
    planner = Replanner(cost_tables, plan, now_s=time.perf_counter, policy=MigrationPolicy(max_moved=0.05))
    answer = planner.fleet_changed(replace(cost_tables.problem.fleet, regions=(fewer, west)), lost)
    assert answer.is_within_limit
    assert answer.num_moved == 0
    (pool,) = answer.placement.group_of(Task.ACTOR_TRAINING).pools
    assert (pool.num_units, pool.layout(Task.ACTOR_TRAINING).micro_batch) == (32, 1)


def fully_sharded() -> tuple[CostTables, Placement]:
    """A model of 14B on all 48 devices of one region, generation on 192 of another."""
    base = problem(num_a100=6, num_l40s=24)
    regions = tuple(
        replace(region, fabric_bytes_per_s=50e9, machines=tuple(replace(m, gpu="H100-SXM") for m in region.machines))
        for region in base.fleet.regions
    )
    workload = areal_hex_workload("DeepSeek-R1-Distill-Qwen-14B").workload
    cost_tables = CostTables(replace(base, fleet=replace(base.fleet, regions=regions), workload=workload))
    east, west = sorted(cost_tables.classes)
    cut = Layout(tensor=1, sharding=Sharding.FULL, recompute=True, micro_batch=2)
    mesh = Pool(device_class=east, unit_gpus=1, num_units=48, layouts=((Task.ACTOR_TRAINING, cut),))
    makes = Pool(device_class=west, unit_gpus=4, num_units=48, layouts=((Task.GENERATION, Layout(tensor=4)),))
    return cost_tables, Placement(
        groups=(Group(tasks=(Task.GENERATION,), pools=(makes,)), Group(tasks=(Task.ACTOR_TRAINING,), pools=(mesh,)))
    )


def test_without_a_limit_an_answer_is_no_worse() -> None:
    fewer = problem(**{**MACHINES, "num_a100": 3}).fleet
    free, limited = (replanner(policy=MigrationPolicy(max_moved=most)).fleet_changed(fewer) for most in (1.0, 0.05))
    assert free.evaluation.step_s <= limited.evaluation.step_s * 1.005


def test_a_small_gain_is_not_worth_a_long_move() -> None:
    more = problem(**{**MACHINES, "num_l40s": 5}).fleet
    slow = MigrationPolicy(horizon_s=60.0, unit_start_s=50.0, hysteresis=0.1)
    assert replanner(policy=slow).fleet_changed(more).is_kept


def test_lost_devices_of_a_mesh_restart_the_trainer() -> None:
    cost_tables, placement, _ = running(1)
    mesh = placement.group_of(Task.ACTOR_TRAINING)
    key = mesh.pools[0].device_class
    use = next(use for use in uses(placement)[key] if use.tasks == mesh.tasks)
    policy = MigrationPolicy()
    assert migration(cost_tables, placement, placement, policy).restart_s == 0.0
    assert migration(cost_tables, placement, placement, policy, {key: {use: use.unit_gpus}}).restart_s > 0.0


def test_the_loss_of_the_trainers_region_has_an_answer_ready() -> None:
    planner = replanner()
    planner.prepare(budget_s=10.0)
    (home,) = planner.contingencies
    answer = planner.fleet_changed(without_home(running(1)[0].problem.fleet, home))
    assert answer.placement == planner.contingencies[home]
    assert not answer.is_within_limit


def test_the_loss_of_the_trainers_region_is_answered_unprepared() -> None:
    planner = replanner()
    home = "east"
    answer = planner.fleet_changed(without_home(running(1)[0].problem.fleet, home))
    assert not answer.is_within_limit


def test_a_plan_that_was_taken_is_what_the_next_change_starts_from() -> None:
    planner = replanner()
    fewer = problem(**{**MACHINES, "num_a100": 3}).fleet
    first = planner.fleet_changed(fewer)
    planner.take(first)
    again = planner.fleet_changed(fewer)
    assert again.is_kept
    assert again.num_moved == 0


def test_dollars_at_a_throughput_are_compared_as_dollars() -> None:
    base = problem(**MACHINES)
    regions = tuple(
        replace(region, machines=tuple(replace(m, usd_per_gpu_hour=1.0 + i) for m in region.machines))
        for i, region in enumerate(base.fleet.regions)
    )
    fastest = evaluate(running(1)[0], running(1)[1])
    assert isinstance(fastest, Evaluation)
    step_s = fastest.step_s
    case: Problem = replace(
        base,
        fleet=replace(base.fleet, regions=regions),
        goal=Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=2 * step_s),
    )
    cost_tables = CostTables(case)
    found = search(cost_tables, seed=0, budget_s=20.0, now_s=time.perf_counter)
    assert isinstance(found, Found)
    planner = Replanner(cost_tables, found.best.placement, now_s=time.perf_counter, bound=found.best.bound)
    fewer = replace(
        case.fleet,
        regions=tuple(
            replace(r, machines=tuple(replace(m, num_machines=m.num_machines - 1) for m in r.machines)) for r in regions
        ),
    )
    answer: Replan = planner.fleet_changed(fewer)
    assert answer.evaluation.step_s <= 2 * step_s * (1 + 1e-9)
    assert answer.bound is not None
    assert answer.bound <= answer.evaluation.usd_per_hour * (1 + 1e-6)
