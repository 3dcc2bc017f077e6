"""The coordinator's machine and regions whose agents cannot open the stores of a job."""

from dataclasses import replace

from coordinator.doing import doing
from coordinator.events import (
    FleetEvent,
    JobSubmitted,
    PlanFinished,
    RegionJoined,
    RegionLeft,
    StepRecorded,
    TaskReported,
)
from coordinator.machine.reservations import device_counts
from coordinator.state import JobState
from periplus.values.task import FailureCause, TaskReport, TaskState
from tests.support.coordinator.machine_run import Run, hello, infeasible, record, report, request

WHY = "cannot use /state/spools/j: Read-only file system; repair the disk or its permissions"


def placed_job() -> Run:
    """A job with its trainer in eu, and a worker in each region, of which nothing has started."""
    run = Run()
    run.join("eu", "us")
    run.measure_all()
    run.do(JobSubmitted("r", "j", request()))
    run.place("j", "eu", "eu", "us")
    return run


def given_up(task_id: str) -> TaskReport:
    said = report(task_id, TaskState.FAILED, WHY)
    return replace(said, cause=FailureCause.STORAGE)


def test_a_job_says_why_its_tasks_cannot_start() -> None:
    run = placed_job()
    for task in ("j/trainer", "j/rollout-eu-0"):
        run.says("eu", task, TaskState.STARTING, WHY)
    assert run.job().state is JobState.STARTING
    assert doing(run.state, run.job(), run.now_s) == f"eu: {WHY}"
    run.says("eu", "j/trainer", TaskState.RUNNING)
    run.says("eu", "j/rollout-eu-0", TaskState.RUNNING)
    assert doing(run.state, run.job(), run.now_s) == ""
    run.says("us", "j/rollout-us-0", TaskState.RUNNING, "/state/spools/j: No space left on device")
    assert doing(run.state, run.job(), run.now_s) == "us: /state/spools/j: No space left on device"
    run.says("us", "j/rollout-us-0", TaskState.RUNNING)
    assert doing(run.state, run.job(), run.now_s) == ""
    run.says("us", "j/rollout-us-0", TaskState.FAILED, WHY)
    assert run.job().state is JobState.RUNNING
    assert doing(run.state, run.job(), run.now_s) == f"us: {WHY}"


def test_a_job_is_planned_again_without_a_region_that_cannot_open_its_stores() -> None:
    run = placed_job()
    run.do(TaskReported(run.stamp("us"), given_up("j/rollout-us-0")))
    job = run.job()
    assert (job.state, job.fork) == (JobState.PENDING, 1)
    assert job.avoided == {("us", "host-of-us-boot", None)}
    assert job.notice == f"planned again without host-of-us-boot in us: {WHY}"
    assert run.state.planning == "j"
    assert set(device_counts(run.state)) == {"eu", "us"}, "the region is free for other jobs"
    run.place("j", "eu", "eu")
    assert run.job().state is JobState.PLANNED
    assert run.desired("us") == {}


def test_a_job_without_another_region_fails_with_the_reason() -> None:
    run = placed_job()
    run.do(TaskReported(run.stamp("eu"), given_up("j/trainer")))
    run.do(PlanFinished("j", device_counts(run.state), infeasible("too small")))
    assert (run.job().state, run.job().reason) == (
        JobState.FAILED,
        f"infeasible: too small; planned again without host-of-eu-boot in eu: {WHY}",
    )


def test_a_region_whose_agent_has_started_again_may_be_used_again() -> None:
    run = placed_job()
    run.do(TaskReported(run.stamp("us"), given_up("j/rollout-us-0")))
    run.do(RegionLeft("us", 1))
    run.do(RegionJoined(hello("us", "second"), 1))
    assert run.job().avoided == frozenset()


def test_a_trainer_that_had_not_started_is_not_lost_with_its_agent() -> None:
    run = placed_job()
    run.says("eu", "j/trainer", TaskState.STARTING, WHY)
    run.do(RegionLeft("eu", 1))
    run.do(RegionJoined(hello("eu", "second"), 1))
    assert not run.job().ended
    assert run.desired("eu") == {"j/trainer": False, "j/rollout-eu-0": False}


def test_a_job_that_has_trained_ends_with_the_reason_if_its_trainers_stores_are_lost(run: Run) -> None:
    run.do(StepRecorded(run.stamp("eu"), "j", record(1)))
    run.do(TaskReported(run.stamp("eu"), given_up("j/trainer")))
    assert run.job().state is JobState.FAILED
    assert run.job().reason.startswith(f"the trainer in eu failed: {WHY}; ")


def test_a_job_that_has_trained_goes_on_without_a_worker_whose_stores_are_lost(run: Run) -> None:
    run.do(StepRecorded(run.stamp("eu"), "j", record(1)))
    run.do(TaskReported(run.stamp("us"), given_up("j/rollout-us-0")))
    assert run.job().state is JobState.RUNNING
    told = [effect.text for effect in run.effects if isinstance(effect, FleetEvent)]
    assert told == [f"j/rollout-us-0 failed: {WHY}"]
