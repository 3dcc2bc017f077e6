"""The coordinator's machine: a trainer that ends early starts again, and what bounds that."""

from dataclasses import replace

import pytest

from coordinator.doing import doing
from coordinator.events import (
    FleetEvent,
    FleetEventKind,
    JobCancelled,
    JobSubmitted,
    RegionJoined,
    RegionLeft,
    StepRecorded,
    TaskReported,
    Ticked,
)
from coordinator.state import JobState
from periplus.values.policy import Policy
from periplus.values.task import FailureCause, RunFiles, TaskReport, TaskState
from tests.support.coordinator.machine_run import KEYS, Run, hello, record, report, request

ABSENCE_S = 100.0


@pytest.fixture
def run() -> Run:
    """A running job with a trainer in eu and workers in eu and us, whose trainer may start twice again."""
    run = Run()
    run.join("eu", "us")
    run.measure_all()
    run.do(JobSubmitted("r", "j", request(max_trainer_restarts=2, max_region_absence_s=ABSENCE_S)))
    run.place("j", "eu", "eu", "us")
    for region in ("eu", "us"):
        run.says(region, f"j/rollout-{region}-0", TaskState.RUNNING, files=files())
    run.says("eu", "j/trainer", TaskState.RUNNING, files=files())
    run.asks("eu")
    return run


def files(version: int | None = None, fork: int = 0) -> RunFiles:
    checkpoint = None if version is None else Policy(fork, version)
    return RunFiles(run_dir="/runs/j", log="/runs/j/logs/trainer.log", checkpoint=checkpoint)


def dies(run: Run, version: int | None, *, is_final: bool = False, state: TaskState = TaskState.FAILED) -> None:
    fork = run.job().fork
    said = report("j/trainer", state, "killed by signal 9", fork, files(version, fork))
    run.do(
        TaskReported(run.stamp("eu"), replace(said, cause=FailureCause.LASTING if is_final else FailureCause.PASSING))
    )


def later(run: Run, seconds: float) -> None:
    run.now_s += seconds
    run.do(Ticked())


def test_a_trainer_that_died_starts_again_in_a_new_fork(run: Run) -> None:
    dies(run, 5)
    job = run.job()
    assert (job.state, job.fork, job.trainer_key) == (JobState.PLANNED, 1, "")
    assert job.reason == (
        "the trainer in eu failed: killed by signal 9; it starts again from checkpoint 0.5, start 1 of 2 without a new "
        "checkpoint"
    )
    assert doing(run.state, job, run.now_s) == job.reason
    assert run.desired("eu") == {"j/rollout-eu-0": False}, "it waits a moment"
    later(run, 2.0)
    assert set(run.desired("eu")) == {"j/trainer", "j/rollout-eu-0"}
    (task,) = [task for task in run.state.regions["eu"].sent or () if task.task_id == "j/trainer"]
    assert (task.fork, task.resume_from, task.is_restart) == (1, "/runs/j", True)
    run.says("eu", "j/trainer", TaskState.RUNNING, files=files())
    assert run.job().state is JobState.RUNNING
    run.asks("eu", fork=1, key=KEYS[1])
    assert run.job().trainer_key == KEYS[1].hex()


def test_a_death_that_would_repeat_itself_fails_the_job_at_once(run: Run) -> None:
    dies(run, 5, is_final=True)
    assert run.job().state is JobState.FAILED
    assert "resume from its checkpoint 0.5" in run.job().reason


def test_a_trainer_that_comes_no_further_is_given_up(run: Run) -> None:
    dies(run, 5)
    for _ in range(2):
        later(run, 70.0)
        dies(run, None)
    assert run.job().state is JobState.FAILED
    assert run.job().fork == 2


def test_one_that_comes_further_each_time_goes_on(run: Run) -> None:
    for version in (5, 6, 7, 8):
        dies(run, version)
        later(run, 70.0)
        assert (run.job().trainer_restarts, run.job().state) == (1, JobState.PLANNED)
    assert run.job().fork == 4


def test_an_agent_that_comes_back_without_the_trainer_starts_it_again(run: Run) -> None:
    run.do(RegionLeft("eu", run.state.regions["eu"].epoch))
    run.do(RegionJoined(hello("eu", "another"), 1))
    job = run.job()
    assert (job.state, job.fork, job.request.resume_from) == (JobState.PLANNED, 1, "/runs/j")
    assert "came back without the trainer" in job.reason
    later(run, 2.0)
    assert "j/trainer" in run.desired("eu")


def test_a_trainer_that_is_stopped_with_its_agent_waits_for_the_agent(run: Run) -> None:
    dies(run, 5, state=TaskState.STOPPED)
    run.do(RegionLeft("eu", run.state.regions["eu"].epoch))
    later(run, ABSENCE_S - 1)
    assert run.job().state is JobState.PLANNED
    assert doing(run.state, run.job(), run.now_s).startswith(
        "waits for eu, the region of its trainer, which is disconnected, until "
    )
    run.do(RegionJoined(hello("eu", "another"), 1))
    assert "j/trainer" in run.desired("eu")


def test_a_region_that_stays_away_fails_the_job_with_what_can_be_done(run: Run) -> None:
    run.do(StepRecorded(run.stamp("eu"), "j", record(3)))
    run.do(RegionLeft("eu", run.state.regions["eu"].epoch))
    later(run, ABSENCE_S + 1)
    assert run.job().state is JobState.FAILED
    assert "has been away for 100 s (failure.max_region_absence_s)" in run.job().reason
    assert "periplus job submit --resume /runs/j" in run.job().reason


def test_a_cancelled_job_does_not_start_again(run: Run) -> None:
    dies(run, 5)
    run.do(JobCancelled("j"))
    assert run.job().state is JobState.CANCELLED
    assert "resume from its checkpoint 0.5" in run.job().reason
    later(run, 2.0)
    assert not run.desired("eu")
    assert not run.desired("us")


def test_a_restored_state_takes_over_the_fork_that_runs(run: Run) -> None:
    before = run.state
    dies(run, 5)
    later(run, 2.0)
    run.says("eu", "j/trainer", TaskState.RUNNING, files=files())
    reports: tuple[TaskReport, ...] = tuple(run.state.regions["eu"].tasks.values())
    run.state = before  # of the backup
    run.do(RegionLeft("eu", run.state.regions["eu"].epoch))
    run.do(RegionJoined(hello("eu", tasks=reports), 1))
    assert run.job().fork == 1
    assert "j/trainer" in run.desired("eu")
    assert run.asks("eu", fork=1, key=KEYS[1]) is not None


def test_what_happened_is_told(run: Run) -> None:
    dies(run, 5)
    told = [effect for effect in run.effects if isinstance(effect, FleetEvent)]
    assert [each.kind for each in told] == [FleetEventKind.TASK_FAILED, FleetEventKind.JOB_CHANGED]
    assert told[1].text.startswith("running to planned: the trainer in eu failed")
