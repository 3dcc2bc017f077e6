from dataclasses import replace

import pytest

from planner.answer.placement import Group, Layout, Placement, Pool
from planner.explain.difference import difference
from planner.plan import Plan
from planner.plan_of_placement import plan_of
from planner.problem.workload import Task
from tests.support.planner.gpu_plan import FLEET, PLACEMENT, PROBLEM, estimate, gpu_plan
from tests.support.planner.static_plan import PLAN


def test_a_plan_does_not_differ_from_itself() -> None:
    for made in (PLAN, gpu_plan()):
        found = difference(made, made)
        assert (found.workers, found.devices) == ((), ())
        assert found.text() == "the two plans are the same"


def test_devices_that_move_are_counted() -> None:
    (pool,) = PLACEMENT.groups[0].pools
    fewer = replace(PLACEMENT.groups[0], pools=(replace(pool, num_units=6),))
    cost_tables, found = estimate(placement=Placement(groups=(fewer, *PLACEMENT.groups[1:])))
    changed = difference(gpu_plan(), plan_of(cost_tables, found, method="hetrl", seed=1))
    assert changed.devices == (("generation", "eu/L40S/4/spot", 8, 6),)
    assert changed.workers == (("rollout", "eu", 8, 6),)
    assert changed.moved == changed.moved_fraction == 0, "devices that stop do not move"
    text = changed.text()
    assert "generation tensor 1 (32 sequences each)  eu/L40S/4/spot       8      6" in text
    assert changed.layouts == (("generation tensor 1 (32 sequences each)", "eu/L40S/4/spot", 8, 6),)
    assert "method" in text
    assert changed.to_tree()["devices"] == [
        {"task": "generation", "device_class": "eu/L40S/4/spot", "before": 8, "after": 6}
    ]


def test_plans_without_placements_differ_by_their_workers() -> None:
    other = replace(PLAN, assignments=PLAN.assignments[:2], method="auto")
    found = difference(PLAN, other)
    assert found.workers == (("rollout", "bbb", 1, 0),)
    assert found.moved_fraction is None
    assert "rollout  bbb" in found.text()


def with_generation(pool: Pool) -> Plan:
    cost_tables, found = estimate(placement=Placement(groups=(group(pool), *PLACEMENT.groups[1:])))
    return plan_of(cost_tables, found, method="exact", seed=7)


def group(pool: Pool) -> Group:
    return replace(PLACEMENT.groups[0], pools=(pool,))


def test_another_layout_on_the_same_devices_is_a_change_that_moves_them() -> None:
    (pool,) = PLACEMENT.groups[0].pools
    cut = replace(pool, unit_gpus=2, num_units=4, layouts=((Task.GENERATION, Layout(tensor=2, batch=32)),))
    changed = difference(gpu_plan(), with_generation(cut))
    assert changed.devices == ()
    assert changed.layouts == (
        ("generation tensor 1 (32 sequences each)", "eu/L40S/4/spot", 8, 0),
        ("generation tensor 2 (32 sequences each)", "eu/L40S/4/spot", 0, 8),
    )
    assert changed.moved == 8
    assert changed.moved_fraction == pytest.approx(8 / 24)
    assert "moved: 8 devices start another use (33.3 % of the 24 in use before)" in changed.text()
    fewer = replace(pool, layouts=((Task.GENERATION, Layout(tensor=1, batch=16)),))
    changed = difference(gpu_plan(), with_generation(fewer))
    assert changed.text() != "the two plans are the same"
    assert changed.moved == 0, "it changes in place"


def test_plans_of_different_questions_are_called_so() -> None:
    cheap = tuple(
        replace(r, machines=tuple(replace(m, usd_per_gpu_hour=None) for m in r.machines)) for r in FLEET.regions
    )
    free = replace(FLEET, regions=cheap, links=tuple(replace(link, usd_per_gbyte=0.0) for link in FLEET.links))
    ruled = gpu_plan(replace(PROBLEM, rules=replace(PROBLEM.rules, max_regions=2)))
    assert difference(gpu_plan(), ruled).text().startswith("the plans were made under different rules\n")
    cost_tables, found = estimate(replace(PROBLEM, fleet=free))
    changed = difference(gpu_plan(), plan_of(cost_tables, found, method="exact", seed=7))
    assert changed.questions == ("fleet",)
    assert changed.to_tree()["different_questions"] == ["fleet"]
    assert changed.text().startswith("the plans are of different fleets: their numbers do not compare\n")
    assert {name: after for name, _, after in changed.facts}["dollars an hour"] == "-"


def test_unlike_workers_of_a_region_are_counted_together() -> None:
    def plan(*numbers: int) -> Plan:
        rows = [{"task": "rollout", "region": "a", "num_workers": n, "device": f"t{n}"} for n in numbers]
        trainer = {"task": "trainer", "region": "a", "num_workers": 1}
        tree = {"schema": "periplus.plan/1", "method": "by hand", "trainer_region": "a"}
        return Plan.from_tree(tree | {"assignments": [trainer, *rows]}, "plan")

    assert difference(plan(2, 3), plan(3)).workers == (("rollout", "a", 5, 3),)
    assert difference(plan(2, 3), plan(5)).workers == ()
