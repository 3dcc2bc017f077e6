"""If a placement within the limit of moves is known to run on the changed fleet, the answer is within the limit."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Found
from planner.answer.placement import Group, Placement, Pool
from planner.cost.oracle import evaluate
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.method import search
from planner.problem.goal import STUDY, Goal
from planner.replan.migration import MigrationPolicy
from planner.replan.moves import Lost, num_moved, staying, use_of
from planner.replan.replanner import Replanner
from tests.planner.replan.test_meshes import drawn as drawn_mesh
from tests.planner.replan.test_replanner import MACHINES
from tests.planner.replan.test_replanner import drawn as drawn_change
from tests.support.planner.replanning import problem

TRIES = 60
CLOSE = 1 + 1e-6

pytestmark = pytest.mark.proofs


@cache
def running(eta: int) -> tuple[CostTables, Placement]:
    """A problem whose meshes may have two pools, and its plan."""
    cost_tables = CostTables(replace(problem(**MACHINES, eta=eta), limits=STUDY))
    found = search(cost_tables, seed=0, budget_s=20.0, now_s=time.perf_counter)
    assert isinstance(found, Found)
    return cost_tables, found.best.placement


def left(running: Group, lost: Lost, rng: np.random.Generator) -> Group | None:
    """What goes on of a group that does not train, with chance's additions."""
    stays = staying(Placement(groups=(running,)), lost)
    pools: list[Pool] = []
    for pool in running.pools:
        num = stays[pool.device_class][use_of(running.tasks, pool)] // pool.unit_gpus
        num = max(0, num + int(rng.integers(-1, 2)))
        pools += [replace(pool, num_units=num)] if num else []
    return Group(tasks=running.tasks, pools=tuple(pools)) if pools else None


def within(
    cost_tables: CostTables, plan: Placement, lost: Lost, most: float, home: str, rng: np.random.Generator
) -> Iterator[tuple[Placement, Evaluation]]:
    """Placements that run, drawn: of the plan's grouping and trainer's region, that move at most so many devices."""
    for _ in range(TRIES):
        groups = [
            drawn_mesh(cost_tables, rng, group.tasks, group) if group.trains else left(group, lost, rng)
            for group in plan.groups
        ]
        if None in groups:
            continue
        placement = Placement(groups=tuple(group for group in groups if group is not None))
        if num_moved(plan, placement, lost) > most or trainer_region_of(cost_tables, placement) != home:
            continue
        evaluation = evaluate(cost_tables, placement)
        if isinstance(evaluation, Evaluation):
            yield placement, evaluation


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 1 << 20), st.sampled_from([0, 1]), st.sampled_from([0.05, 0.1, 0.3]))
def test_a_deadline_that_a_drawn_placement_keeps_within_the_limit_is_kept_within_it(
    seed: int, eta: int, max_moved: float
) -> None:
    was, plan = running(eta)
    fleet, lost = drawn_change(plan, eta, seed)
    now = was.moved_to(replace(was.problem, fleet=fleet))
    rng, home, last = np.random.default_rng(seed), trainer_region_of(was, plan), evaluate(was, plan)
    assert isinstance(last, Evaluation)
    assume(home in {at.region.name for at in now.classes.values()})
    known = within(now, plan, lost, max_moved * plan.num_gpus, home, rng)
    fastest = min((evaluation.step_s for _, evaluation in known), default=None)
    assume(fastest is not None)
    assert fastest is not None
    deadline_s = max(last.step_s, fastest) * CLOSE
    cost_tables = was.moved_to(replace(was.problem, goal=Goal(max_step_s=deadline_s)))
    # the clock stands still: this is about what is looked for, not about how fast this machine is
    answer = Replanner(cost_tables, plan, now_s=lambda: 0.0, policy=MigrationPolicy(max_moved=max_moved)).fleet_changed(
        fleet, lost
    )
    assert answer.is_within_limit
    assert answer.evaluation.step_s <= deadline_s * (1 + 1e-9)
