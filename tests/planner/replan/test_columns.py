"""The columns of a re-plan are in the plan space, and their costs are the oracle's."""

import time
from dataclasses import replace
from functools import cache

import pytest

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Found
from planner.answer.placement import Placement
from planner.cost.candidates.columns import mesh_columns
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.method import search
from planner.problem.goal import STUDY
from planner.replan.columns import units_for
from planner.replan.meshes import repairs
from tests.support.planner.replanning import problem


@cache
def two_pools(eta: int) -> tuple[CostTables, Placement]:
    """A plan whose mesh has two pools."""
    case = replace(problem(num_a100=3, num_l40s=0, num_l4=2, eta=eta), limits=STUDY)
    cost_tables = CostTables(case)
    found = search(cost_tables, seed=0, budget_s=20.0, now_s=time.perf_counter)
    assert isinstance(found, Found)
    mesh = next(group for group in found.best.placement.groups if group.trains)
    pairs = mesh_columns(cost_tables, mesh.tasks, blocks=2)
    pair = min(pairs, key=lambda column: sum(column.times.values())).group
    others = [group for group in found.best.placement.groups if group.tasks != mesh.tasks]
    return cost_tables, replace(found.best.placement, groups=(*others, pair))


@pytest.mark.parametrize("eta", [0, 1])
def test_repairs_of_a_mesh_cost_what_the_oracle_says(eta: int) -> None:
    cost_tables, placement = two_pools(eta)
    mesh = placement.groups[-1]
    others = placement.groups[:-1]
    columns = repairs(cost_tables, mesh)
    assert columns[0].group == mesh
    assert len({column.group for column in columns}) == len(columns)
    assert any(len(column.group.pools) == 1 for column in columns)
    checked = 0
    for column in columns:
        estimate = evaluate(cost_tables, Placement(groups=(*others, column.group)))
        if isinstance(estimate, Evaluation):
            checked += 1
            assert {task: s for task, s in estimate.task_s if task in mesh.tasks} == pytest.approx(dict(column.times))
    assert checked


def test_units_of_the_running_plan_stay_to_be_chosen_whoever_beats_them() -> None:
    cost_tables, placement = two_pools(1)
    for group in (group for group in placement.groups if not group.trains):
        pool = group.pools[0]
        odd = replace(group, pools=(replace(pool, unit_gpus=pool.unit_gpus),))
        listed = {
            (each.unit.device_class, each.unit.unit_gpus, each.unit.layouts) for each in units_for(cost_tables, odd)
        }
        assert (pool.device_class, pool.unit_gpus, pool.layouts) in listed


def test_a_class_that_is_gone_offers_nothing() -> None:
    cost_tables, placement = two_pools(1)
    fewer = cost_tables.moved_to(replace(cost_tables.problem, fleet=problem(num_a100=3, num_l40s=0).fleet))
    columns = repairs(fewer, placement.groups[-1])
    assert all(pool.device_class in fewer.classes for column in columns for pool in column.group.pools)
