"""Memory of a machine: what the processes of one job were planned to take is not there for the next job."""

import json
from dataclasses import replace
from pathlib import Path

from coordinator.app import plan_request
from coordinator.events import JobSubmitted, PlanFinished, RegionJoined, RunPlanner
from coordinator.machine.reservations import device_counts, free_memory
from coordinator.planning import fleet_of, planned
from coordinator.state import JobRequest, JobState, PlacedProcess, PlacedProcesses
from periplus.values.machine import DeviceCount
from periplus.values.task import Role, TaskState
from tests.support.coordinator.machine_run import SETTINGS, Run, hello, infeasible, request
from tests.support.coordinator.machines import inventory, machine
from tests.support.tiny_job import tiny_job

GB = 10**9
HOST = "host-of-eu-boot"


def shared_cores(memory_bytes: int = 8 * GB, jobs_per_region: int = 3, groups: int = 2) -> Run:
    """A region `eu` whose groups of cores several jobs may share."""
    run = Run(replace(SETTINGS, jobs_per_region=jobs_per_region))
    own = machine(HOST, groups=groups, memory_bytes=memory_bytes)
    run.do(RegionJoined(replace(hello("eu"), inventory=inventory(own)), 1))
    return run


def taking(trainer: int, worker: int) -> PlacedProcesses:
    processes = (
        PlacedProcess(role=Role.TRAINER, region="eu", memory_bytes=trainer),
        PlacedProcess(role=Role.ROLLOUT, region="eu", memory_bytes=worker),
    )
    return PlacedProcesses(processes=processes, plan_json="{}")


def submit(run: Run, job_id: str, trainer: int = 3 * GB, worker: int = 2 * GB) -> None:
    run.do(JobSubmitted(job_id, job_id, request()))
    run.do(PlanFinished(job_id, device_counts(run.state), taking(trainer, worker)))


def test_the_memory_of_a_placed_job_is_not_offered_to_the_next_one() -> None:
    run = shared_cores()
    submit(run, "j")
    assert run.job("j").state is JobState.PLANNED
    effects = run.do(JobSubmitted("k", "k", request()))
    assert RunPlanner("k", {"eu": DeviceCount(2, 2, 3 * GB)}) in effects
    assert fleet_of(run.state, frozenset({"eu"})).regions[0].memory_bytes == 3 * GB


def test_a_job_that_finds_too_little_memory_waits_until_it_comes_back_and_says_who_has_it() -> None:
    run = shared_cores()
    submit(run, "j")
    run.says("eu", "j/trainer", TaskState.RUNNING)
    run.says("eu", "j/rollout-eu-0", TaskState.RUNNING)
    run.do(JobSubmitted("k", "k", request()))
    run.do(PlanFinished("k", device_counts(run.state), infeasible("memory for the trainer: 4.00 GB")))
    assert run.job("k").state is JobState.PENDING
    assert run.job("k").reason == (
        "does not fit what is free (memory for the trainer: 4.00 GB); waits for what is in use; memory: "
        f"{HOST} in eu has 3.00 GB of 8.00 GB free, j holds 5.00 GB"
    )
    # The devices are as free as before: only memory comes back, with the end of each process.
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    assert free_memory(run.state, "eu") == 6 * GB
    effects = run.says("eu", "j/rollout-eu-0", TaskState.STOPPED)
    assert RunPlanner("k", {"eu": DeviceCount(2, 2, 8 * GB)}) in effects


def test_a_plan_that_takes_memory_of_another_job_is_not_committed() -> None:
    run = shared_cores()
    run.do(JobSubmitted("j", "j", request()))
    run.do(JobSubmitted("k", "k", request()))
    before = device_counts(run.state)
    run.do(PlanFinished("j", before, taking(3 * GB, 2 * GB)))
    effects = run.do(PlanFinished("k", before, taking(3 * GB, 2 * GB)))
    assert run.job("k").state is JobState.PENDING
    assert RunPlanner("k", {"eu": DeviceCount(2, 2, 3 * GB)}) in effects


