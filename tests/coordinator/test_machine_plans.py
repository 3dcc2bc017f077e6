"""The coordinator's machine takes submissions and plans: a plan is a proposal, held against the newest fleet."""

from dataclasses import replace
from itertools import pairwise

import pytest

from coordinator.events import (
    JobCancelled,
    JobSubmitted,
    PlanFinished,
    PlannerFailed,
    RegionJoined,
    RegionLeft,
    RunPlanner,
    Ticked,
)
from coordinator.state import JobState
from periplus.errors import Conflict, NotFound
from periplus.values.policy import Policy
from periplus.values.task import ENDED, Role, TaskState
from tests.support.coordinator.machine_run import (
    SETTINGS,
    Run,
    desired_tasks,
    free,
    hello,
    infeasible,
    placed,
    report,
    request,
)


def test_a_repeated_request_gets_the_first_job() -> None:
    run = Run()
    run.do(JobSubmitted("r", "j1", request()))
    run.do(JobSubmitted("r", "j2", request()))
    assert list(run.state.jobs) == ["j1"]
    assert run.state.requests == {"r": "j1"}


def test_a_resumed_job_keeps_its_id_and_gets_a_fork_that_nobody_had(run: Run) -> None:
    resume = request(resume_from="runs/j", resume_policy=Policy(0, 9), resume_job_id="j")
    with pytest.raises(Conflict, match="still running"):
        run.do(JobSubmitted("r2", "unused", resume))
    forks = []
    for attempt in ("r3", "r4"):
        run.says("eu", "j/trainer", TaskState.FAILED)
        run.do(JobSubmitted(attempt, "unused", resume))
        run.place("j", "eu", "eu")
        forks += [task.fork for task in desired_tasks(run.state, "eu") if task.role is Role.TRAINER]
        assert desired_tasks(run.state, "eu")[0].resume_from == "runs/j"
    assert forks == [1, 2]


def test_an_id_may_be_cut_short_while_it_is_unambiguous() -> None:
    run = Run()
    run.do(JobSubmitted("r1", "sums-1a", request()))
    run.do(JobSubmitted("r2", "sums-1b", request()))
    with pytest.raises(Conflict, match="sums-1a, sums-1b"):
        run.do(JobCancelled("sums-1"))
    with pytest.raises(NotFound, match="nothing"):
        run.do(JobCancelled("nothing"))
    run.do(JobCancelled("sums-1b"))
    assert run.job("sums-1b").state is JobState.CANCELLED


def test_revisions_of_what_is_desired_only_rise(run: Run) -> None:
    revisions = [run.state.regions["us"].revision]
    for _ in range(3):
        run.do(RegionJoined(hello("us", tasks=(report("j/rollout-us-0", TaskState.RUNNING),)), 1))
        revisions.append(run.state.regions["us"].revision)
    assert all(earlier < later for earlier, later in pairwise(revisions))


def test_infeasible_on_the_whole_fleet_fails_the_job() -> None:
    run = Run()
    run.join("eu")
    run.do(JobSubmitted("r", "j", request()))
    run.do(PlanFinished("j", free("eu"), infeasible("eu has 4 cores, 8 wanted")))
    assert run.job().state is JobState.FAILED
    assert run.job().reason == "infeasible: eu has 4 cores, 8 wanted"


def test_infeasible_on_a_part_of_the_fleet_waits_for_the_rest(run: Run) -> None:
    run.join("ap")
    run.measure_all()
    run.do(JobSubmitted("r2", "k", request()))
    run.do(PlanFinished("k", free("ap"), infeasible("ap is small")))
    assert run.job("k").state is JobState.PENDING
    assert "ap is small" in run.job("k").reason
    assert not any(isinstance(effect, RunPlanner) for effect in run.do(Ticked()))
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    assert RunPlanner("k", free("ap", "eu", "us")) in run.effects


def test_infeasible_for_a_fleet_of_the_past_is_asked_again() -> None:
    run = Run()
    run.join("eu")
    run.do(JobSubmitted("r", "j", request()))
    run.join("us")
    run.measure_all()
    effects = run.do(PlanFinished("j", free("eu"), infeasible("needs two")))
    assert RunPlanner("j", free("eu", "us")) in effects


def test_a_plan_with_a_region_that_left_is_made_anew() -> None:
    run = Run()
    run.join("eu", "us")
    run.measure_all()
    run.do(JobSubmitted("r", "j", request()))
    run.do(RegionLeft("us", 1))
    effects = run.do(PlanFinished("j", free("eu", "us"), placed("us", "eu")))
    assert run.job().state is JobState.PENDING
    assert RunPlanner("j", free("eu")) in effects


def test_a_planner_that_fails_fails_the_job() -> None:
    run = Run()
    run.join("eu")
    run.do(JobSubmitted("r", "j", request()))
    run.do(PlanFinished("j", free("eu"), PlannerFailed("out of time")))
    assert run.job().state is JobState.FAILED


def test_as_many_jobs_run_in_a_region_as_the_coordinator_is_told() -> None:
    run = Run(replace(SETTINGS, jobs_per_region=2))
    run.join("eu")
    for name in ("j", "k", "l"):
        run.do(JobSubmitted(name, name, request()))
        if name != "l":
            run.place(name, "eu", "eu")
    assert run.desired("eu").keys() == {"j/trainer", "j/rollout-eu-0", "k/trainer", "k/rollout-eu-0"}
    assert run.job("l").reason.startswith(
        "waits for 1 free region, 0 there (held by j and k in eu, 0 of whose 1 groups of cores are free, until"
    )
    run.says("eu", "j/trainer", TaskState.RUNNING)
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    assert run.desired("eu").keys() == {"k/trainer", "k/rollout-eu-0"}
    assert RunPlanner("l", free("eu")) in run.effects


def test_a_later_job_waits_for_the_regions_of_the_first_until_its_processes_are_gone(run: Run) -> None:
    run.says("us", "j/rollout-us-0", TaskState.RUNNING)
    run.do(JobSubmitted("r2", "k", request(min_regions=2)))
    assert run.job("k").reason == (
        "waits for 2 free regions, 0 there (held by j in eu, 0 of whose 1 groups of cores are free; by j in us, 0 of "
        "whose 1 groups of cores are free, until the job ends or is cancelled; a job leaves regions to others by "
        "regions.max, regions.rollout or regions.forbid, and a coordinator lets more than 1 share cores by "
        "--jobs-per-region)"
    )
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    assert "1 there (held by j in us, 0 of" in run.job("k").reason
    run.says("us", "j/rollout-us-0", TaskState.STOPPED)
    assert RunPlanner("k", free("eu", "us")) in run.effects
    assert not any(r.state in ENDED for region in run.state.regions.values() for r in region.tasks.values())
