"""Every method chooses the region whose host has enough memory, whichever of two equal regions it is."""

from dataclasses import replace

import pytest

from bench.planner_cases.solving import METHODS
from planner.answer.outcome import Found
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import Problem
from planner.problem.workload import Task
from tests.support.planner.cost import fleet, machines, problem, region, workload
from tests.support.planner.searches import still

SMALL, LARGE = 10**6, 512 * 10**9
METHODS_FOR_ALL = ("exact", "random", "genetic", "verl", "streamrl", "hetrl", "areal_hex")


def asked(x_bytes: int, y_bytes: int) -> Problem:
    """Two regions of two devices, alike but for their hosts."""
    x, y = (replace(region(name, machines()), memory_bytes=of) for name, of in (("x", x_bytes), ("y", y_bytes)))
    return problem(fleet(x, y), workload((Task.GENERATION, Task.ACTOR_TRAINING)))


@pytest.mark.parametrize("method", METHODS_FOR_ALL)
def test_a_small_host_in_one_region_does_not_stand_for_all(method: str) -> None:
    best = {}
    for name, hosts in (("y", (SMALL, LARGE)), ("x", (LARGE, SMALL))):
        clock = iter(range(10**6))
        now_s = still if method in ("verl", "streamrl") else lambda clock=clock: next(clock) * 1e-3
        found = METHODS[method](CostTables(asked(*hosts)), seed=0, budget_s=0.3, now_s=now_s)
        assert isinstance(found, Found)
        generating = found.best.placement.group_of(Task.GENERATION)
        assert {pool.device_class.split("/")[0] for pool in generating.pools} == {name}
        best[name] = found.best.evaluation.step_s
    if method not in ("random", "genetic"):
        assert best["x"] == pytest.approx(best["y"], rel=0.01)
