"""Running jobs get rollout workers in regions that come later."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from coordinator.demo.job import example_file
from coordinator.events import (
    FleetEvent,
    InventoryChanged,
    JobCancelled,
    JobSubmitted,
    PlanFinished,
    PlannerFailed,
    RegionOrder,
    RegionOrdered,
    RunPlanner,
)
from coordinator.machine.reservations import device_counts
from coordinator.planning import planned
from coordinator.state import JobRequest, JobState, PlacedProcesses
from periplus.job.job_file import load_job
from periplus.values.machine import DeviceCount
from periplus.values.task import TaskState
from planner.answer.outcome import Found, Infeasible
from planner.plan import Assignment, Plan, PlanOutcome, TaskKind
from planner.problem.fleet import Fleet
from tests.support.coordinator.machine_run import Run, infeasible, placed, request
from tests.support.coordinator.machines import inventory, machine


def running(**fields: Any) -> Run:
    """A job that runs in eu and us."""
    run = Run()
    run.join("eu", "us")
    run.measure_all()
    run.do(JobSubmitted("r", "j", request(**fields)))
    run.place("j", "eu", "eu", "us")
    run.says("eu", "j/trainer", TaskState.RUNNING)
    assert run.job().state is JobState.RUNNING
    return run


def asked(run: Run) -> RunPlanner | None:
    """The order to the planner of the next tick, if any."""
    return next((each for each in run.wait(1) if isinstance(each, RunPlanner)), None)


def workers(*regions: str) -> PlacedProcesses:
    return PlacedProcesses(processes=placed("eu", *regions).processes[1:], plan_json='{"grown": 1}')


def test_a_region_that_joins_gets_workers_of_the_job_that_runs() -> None:
    run = running()
    assert asked(run) is None, "there is no new region"
    run.join("ap")
    assert asked(run) is None, "its links are not measured"
    run.measure_all()
    order = asked(run)
    assert order is not None
    assert (order.job_id, order.new_regions, set(order.free)) == ("j", frozenset({"ap"}), {"ap", "eu", "us"})
    assert asked(run) is None, "the planner is at work"
    effects = run.do(PlanFinished("j", order.free, workers("ap"), order.new_regions))
    assert run.desired("ap") == {"j/rollout-ap-0": False}
    assert [each.text for each in effects if isinstance(each, FleetEvent)] == ["1 more workers, in ap"]
    assert run.job().plan_json == '{"grown": 1}'
    assert set(device_counts(run.state)) == set(), "its device is held"
    assert asked(run) is None
    run.says("ap", "j/rollout-ap-0", TaskState.RUNNING)
    assert (run.job().state, run.job().fork) == (JobState.RUNNING, 0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (workers(), "the planner finds that it would not help"),
        (infeasible("it is too slow"), "it is too slow"),
        (PlannerFailed("bug"), "the planner failed: bug"),
        (workers("ap", "ap", "us"), "the plan does not fit the devices and the memory that it was made for"),
    ],
)
def test_a_region_that_gets_no_worker_is_not_asked_about_again_and_it_is_said_why(
    answer: PlacedProcesses | Infeasible | PlannerFailed, why: str
) -> None:
    run = running()
    run.join("ap")
    run.measure_all()
    order = asked(run)
    assert order is not None
    effects = run.do(PlanFinished("j", order.free, answer, order.new_regions))
    assert [each.text for each in effects if isinstance(each, FleetEvent)] == [f"no worker in ap: {why}"]
    assert run.desired("ap") == {}
    assert run.job().state is JobState.RUNNING
    assert asked(run) is None


def test_a_region_that_was_cordoned_is_used_once_it_is_open() -> None:
    run = running()
    run.join("ap")
    run.do(RegionOrdered("ap", RegionOrder.CORDON))
    run.measure_all()
    assert asked(run) is None
    run.do(RegionOrdered("ap", RegionOrder.UNCORDON))
    assert asked(run) is not None


def test_jobs_that_wait_come_first() -> None:
    run = running()
    run.do(JobSubmitted("s", "k", request(2)))
    run.join("ap")
    run.measure_all()
    assert asked(run) is None, "the other job waits for a second region"
    run.do(JobCancelled("k"))
    assert asked(run) is not None


def test_a_job_whose_rules_leave_the_region_out_does_not_grow() -> None:
    for rules in ({"forbidden_regions": ("ap",)}, {"trainer_region": "eu", "rollout_regions": ("eu", "us")}):
        run = running(**rules)
        run.join("ap")
        run.measure_all()
        assert asked(run) is None


def test_what_was_taken_meanwhile_or_is_there_already_changes_nothing() -> None:
    run = running()
    run.join("ap")
    run.measure_all()
    order = asked(run)
    assert order is not None
    run.do(JobSubmitted("s", "k", request(1)))
    assert run.state.planning == "j", "one plan at a time"
    run.do(PlanFinished("j", order.free, workers("ap"), order.new_regions))
    assert run.job("k").state is JobState.PENDING
    run.do(JobCancelled("j"))
    run.do(PlanFinished("j", order.free, workers("ap"), order.new_regions))
    assert list(run.desired("ap")) == ["j/rollout-ap-0"]


def plan(*rollouts: str) -> Plan:
    rows = (
        Assignment(task=TaskKind.TRAINER, region="eu", num_workers=1),
        *(Assignment(task=TaskKind.ROLLOUT, region=each, num_workers=1) for each in rollouts),
    )
    return Plan(method="static", trainer_region="eu", assignments=rows)


@pytest.mark.parametrize(("most", "expected"), [(None, ["ap"]), (2, [])])
def test_the_planner_is_asked_for_the_whole_job_with_its_trainer_where_it_is(
    most: int | None, expected: list[str]
) -> None:
    rules = ["regions.min=2", *([f"regions.max={most}"] if most else [])]
    run = running(job_json=load_job(example_file(), rules).to_json())
    job = run.job()
    assert job.placement is not None
    placement = replace(job.placement, plan_json=plan("eu", "us").to_json())
    run.state = replace(run.state, jobs={"j": replace(job, placement=placement)})
    run.join("ap")
    run.measure_all()
    order = asked(run)
    assert order is not None

    def ask(fleet: Fleet, free: Mapping[str, DeviceCount], wanted: JobRequest) -> PlanOutcome:
        assert [region.name for region in fleet.regions] == ["ap", "eu", "us"]
        assert {name: count.free for name, count in free.items()} == {"ap": 1, "eu": 1, "us": 1}
        sent = json.loads(wanted.job_json)["regions"]
        assert (sent["trainer"], sent["min"], sent.get("max")) == ("eu", 1, most)
        return Found(best=plan("ap", "us"))

    answer = planned(run.state, order, ask)
    assert answer.new_regions == {"ap"}
    assert isinstance(answer.outcome, PlacedProcesses)
    assert [each.region for each in answer.outcome.processes] == expected
    merged = Plan.from_json(answer.outcome.plan_json)
    assert [each.region for each in merged.assignments] == ["eu", "eu", "us", *expected]
    run.do(answer)
    assert bool(run.desired("ap")) == bool(expected)


def test_a_machine_that_comes_to_a_region_gets_workers_beside_those_that_run_there() -> None:
    run = running(job_json=load_job(example_file(), ["regions.min=2"]).to_json())
    job = run.job()
    assert job.placement is not None
    placement = replace(job.placement, plan_json=plan("eu", "us").to_json())
    run.state = replace(run.state, jobs={"j": replace(job, placement=placement)})
    own = run.state.regions["us"].hello.inventory.own
    run.do(InventoryChanged(run.stamp("us"), inventory(own, machine("node-2", groups=2))))
    order = asked(run)
    assert order is not None
    assert order.new_regions == {"us"}
    more = replace(plan("eu", "us"), assignments=(*plan("eu").assignments, *plan("us", "us", "us").assignments[1:]))
    answer = planned(run.state, order, lambda *_: Found(best=more))
    run.do(answer)
    assert {task: run.job().tasks[task].machine for task in run.desired("us")} == {
        "j/rollout-us-0": own.name,
        "j/rollout-us-1": "node-2",
        "j/rollout-us-2": "node-2",
    }
    merged = Plan.from_json(run.job().plan_json)
    assert [(each.region, each.num_workers) for each in merged.assignments] == [
        ("eu", 1),
        ("eu", 1),
        ("us", 1),
        ("us", 1),
        ("us", 1),
    ]
    assert asked(run) is None
