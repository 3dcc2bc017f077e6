import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from coordinator.events import PlannerFailed, RunPlanner
from coordinator.planning import fleet_of, placement, planned
from coordinator.state import (
    Hello,
    Job,
    JobRequest,
    MeasuredLink,
    PlacedProcesses,
    RegionState,
    Settings,
    State,
)
from periplus.errors import ConfigError
from periplus.values.machine import DeviceCount
from planner.answer.outcome import BudgetExhausted, Found, Infeasible, RefutedBound
from planner.plan import Plan, PlanOutcome
from planner.plan_of_placement import without_question
from planner.problem.fleet import FABRIC_LATENCY_S, ONE_HOST_BYTES_PER_S, Fleet
from tests.support.coordinator.machine_run import free, infeasible
from tests.support.coordinator.machines import inventory, machine
from tests.support.planner.gpu_plan import gpu_plan
from tests.support.planner.static_plan import PLAN


def region(name: str) -> RegionState:
    offered = inventory(machine())
    hello = Hello(region=name, boot_id="b", gateway_address=f"{name}:1", inventory=offered, agent_version="0")
    return RegionState(hello=hello, epoch=1, connected=True, last_seen_s=0.0)


STATE = State(
    settings=Settings(silent_after_s=1, probe_payload_bytes=1, probe_timeout_s=1, probe_retry_s=1),
    authority_key="ab",
    regions={name: region(name) for name in "cab"},
    links={
        ("a", "b"): MeasuredLink(rtt_s=0.1, throughput_bits_per_s=8e8, measured_at_s=0.0),
        ("a", "c"): MeasuredLink(rtt_s=0.2, throughput_bits_per_s=8e7, measured_at_s=0.0),
    },
    jobs={"j": Job(job_id="j", request=JobRequest(name="j", min_regions=1, job_json="{}"), fork=0, submitted_at_s=0.0)},
)


def test_the_planner_sees_the_hosts_of_the_free_regions_and_what_was_measured_among_them() -> None:
    fleet = fleet_of(STATE, frozenset({"a", "b"}))
    assert [(r.name, r.num_cores, r.memory_bytes, r.machines) for r in fleet.regions] == [
        ("a", 4, 8 << 30, ()),
        ("b", 4, 8 << 30, ()),
    ]
    (link,) = fleet.links
    assert (link.src_region, link.dst_region, link.rtt_s, link.bytes_per_s) == ("a", "b", 0.1, 1e8)


def test_the_planner_sees_the_free_accelerators_of_types_that_it_knows(caplog: pytest.LogCaptureFixture) -> None:
    cards = machine(accelerators=3).devices
    odd = replace(cards[0], model="Abacus 9")
    mixed = replace(machine(), devices=(odd, cards[1], replace(cards[2], problem="lost")))
    known = replace(STATE.regions["a"].hello, inventory=inventory(mixed))
    state = replace(STATE, regions={**STATE.regions, "a": replace(STATE.regions["a"], hello=known)})
    fleet = fleet_of(state, frozenset({"a", "b"}))
    assert [[(each.gpu, each.num_gpus) for each in region.machines] for region in fleet.regions] == [[("L4", 1)], []]
    assert fleet.gpu_types["L4"].memory_bytes <= 24e9
    assert "accelerator_unknown" in caplog.text


def test_a_plan_becomes_a_placement_that_travels_without_its_question() -> None:
    made = gpu_plan()
    found = placement(Found(best=made))
    assert isinstance(found, PlacedProcesses)
    assert [(each.role, each.region) for each in found.processes] == [("trainer", "us"), *[("rollout", "eu")] * 8]
    assert json.loads(found.plan_json) == without_question(made).to_tree()


def test_an_incumbent_is_as_good_as_a_plan_and_none_is_a_failure() -> None:
    assert placement(BudgetExhausted(best=PLAN, bound=None)) == placement(Found(best=PLAN))
    assert isinstance(placement(BudgetExhausted(best=None, bound=None)), PlannerFailed)
    assert placement(infeasible("x")) == infeasible("x")


def test_what_the_planner_raises_is_a_failure_of_this_job_alone() -> None:
    def ask(fleet: Fleet, devices: Mapping[str, DeviceCount], wanted: JobRequest) -> PlanOutcome:
        raise ConfigError("the checkpoint is damaged")

    answer = planned(STATE, RunPlanner("j", free("a")), ask)
    assert answer.outcome == PlannerFailed("the checkpoint is damaged")
    assert (answer.job_id, answer.free) == ("j", free("a"))


def test_a_region_where_a_job_cannot_start_is_left_out_of_its_plans() -> None:
    seen = []

    def ask(fleet: Fleet, devices: Mapping[str, DeviceCount], wanted: JobRequest) -> PlanOutcome:
        seen.append(([each.name for each in fleet.regions], [*devices]))
        return Found(best=PLAN)

    avoided = frozenset({("a", STATE.regions["a"].hello.inventory.own.name, None)})
    state = replace(STATE, jobs={"j": replace(STATE.jobs["j"], avoided=avoided)})
    assert planned(state, RunPlanner("j", free("a", "b")), ask).free == free("a", "b")
    nowhere = planned(state, RunPlanner("j", free("a")), ask).outcome
    assert isinstance(nowhere, Infeasible)
    assert nowhere.conflict == "the job cannot start in any region that is free"
    assert seen == [(["b"], ["b"])]


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, method="auto")])
def test_the_answer_says_on_which_devices_it_was_made(plan: Plan) -> None:
    answer = planned(STATE, RunPlanner("j", free("a", "b")), lambda *_: Found(best=plan))
    assert answer.free == free("a", "b")
    assert isinstance(answer.outcome, PlacedProcesses)


def test_a_bound_that_a_placement_refutes_is_logged_with_its_method(caplog: pytest.LogCaptureFixture) -> None:
    wrong = RefutedBound(method="exact", bound=9.0, value=7.0)
    answer = planned(
        STATE, RunPlanner("j", free("a")), lambda *_: BudgetExhausted(best=PLAN, bound=None, refuted=wrong)
    )
    assert isinstance(answer.outcome, PlacedProcesses)
    (record,) = [each for each in caplog.records if each.message == "bound_refuted"]
    assert record.levelname == "WARNING"
    assert vars(record)["fields"] == {"job": "j", "method": "exact", "bound": 9.0, "value": 7.0}


def test_a_plans_fleet_has_the_network_that_was_measured_between_the_machines_of_a_region() -> None:
    known = replace(inventory(machine(), machine("h2")), fabric_bytes_per_s=3e9, fabric_latency_s=1e-4)
    hello = replace(STATE.regions["a"].hello, inventory=known)
    state = replace(STATE, regions={**STATE.regions, "a": replace(STATE.regions["a"], hello=hello)})
    seen: list[tuple[str, float, float]] = []

    def ask(fleet: Fleet, devices: Mapping[str, DeviceCount], wanted: JobRequest) -> PlanOutcome:
        seen.extend((each.name, each.fabric_bytes_per_s, each.fabric_latency_s) for each in fleet.regions)
        return Found(best=PLAN)

    planned(state, RunPlanner("j", free("a", "b")), ask)
    assert seen == [("a", 3e9, 1e-4), ("b", ONE_HOST_BYTES_PER_S, FABRIC_LATENCY_S)]