def test_a_job_that_has_the_machine_to_itself_may_take_more_than_there_is() -> None:
    run = shared_cores()
    submit(run, "j", trainer=9 * GB)
    assert run.job("j").state is JobState.PLANNED
    assert device_counts(run.state) == {"eu": DeviceCount(2, 2, 1)}, "0 would mean that memory is no limit"
    assert not any(isinstance(each, RunPlanner) for each in run.effects), "its own memory is no news to it"


def test_processes_of_an_earlier_coordinator_hold_all_memory() -> None:
    run = shared_cores()
    run.says("eu", "old/trainer", TaskState.RUNNING)
    assert free_memory(run.state, "eu") == 1
    run.says("eu", "old/trainer", TaskState.SUCCEEDED)
    assert free_memory(run.state, "eu") == 8 * GB


def test_a_job_that_has_not_started_is_planned_again_when_memory_comes_free() -> None:
    run = shared_cores()
    submit(run, "j")
    submit(run, "k", trainer=GB, worker=GB)
    assert run.job("k").state is JobState.PLANNED
    run.says("eu", "j/trainer", TaskState.FAILED)
    assert run.job("k").state is JobState.PENDING
    assert run.job("k").fork == 1


def test_a_machine_that_states_no_memory_has_no_limit() -> None:
    run = shared_cores(memory_bytes=0)
    submit(run, "j")
    submit(run, "k")
    assert [run.job(each).state for each in "jk"] == [JobState.PLANNED] * 2
    assert device_counts(run.state) == {"eu": DeviceCount(2, 2, 0)}


def test_the_planner_counts_what_running_jobs_were_planned_to_take(tmp_path: Path) -> None:
    """Two tiny jobs fit a machine of 2 GB one after the other, not together."""
    run = shared_cores(memory_bytes=2 * GB)
    wanted = JobRequest(name="job", min_regions=1, job_json=tiny_job(tmp_path).to_json())

    def plan(job_id: str) -> None:
        (order,) = [each for each in run.effects if isinstance(each, RunPlanner)]
        assert order.job_id == job_id
        run.do(planned(run.state, order, plan_request))

    run.do(JobSubmitted("j", "j", wanted))
    plan("j")
    assert run.job("j").state is JobState.PLANNED
    assert sum(status.process.memory_bytes for status in run.job("j").tasks.values()) > GB
    run.do(JobSubmitted("k", "k", wanted))
    plan("k")
    assert run.job("k").state is JobState.PENDING
    assert "memory for the trainer and the rollout workers: " in run.job("k").reason
    assert f"{HOST} in eu has " in run.job("k").reason
    run.says("eu", "j/trainer", TaskState.FAILED)
    plan("k")
    assert run.job("k").state is JobState.PLANNED


def test_a_plan_by_hand_waits_for_memory_too(tmp_path: Path) -> None:
    run = shared_cores()
    submit(run, "j")
    rows = [
        {"task": "trainer", "region": "eu", "num_workers": 1, "memory_bytes": 2_500_000_000},
        {"task": "rollout", "region": "eu", "num_workers": 1},
    ]
    by_hand = json.dumps(
        {"schema": "periplus.plan/1", "method": "by hand", "trainer_region": "eu", "assignments": rows}
    )
    wanted = JobRequest(name="k", min_regions=1, job_json=tiny_job(tmp_path).to_json(), plan_json=by_hand)
    run.do(JobSubmitted("k", "k", wanted))
    (order,) = [each for each in run.effects if isinstance(each, RunPlanner)]
    run.do(planned(run.state, order, plan_request))
    assert run.job("k").state is JobState.PENDING
    assert f"the plan takes 3.04 GB of the memory of {HOST} in eu, of which 3.00 GB are free" in run.job("k").reason
    run.says("eu", "j/trainer", TaskState.FAILED)
    (order,) = [each for each in run.effects if isinstance(each, RunPlanner)]
    run.do(planned(run.state, order, plan_request))
    assert run.job("k").state is JobState.PLANNED
