"""The coordinator's machine: a job whose trainer's region stays away goes on elsewhere from its newest replica."""

import pytest

from coordinator.doing import doing
from coordinator.events import (
    HeartbeatSeen,
    JobCancelled,
    JobSubmitted,
    PlanFinished,
    RegionJoined,
    RegionLeft,
    StepRecorded,
    TaskReported,
    Ticked,
)
from coordinator.state import JobState
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.replica_url import NO_REPLICA
from periplus.values.task import RunFiles, TaskState
from tests.support.coordinator.machine_run import Run, desired_tasks, free, hello, infeasible, record, report, request

ABSENCE_S = 100.0
BASE = "s3://bucket/replicas"
FILES = RunFiles(run_dir="/runs/j", log="/runs/j/logs/trainer.log")


def running(replicate: str = BASE) -> Run:
    """A running job with a trainer in eu and workers in eu and us."""
    run = Run()
    run.join("eu", "us")
    run.measure_all()
    wanted = request(max_trainer_restarts=2, max_region_absence_s=ABSENCE_S, replicate=replicate)
    run.do(JobSubmitted("r", "j", wanted))
    run.place("j", "eu", "eu", "us")
    run.says("eu", "j/trainer", TaskState.RUNNING, files=FILES)
    run.do(StepRecorded(run.stamp("eu"), "j", record(12)))
    return run


def replicated(run: Run, region: str, policy: Policy) -> None:
    said = Record(kind=RecordKind.REPLICA, policy=policy, time_s=1.0, text="anything")
    run.do(StepRecorded(run.stamp(region), "j", said))


def much_later(run: Run) -> None:
    run.now_s += ABSENCE_S + 1
    run.do(HeartbeatSeen(run.stamp("us"), {}))
    run.do(Ticked())


def stays_away(run: Run, region: str) -> None:
    run.do(RegionLeft(region, run.state.regions[region].epoch))
    much_later(run)


def test_a_job_goes_on_elsewhere_from_its_newest_replica() -> None:
    run = running()
    replicated(run, "eu", Policy(0, 5))
    replicated(run, "eu", Policy(0, 10))
    assert run.job().replica_url == f"{BASE}/j/0.10"
    run.do(RegionLeft("eu", run.state.regions["eu"].epoch))
    assert "then goes on elsewhere from checkpoint 0.10" in doing(run.state, run.job(), run.now_s)
    assert run.desired("us")
    much_later(run)
    job = run.job()
    assert (job.state, job.fork, job.policy, job.tasks) == (JobState.PENDING, 1, None, {})
    assert (job.request.resume_from, job.request.resume_policy) == (f"{BASE}/j/0.10", Policy(0, 10))
    assert not run.desired("us"), "workers of the fork before still run"
    run.place("j", "us", "us")
    trainer = next(task for task in desired_tasks(run.state, "us") if task.task_id == "j/trainer")
    assert (trainer.fork, trainer.resume_from, trainer.is_restart) == (1, f"{BASE}/j/0.10", False)


def test_the_region_that_was_given_up_ends_what_it_still_runs() -> None:
    run = running()
    replicated(run, "eu", Policy(0, 10))
    stays_away(run, "eu")
    run.place("j", "us", "us")
    run.says("us", "j/trainer", TaskState.RUNNING, files=FILES)
    left = (report("j/trainer", TaskState.RUNNING, "", 0, FILES),)
    run.do(RegionJoined(hello("eu", tasks=left), 1))
    assert not run.desired("eu")
    assert (run.job().state, run.job().fork) == (JobState.RUNNING, 1)


def test_a_trainer_that_dies_before_it_has_fetched_the_replica_does_so_again_and_later_has_its_own() -> None:
    run = running()
    replicated(run, "eu", Policy(0, 10))
    stays_away(run, "eu")
    run.place("j", "us", "us")
    run.do(TaskReported(run.stamp("us"), report("j/trainer", TaskState.FAILED, "killed", 1, FILES)))
    assert (run.job().fork, run.job().request.resume_from) == (2, f"{BASE}/j/0.10")
    assert run.job().request.resume_policy == Policy(1, 10)
    run.now_s += 5.0
    run.do(Ticked())
    files = RunFiles(run_dir="/elsewhere/j", log="/elsewhere/log", checkpoint=Policy(2, 15))
    run.do(TaskReported(run.stamp("us"), report("j/trainer", TaskState.FAILED, "killed", 2, files)))
    assert (run.job().fork, run.job().request.resume_from) == (3, "/elsewhere/j")


@pytest.mark.parametrize("replicate", [NO_REPLICA, BASE])
def test_without_a_replica_the_job_fails(replicate: str) -> None:
    run = running(replicate)
    if replicate == NO_REPLICA:
        replicated(run, "eu", Policy(0, 10))  # nobody asked for it
    stays_away(run, "eu")
    assert run.job().state is JobState.FAILED


def test_a_job_that_is_cancelled_meanwhile_does_not_go_on() -> None:
    run = running()
    replicated(run, "eu", Policy(0, 10))
    run.do(RegionLeft("eu", run.state.regions["eu"].epoch))
    run.do(JobCancelled("j"))
    much_later(run)
    assert run.job().state is JobState.CANCELLED


def test_a_job_that_fits_nowhere_else_says_what_is_missing() -> None:
    run = running()
    replicated(run, "eu", Policy(0, 10))
    stays_away(run, "eu")
    run.do(PlanFinished("j", free("us"), infeasible("too little memory")))
    assert run.job().state is JobState.FAILED
    assert "too little memory" in run.job().reason
    assert f"{BASE}/j/0.10" in run.job().reason
