"""Devices are matched by their machines: names of classes may change while the machines stay."""

from dataclasses import replace

from planner.answer.outcome import Found
from planner.answer.placement import Placement
from planner.devices.catalogue import architecture
from planner.explain.difference import difference
from planner.explain.same_machines import in_names_of
from planner.files.capabilities import load_capabilities
from planner.plan import Plan
from planner.problem.fleet import Machines
from planner.solve import Thinking, plan_job
from tests.support.planner.gpu_plan import FLEET, PROBLEM, gpu_plan
from tests.support.planner.hosts import host, mesh, tiny_job

EU = FLEET.regions[1].machines[0]


def job_plan(trainer: str) -> Plan:
    made = plan_job(
        mesh([host("a"), host("b"), host("c")]),
        tiny_job(regions={"trainer": trainer, "rollout": ["a", "b", "c"]}),
        architecture=architecture("builtin:qwen3-tiny"),
        model_bytes=None,
        capabilities=load_capabilities(),
        thinking=Thinking(budget_s=1e6, now_s=lambda: 0.0),
        method="exact",
    )
    assert isinstance(made, Found)
    assert made.best.placement is not None
    return made.best


def on(*machines: Machines) -> Plan:
    """The plan of PROBLEM with these machines in the region eu."""
    regions = (FLEET.regions[0], replace(FLEET.regions[1], machines=machines), FLEET.regions[2])
    made = gpu_plan()
    return replace(made, question=replace(PROBLEM, fleet=replace(FLEET, regions=regions)))


def generating_on(plan: Plan, key: str) -> Plan:
    assert plan.placement is not None
    first = plan.placement.groups[0]
    moved = replace(first, pools=(replace(first.pools[0], device_class=key),))
    return replace(plan, placement=replace(plan.placement, groups=(moved, *plan.placement.groups[1:])))


def generates_on(placement: Placement | None) -> str:
    assert placement is not None
    return placement.groups[0].pools[0].device_class


def test_only_the_trainer_moves_where_a_job_trains_in_another_region() -> None:
    before, after = job_plan("a"), job_plan("b")
    classes = [{p.device_class for g in plan.placement.groups for p in g.pools} for plan in (before, after)]  # type: ignore[union-attr]
    assert len(classes[0] ^ classes[1]) > 1, "the processes' classes have other names"
    changed = difference(before, after)
    assert changed.moved == 1
    assert {(task, before, after) for task, _, before, after in changed.devices} == {
        ("actor_training", 1, 0),
        ("actor_training", 0, 1),
    }
    assert difference(before, job_plan("a")).text() == "the two plans are the same"


def test_machines_of_another_number_are_told_apart_by_their_price() -> None:
    cheap, dear = replace(EU, usd_per_gpu_hour=1.0), replace(EU, usd_per_gpu_hour=3.0)
    before = generating_on(on(cheap, dear), "eu/L40S/4/spot#2")
    after = generating_on(on(dear), "eu/L40S/4/spot")
    assert generates_on(in_names_of(before, after)) == "eu/L40S/4/spot#2"
    assert difference(before, after).moved == 0
    assert difference(generating_on(before, "eu/L40S/4/spot"), after).moved == 8
    assert difference(after, before).moved == 0


def test_a_new_class_does_not_take_the_name_of_other_machines() -> None:
    cheap, dear = replace(EU, usd_per_gpu_hour=1.0), replace(EU, usd_per_gpu_hour=3.0)
    before = generating_on(on(dear), "eu/L40S/4/spot")
    after = generating_on(on(cheap, dear), "eu/L40S/4/spot")
    assert generates_on(in_names_of(before, after)) == "eu/L40S/4/spot#2"
    assert difference(before, after).moved == 8


def test_a_new_price_makes_no_new_machines() -> None:
    before = generating_on(on(EU), "eu/L40S/4/spot")
    after = generating_on(on(replace(EU, usd_per_gpu_hour=9.0)), "eu/L40S/4/spot")
    assert difference(before, after).moved == 0


def test_names_stay_where_fleets_are_equal_or_not_known() -> None:
    made = gpu_plan()
    assert in_names_of(made, made) == made.placement
    assert in_names_of(replace(made, question=None), made) == made.placement
    assert in_names_of(made, replace(made, placement=None)) is None
