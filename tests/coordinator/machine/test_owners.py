"""The coordinator's machine and regions whose owners refuse a job."""

from dataclasses import replace

import pytest

from coordinator.events import InventoryChanged, JobSubmitted, PlanFinished, StepRecorded, TaskReported
from coordinator.machine.reservations import device_counts
from coordinator.state import JobState
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.task import FailureCause, RunFiles, TaskReport, TaskState
from tests.support.coordinator.machine_run import Run, desired_tasks, infeasible, record, report, request

WHY = "the owner of the region refuses it: the operator ann may run nothing here (operators in /p.yaml is bob)"


def placed_job(replicate: str = "none") -> Run:
    run = Run()
    run.join("eu", "us")
    run.measure_all()
    run.do(JobSubmitted("r", "j", request(operator="ann", replicate=replicate)))
    run.place("j", "eu", "eu", "us")
    return run


def refused(task_id: str) -> TaskReport:
    return replace(report(task_id, TaskState.FAILED, WHY), cause=FailureCause.OWNER)


def test_regions_are_told_who_submitted_a_job() -> None:
    run = placed_job()
    assert {task.operator for region in ("eu", "us") for task in desired_tasks(run.state, region)} == {"ann"}


def test_a_refused_job_is_planned_elsewhere_until_the_region_has_news() -> None:
    run = placed_job()
    run.do(TaskReported(run.stamp("us"), refused("j/rollout-us-0")))
    job = run.job()
    assert (job.state, job.fork) == (JobState.PENDING, 1)
    assert job.avoided == {("us", "host-of-us-boot", None)}
    assert job.notice == f"planned again without host-of-us-boot in us: {WHY}"
    run.do(InventoryChanged(run.stamp("us"), run.state.regions["us"].hello.inventory))
    assert run.job().avoided == frozenset()


def test_a_job_that_every_owner_refuses_fails_with_the_reason() -> None:
    run = placed_job()
    run.do(TaskReported(run.stamp("eu"), refused("j/trainer")))
    run.do(PlanFinished("j", device_counts(run.state), infeasible("too small")))
    assert run.job().state is JobState.FAILED
    assert run.job().reason.endswith(WHY)


@pytest.mark.parametrize("has_replica", [True, False])
def test_a_trainer_that_its_owner_stops_goes_on_elsewhere_from_a_replica_if_there_is_one(has_replica: bool) -> None:
    run = placed_job("s3://bucket/replicas")
    files = RunFiles(run_dir="/runs/j", log="/runs/j/logs/trainer.log", checkpoint=Policy(0, 6))
    run.says("eu", "j/trainer", TaskState.RUNNING, files=files)
    run.do(StepRecorded(run.stamp("eu"), "j", record(7)))
    if has_replica:
        said = Record(kind=RecordKind.REPLICA, policy=Policy(0, 5), time_s=1.0, text="anything")
        run.do(StepRecorded(run.stamp("eu"), "j", said))
    run.do(TaskReported(run.stamp("eu"), replace(refused("j/trainer"), files=files)))
    job = run.job()
    if has_replica:
        assert (job.state, job.request.resume_policy) == (JobState.PENDING, Policy(0, 5))
        assert ("eu", "host-of-eu-boot", None) in job.avoided
        assert job.request.operator == "ann"
    else:
        assert job.state is JobState.FAILED
    assert WHY in (job.notice if has_replica else job.reason)
