"""Plans with the figures of a short simulation, and the reasons for which a plan stays without them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.plan import Plan
from planner.simulate.network.links import NoRoute
from planner.simulate.run_record import Simulated
from planner.simulate.simulator import simulate
from planner.simulated_plan import simulated_plan
from tests.support.planner.gpu_plan import gpu_plan
from tests.support.planner.static_plan import PLAN as STATIC


def played(plan: Plan, budget_s: float = 100.0, now_s: Callable[[], float] = lambda: 0.0) -> Plan:
    return simulated_plan(plan, num_steps=3, seed=0, budget_s=budget_s, now_s=now_s)


def test_a_plan_gets_the_step_its_parts_and_its_regions() -> None:
    plan = gpu_plan()
    found = played(plan).simulated
    assert found is not None
    assert found.step_s is not None
    assert found.training_s is not None
    assert plan.evaluation is not None
    assert found.step_s == pytest.approx(plan.evaluation.step_s, rel=0.3)
    assert found.waiting_s == pytest.approx(max(0.0, found.step_s - found.training_s), abs=1e-9)
    assert [each.region for each in found.regions] == [each.region for each in plan.evaluation.regions]
    assert all(0 < each.generation_s <= found.step_s for each in found.regions)
    assert Plan.from_json(played(plan).to_json()).simulated == found


def test_a_plan_without_a_placement_or_whose_steps_take_too_long_stays_as_it_is() -> None:
    assert played(STATIC) is STATIC
    plan, ticks = gpu_plan(), iter(range(100))
    assert played(plan, budget_s=1.0, now_s=lambda: float(next(ticks))) is plan, "time is over after the first step"
    assert played(plan, budget_s=1e-6) is plan, "a step alone would take longer"


def test_a_run_that_stalls_or_cannot_be_made_leaves_the_plan_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = gpu_plan()

    def stalls(*arguments: object, **options: object) -> Simulated:
        return replace(simulate(*arguments, **options), stalled="no event is left")  # type: ignore[arg-type]

    def has_no_route(*_: object, **__: object) -> Simulated:
        raise NoRoute("none")

    for broken in (stalls, has_no_route):
        monkeypatch.setattr("planner.simulated_plan.simulate", broken)
        assert played(plan) is plan
