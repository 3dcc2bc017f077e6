from dataclasses import replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent
from planner.answer.placement import Group, Layout, Placement, Pool
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.devices.catalogue import architecture
from planner.files.capabilities import load_capabilities
from planner.jobs.hosts import problems
from planner.jobs.job_workload import workload_of_job
from planner.jobs.needs import Needs
from planner.jobs.spare_workers import polished
from planner.problem.fleet import Fleet
from planner.problem.workload import Task
from tests.support.planner.hosts import NEEDS, host, mesh, tiny_job

WORKLOAD = workload_of_job(tiny_job(), architecture("builtin:qwen3-tiny"))


def one_worker(fleet: Fleet, needs: Needs, home: str, region: str) -> tuple[CostTables, Incumbent]:
    problem = dict(problems(fleet, needs, WORKLOAD, load_capabilities().limits))[home]
    cost_tables = CostTables(problem)
    keys = {at.region.name: at.key for at in cost_tables.classes.values()}
    pools = [
        Pool(device_class=keys[name], unit_gpus=1, num_units=1, layouts=((task, Layout(tensor=1)),))
        for task, name in ((Task.GENERATION, region), (Task.ACTOR_TRAINING, home))
    ]
    groups = tuple(Group(tasks=(pool.layouts[0][0],), pools=(pool,)) for pool in pools)
    placement = Placement(groups=groups)
    evaluation = evaluate(cost_tables, placement)
    assert isinstance(evaluation, Evaluation), evaluation
    return cost_tables, Incumbent(placement=placement, evaluation=evaluation, bound=None, elapsed_s=0.0)


def workers(cost_tables: CostTables, placement: Placement) -> dict[str, int]:
    pools = placement.group_of(Task.GENERATION).pools
    return {cost_tables.classes[pool.device_class].region.name: pool.num_units for pool in pools}


def test_every_worker_that_costs_no_time_is_taken() -> None:
    cost_tables, found = one_worker(mesh(map(host, "abc")), NEEDS, "a", "b")
    better = polished(cost_tables, found, NEEDS)
    assert workers(cost_tables, better.placement) == {"a": 2, "b": 2, "c": 2}
    assert better.evaluation.step_s <= found.evaluation.step_s
    assert evaluate(cost_tables, better.placement) == better.evaluation


def test_a_region_that_would_make_the_step_longer_stays_out() -> None:
    fleet = mesh(map(host, "abc"))
    far = replace(
        fleet, links=tuple(replace(k, rtt_s=1e3) if "c" in (k.src_region, k.dst_region) else k for k in fleet.links)
    )
    cost_tables, found = one_worker(far, NEEDS, "a", "a")
    assert workers(cost_tables, polished(cost_tables, found, NEEDS).placement) == {"a": 2, "b": 2}


def test_the_number_of_regions_is_kept() -> None:
    needs = replace(NEEDS, max_regions=2)
    cost_tables, found = one_worker(mesh(map(host, "abc")), needs, "a", "b")
    assert workers(cost_tables, polished(cost_tables, found, needs).placement) == {"a": 2, "b": 2}
