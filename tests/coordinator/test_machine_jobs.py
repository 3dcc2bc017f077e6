"""The coordinator's machine takes a job through its life: it starts, loses parts, ends or is cancelled."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from coordinator.doing import doing
from coordinator.events import (
    Effect,
    FleetEvent,
    JobCancelled,
    JobSubmitted,
    Publish,
    RegionJoined,
    RegionLeft,
    RunPlanner,
    SendDesired,
    StepRecorded,
    TaskReported,
)
from coordinator.state import TRANSITIONS, JobState, check_transition
from periplus.errors import StateError
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.task import Role, RunFiles, TaskState
from tests.support.coordinator.machine_run import (
    AUTHORITY_KEY,
    Run,
    desired_tasks,
    free,
    hello,
    record,
    report,
    request,
)

SAVED = RunFiles(run_dir="/r/j", log="/r/j/logs/trainer.log", checkpoint=Policy(0, 6), report="/r/j/report.html")
"""The files of a run whose trainer in eu has saved a checkpoint."""


@pytest.mark.parametrize(("present", "to"), list(product(JobState, JobState)))
def test_only_transitions_of_the_table_are_legal(present: JobState, to: JobState) -> None:
    if to in TRANSITIONS[present]:
        check_transition("j", present, to)
    else:
        with pytest.raises(StateError, match=f"is {present} and cannot become {to}"):
            check_transition("j", present, to)


def test_cancelling_a_job_that_has_ended_is_an_error_and_changes_nothing(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    before = run.state
    with pytest.raises(StateError, match="already succeeded"):
        run.do(JobCancelled("j"))
    assert run.state is before


def test_a_job_waits_for_regions_and_links_and_says_so() -> None:
    run = Run()
    run.do(JobSubmitted("r", "j", request(min_regions=2)))
    assert run.job().reason == "waits for 2 free regions, 0 there"
    run.join("eu", "us")
    assert run.job().reason == "waits for the links eu to us and 1 more to be measured, until 00:17:10 UTC"
    run.answer_probe("eu", "us")
    assert not any(isinstance(effect, RunPlanner) for effect in run.effects)
    run.answer_probe("us", "eu")
    assert RunPlanner("j", free("eu", "us")) in run.effects


def test_a_job_goes_from_pending_to_succeeded_and_is_then_desired_nowhere(run: Run) -> None:
    assert run.desired("eu") == {"j/trainer": False, "j/rollout-eu-0": False}
    assert run.desired("us") == {"j/rollout-us-0": False}
    effects = run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    assert run.job().state is JobState.SUCCEEDED
    assert {effect.region: effect.tasks for effect in effects if isinstance(effect, SendDesired)} == {
        "eu": (),
        "us": (),
    }


def test_the_first_record_of_the_trainer_makes_a_job_running() -> None:
    run = Run()
    run.join("eu")
    run.do(JobSubmitted("r", "j", request()))
    run.place("j", "eu", "eu")
    assert run.job().state is JobState.PLANNED
    run.says("eu", "j/rollout-eu-0", TaskState.STARTING)
    assert run.job().state is JobState.STARTING
    effects = run.do(StepRecorded(run.stamp("eu"), "j", record(3)))
    assert run.job().state is JobState.RUNNING
    assert run.job().policy == Policy(0, 3)
    assert effects[-1] == Publish("j", record(3))


def test_means_of_what_a_plan_predicts_leave_out_the_first_step(run: Run) -> None:
    for version, seconds in enumerate((60.0, 2.0, 4.0, 3.0), 1):
        step = replace(record(version), values={"step_s": seconds, "weights_s_region/us": 1.0, "reward_mean": 0.5})
        run.do(StepRecorded(run.stamp("eu"), "j", step))
    assert run.job().measured == {"step_s": pytest.approx(3.0), "weights_s_region/us": 1.0}


def test_a_region_that_gives_no_samples_any_more_loses_its_mean_rate(run: Run) -> None:
    for version, rate in enumerate((8.0, 8.0, 8.0, None, None), 1):
        values = {"step_s": 1.0} if rate is None else {"step_s": 1.0, "tokens_per_s_region/us": rate}
        run.do(StepRecorded(run.stamp("eu"), "j", replace(record(version), values=values)))
    assert run.job().measured["tokens_per_s_region/us"] == pytest.approx(4.0)


def test_an_operator_is_told_what_a_job_waits_for_and_which_of_its_regions_are_gone(run: Run) -> None:
    def says(kind: RecordKind, text: str = "") -> None:
        said = replace(record(len(run.state.regions["eu"].tasks), kind), text=text)
        run.do(StepRecorded(run.stamp("eu"), "j", said))

    assert doing(run.state, run.job(), run.now_s) == ""
    says(RecordKind.PHASE, "waiting for disk: /r/j/checkpoints/0.5")
    says(RecordKind.EVAL, "during")
    assert doing(run.state, run.job(), run.now_s) == "waiting for disk: /r/j/checkpoints/0.5"
    says(RecordKind.STEP)
    assert doing(run.state, run.job(), run.now_s) == "training"
    quiet = "training; its trainer has said nothing for 45 s"
    assert doing(run.state, run.job(), run.now_s + 45.0) == quiet
    run.do(RegionLeft("us", 1))
    assert doing(run.state, run.job(), run.now_s) == "training; us is disconnected"
    run.do(RegionLeft("eu", 1))
    assert doing(run.state, run.job(), run.now_s) == (
        "waits for eu, the region of its trainer, which is disconnected, until 00:31:40 UTC; it last said: training; "
        "us is disconnected"
    )
    run.do(JobCancelled("j"))
    run.do(JobCancelled("j"))
    assert doing(run.state, run.job(), run.now_s) == ""


def test_a_record_that_is_sent_again_in_a_new_session_is_published_once(run: Run) -> None:
    run.do(StepRecorded(run.stamp("eu"), "j", record(1)))
    assert run.do(StepRecorded(run.stamp("eu"), "j", record(1))) == ()


def test_every_task_carries_what_its_agent_needs(run: Run) -> None:
    [task] = desired_tasks(run.state, "us")
    assert (task.job_id, task.role, task.trainer_region, task.trainer_gateway) == ("j", Role.ROLLOUT, "eu", "eu:1")
    assert (task.fork, task.resume_from, task.job_json, task.plan_json) == (0, "", "{}", "{}")
    assert task.authority_key == AUTHORITY_KEY


def test_a_failed_trainer_fails_the_job_with_its_message_its_log_and_the_way_on(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.FAILED, "loss is NaN at 0.7", SAVED)
    assert run.job().state is JobState.FAILED
    assert run.job().reason == (
        "the trainer in eu failed: loss is NaN at 0.7; its log is /r/j/logs/trainer.log; "
        "resume from its checkpoint 0.6 with `periplus job submit --resume /r/j`"
    )


def test_where_there_is_no_checkpoint_a_failure_says_so(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.FAILED, "no such model", replace(SAVED, checkpoint=None))
    assert run.job().reason.endswith("there is no checkpoint in /r/j to resume from: submit it again")
    assert "--resume" not in run.job().reason


def test_the_command_that_resumes_can_be_typed_whatever_the_directory_is_called(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.FAILED, "why", replace(SAVED, run_dir="/my runs/j"))
    assert "`periplus job submit --resume '/my runs/j'`" in run.job().reason


def test_a_trainer_that_outlives_its_job_still_tells_where_it_saved(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.RUNNING, "", replace(SAVED, checkpoint=None))
    for region in ("eu", "us"):
        run.says(region, f"j/rollout-{region}-0", TaskState.FAILED, "no vllm", RunFiles(run_dir="/r/j", log="/r/w.log"))
    reason = run.job().reason
    assert reason.startswith(
        "no rollout worker is left; the last one failed: no vllm; its log is /r/w.log; resume with"
    )
    run.says("eu", "j/trainer", TaskState.STOPPED, "", SAVED)
    assert (run.job().state, run.job().reason, run.job().files) == (JobState.FAILED, reason, SAVED)


def test_watchers_and_operators_are_told_each_time_that_a_worker_fails(run: Run) -> None:
    def told(effects: Iterable[Effect]) -> list[tuple[str, str]]:
        published = [
            ("watchers", each.news.text)
            for each in effects
            if isinstance(each, Publish) and isinstance(each.news, Record)
        ]
        return published + [("operators", each.text) for each in effects if isinstance(each, FleetEvent)]

    def says(state: TaskState, message: str = "", restarts: int = 0) -> list[tuple[str, str]]:
        said = replace(report("j/rollout-us-0", state, message), restarts=restarts)
        return told(run.do(TaskReported(run.stamp("us"), said)))

    assert says(TaskState.RUNNING) == []
    first, second = (f"j/rollout-us-0 failed and is started again (restart {n}): no space" for n in (1, 2))
    assert says(TaskState.STARTING, "no space") == [("watchers", first), ("operators", first)]
    assert says(TaskState.STARTING, "no space") == []
    assert says(TaskState.RUNNING, restarts=1) == []
    assert says(TaskState.STARTING, "no space", restarts=1) == [("watchers", second), ("operators", second)]
    last = "j/rollout-us-0 failed: no space"
    assert says(TaskState.FAILED, "no space", restarts=1) == [("watchers", last), ("operators", last)]
    assert told(run.says("eu", "j/trainer", TaskState.FAILED, "no space"))[0] == (
        "operators",
        "j/trainer failed: no space",
    )


def test_a_worker_that_ends_after_its_job_is_not_shown_as_running_for_ever(run: Run) -> None:
    run.says("us", "j/rollout-us-0", TaskState.RUNNING)
    run.says("eu", "j/trainer", TaskState.SUCCEEDED, "", SAVED)
    run.says("us", "j/rollout-us-0", TaskState.RUNNING)
    assert run.job().tasks["j/rollout-us-0"].report.state is TaskState.RUNNING  # type: ignore[union-attr]
    run.says("us", "j/rollout-us-0", TaskState.STOPPED)
    assert run.job().tasks["j/rollout-us-0"].report.state is TaskState.STOPPED  # type: ignore[union-attr]
    assert run.job().state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("message", "how"),
    [("", ""), ("the disk is full", ", but the trainer in eu did not end cleanly: the disk is full")],
)
def test_a_cancelled_job_says_what_its_trainer_could_save(run: Run, message: str, how: str) -> None:
    run.do(JobCancelled("j"))
    run.says("eu", "j/trainer", TaskState.STOPPED, message, SAVED)
    assert run.job().state is JobState.CANCELLED
    way = "resume from its checkpoint 0.6 with `periplus job submit --resume /r/j`"
    assert run.job().reason == f"cancelled by the operator{how}; {way}"


def test_a_late_report_of_the_earlier_fork_says_nothing_of_a_resumed_job(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.FAILED, "killed", SAVED)
    resume = request(resume_from="/r/j", resume_policy=Policy(0, 6), resume_job_id="j")
    run.do(JobSubmitted("r2", "unused", resume))
    run.place("j", "eu", "eu", "us")
    late = report("j/trainer", TaskState.FAILED, "killed", fork=0, files=SAVED)
    run.do(RegionLeft("eu", 1))
    run.do(RegionJoined(hello("eu", tasks=(late,)), 1))
    assert (run.job().state, run.job().reason) == (JobState.PLANNED, "")


def test_a_job_survives_its_workers_as_long_as_one_is_left(run: Run) -> None:
    run.says("us", "j/rollout-us-0", TaskState.FAILED, "out of memory")
    assert run.job().state is JobState.RUNNING
    assert run.desired("us") == {}
    run.says("eu", "j/rollout-eu-0", TaskState.FAILED, "no vllm")
    assert run.job().state is JobState.FAILED
    assert run.job().reason == "no rollout worker is left; the last one failed: no vllm"


def test_a_worker_that_ended_does_not_come_back_by_a_late_report(run: Run) -> None:
    run.says("us", "j/rollout-us-0", TaskState.FAILED)
    run.says("us", "j/rollout-us-0", TaskState.RUNNING)
    assert run.job().tasks["j/rollout-us-0"].ended
    assert run.desired("us") == {}


def test_a_rebooted_agent_gets_its_lost_workers_again(run: Run) -> None:
    run.says("us", "j/rollout-us-0", TaskState.FAILED)
    run.do(RegionLeft("us", 1))
    run.do(RegionJoined(hello("us", "rebooted"), 1))
    assert run.desired("us") == {"j/rollout-us-0": False}
    assert run.job().state is JobState.RUNNING


def test_an_agent_that_lost_the_trainer_fails_the_job_and_never_starts_it_twice(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.RUNNING, "", replace(SAVED, checkpoint=None))
    run.do(RegionLeft("eu", 1))
    assert run.job().state is JobState.RUNNING
    run.do(RegionJoined(hello("eu", "rebooted"), 1))
    assert run.job().state is JobState.FAILED
    assert "came back without the trainer" in run.job().reason
    assert run.job().reason.endswith("resume with `periplus job submit --resume /r/j`, if it left a checkpoint there")
    assert run.desired("eu") == {}


def test_an_agent_that_was_away_keeps_its_trainer(run: Run) -> None:
    run.do(RegionLeft("eu", 1))
    run.do(RegionJoined(hello("eu", tasks=(report("j/trainer", TaskState.RUNNING),)), 1))
    assert run.job().state is JobState.RUNNING
    assert run.desired("eu") == {"j/trainer": False, "j/rollout-eu-0": False}


def test_a_job_of_an_earlier_coordinator_goes_on_and_holds_its_region() -> None:
    run = Run()
    running = report("old/trainer", TaskState.RUNNING)
    effects = run.do(RegionJoined(hello("eu", tasks=(running,)), 1))
    assert not any(isinstance(effect, SendDesired) for effect in effects)
    run.do(JobSubmitted("r", "j", request()))
    assert run.job().reason.startswith("waits for 1 free region, 0 there (held by old in eu, 0 of whose 1 groups")
    effects = run.says("eu", "old/trainer", TaskState.SUCCEEDED)
    assert RunPlanner("j", free("eu")) in effects
    assert SendDesired("eu", 1, 1, ()) in effects


def test_resuming_a_job_of_an_earlier_coordinator_first_ends_what_still_runs_of_it() -> None:
    run = Run()
    run.do(RegionJoined(hello("eu", tasks=(report("old/trainer", TaskState.RUNNING),)), 1))
    resume = request(resume_from="runs/old", resume_policy=Policy(0, 9), resume_job_id="old")
    effects = run.do(JobSubmitted("r", "unused", resume))
    assert SendDesired("eu", 1, 1, ()) in effects
    assert not any(isinstance(effect, RunPlanner) for effect in effects)
    assert RunPlanner("old", free("eu")) in run.says("eu", "old/trainer", TaskState.STOPPED)


@pytest.mark.parametrize("last_word", [TaskState.STOPPED, TaskState.SUCCEEDED])
def test_cancelling_stops_the_trainer_first_and_then_the_rest(run: Run, last_word: TaskState) -> None:
    run.do(JobCancelled("j"))
    assert run.job().state is JobState.RUNNING
    assert run.desired("eu") == {"j/trainer": True, "j/rollout-eu-0": False}
    run.says("eu", "j/trainer", last_word)
    assert run.job().state is JobState.CANCELLED
    assert run.desired("eu") == run.desired("us") == {}
    assert run.do(JobCancelled("j")) == ()


def test_a_job_that_never_ran_is_cancelled_at_once() -> None:
    run = Run()
    run.do(JobSubmitted("r", "j", request()))
    run.do(JobCancelled("j"))
    assert run.job().state is JobState.CANCELLED


def test_a_plan_for_a_cancelled_job_is_dropped() -> None:
    run = Run()
    run.join("eu")
    run.do(JobSubmitted("r", "j", request()))
    run.do(JobCancelled("j"))
    run.place("j", "eu", "eu")
    assert run.job().state is JobState.CANCELLED
    assert run.desired("eu") == {}


def test_cancelling_again_gives_up_a_region_that_is_gone(run: Run) -> None:
    run.do(RegionLeft("eu", 1))
    run.do(JobCancelled("j"))
    assert run.job().state is JobState.RUNNING
    assert "cancel again to give it up" in run.job().reason
    run.do(JobCancelled("j"))
    assert run.job().state is JobState.CANCELLED


def test_a_job_that_was_given_up_with_its_region_says_how_to_go_on(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.RUNNING, files=replace(SAVED, checkpoint=None, report=""))
    run.do(RegionLeft("eu", 1))
    run.do(JobCancelled("j"))
    run.do(JobCancelled("j"))
    assert "`periplus job submit --resume /r/j`, if it left a checkpoint there" in run.job().reason


def test_a_trainer_that_fails_while_it_is_cancelled_says_so(run: Run) -> None:
    run.do(JobCancelled("j"))
    run.says("eu", "j/trainer", TaskState.FAILED, "disk full")
    assert run.job().state is JobState.FAILED
    assert "disk full" in run.job().reason
