"""Desired against observed: what is done about each difference, and that nothing is left to do afterwards."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.process.backoff import Backoff
from periplus.values.task import FailureCause, Role, TaskOutcome, TaskState
from region_agent.control.reconcile import (
    Action,
    AskToStop,
    Forget,
    Kill,
    LocalTask,
    Process,
    RestartLimits,
    Start,
    reconcile,
    report,
    report_unstarted,
    task_of,
)
from tests.support.keys import JOB_SECRET

LIMITS = RestartLimits(grace_s=10.0, backoff=Backoff(first_s=1.0))
FAILED = TaskOutcome(state=TaskState.FAILED, message="it broke")
SUCCEEDED = TaskOutcome(state=TaskState.SUCCEEDED, message="")
STOPPED = TaskOutcome(state=TaskState.STOPPED, message="")


def task(role: Role = Role.ROLLOUT, *, task_id: str = "t", fork: int = 0, stopping: bool = False) -> LocalTask:
    return LocalTask(
        task_id=task_id,
        job_id="j",
        role=role,
        job_json="{}",
        trainer_region="a",
        trainer_gateway="a:1",
        fork=fork,
        resume_from="",
        plan_json="{}",
        stopping=stopping,
        authority_key="ab" * 32,
        job_secret=JOB_SECRET,
        output_dir="runs",
        max_restarts=3,
    )


def process(
    of: LocalTask,
    outcome: TaskOutcome | None = None,
    *,
    restarts: int = 0,
    asked_s: float | None = None,
    killed: bool = False,
    ended_s: float = 0.0,
) -> Process:
    return Process(
        task=of,
        started_at_s=0.0,
        restarts=restarts,
        asked_to_stop_at_s=asked_s,
        killed=killed,
        outcome=outcome,
        ended_at_s=None if outcome is None else ended_s,
    )


def act(observed: Mapping[str, Process], actions: tuple[Action, ...], now_s: float) -> dict[str, Process]:
    """What a supervisor would have after the actions."""
    after = dict(observed)
    for action in actions:
        task_id = task_of(action)
        match action:
            case Start(wanted, restarts):
                assert task_id not in after or after[task_id].outcome is not None, "two processes for one task"
                after[task_id] = process(wanted, restarts=restarts)
            case AskToStop():
                assert after[task_id].asked_to_stop_at_s is None, "asked twice"
                after[task_id] = replace(after[task_id], asked_to_stop_at_s=now_s)
            case Kill():
                after[task_id] = replace(after[task_id], killed=True)
            case Forget():
                assert after[task_id].outcome is not None, "a running process was forgotten"
                del after[task_id]
    return after


ids = st.sampled_from(["a", "b", "c"])


@st.composite
def tasks(draw: st.DrawFn, task_id: str) -> LocalTask:
    role = Role.TRAINER if task_id == "a" else Role.ROLLOUT
    return task(role, task_id=task_id, fork=draw(st.integers(0, 1)), stopping=draw(st.booleans()))


@st.composite
def processes(draw: st.DrawFn, task_id: str) -> Process:
    asked = draw(st.none() | st.floats(0, 100))
    return process(
        draw(tasks(task_id)),
        draw(st.sampled_from([None, FAILED, SUCCEEDED, STOPPED])),
        restarts=draw(st.integers(0, 4)),
        asked_s=asked,
        killed=asked is not None and draw(st.booleans()),
        ended_s=draw(st.floats(0, 100)),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, LocalTask], dict[str, Process]]:
    desired = {task_id: draw(tasks(task_id)) for task_id in draw(st.sets(ids))}
    observed = {task_id: draw(processes(task_id)) for task_id in draw(st.sets(ids))}
    return desired, observed


@given(situations(), st.floats(100, 200))
def test_after_the_actions_there_is_nothing_left_to_do(
    situation: tuple[dict[str, LocalTask], dict[str, Process]], now_s: float
) -> None:
    desired, observed = situation
    actions = reconcile(desired, observed, now_s, LIMITS)
    assert len({task_of(action) for action in actions}) == len(actions)
    assert reconcile(desired, act(observed, actions, now_s), now_s, LIMITS) == ()


@given(situations(), st.floats(100, 200))
def test_only_what_is_desired_and_not_stopping_is_started(
    situation: tuple[dict[str, LocalTask], dict[str, Process]], now_s: float
) -> None:
    desired, observed = situation
    for action in reconcile(desired, observed, now_s, LIMITS):
        if isinstance(action, Start):
            wanted, before = desired[action.task.task_id], observed.get(action.task.task_id)
            assert action.task == wanted
            assert not wanted.stopping
            if before is not None and wanted.role is Role.TRAINER:
                assert before.task.fork != wanted.fork, "a trainer was started twice"
        if isinstance(action, AskToStop | Kill):
            wanted_ = desired.get(action.task_id)
            assert (
                wanted_ is None
                or wanted_.stopping
                or report(observed[action.task_id], wanted_).state is not (TaskState.RUNNING)
            )


@given(situations(), st.lists(st.sampled_from([0.2, 1.0, 5.0, 20.0]), max_size=30))
def test_over_any_time_each_process_is_asked_once_and_killed_only_after_its_grace(
    situation: tuple[dict[str, LocalTask], dict[str, Process]], pauses_s: list[float]
) -> None:
    desired, observed = situation
    now_s = 100.0
    for pause_s in pauses_s:
        now_s += pause_s
        actions = reconcile(desired, observed, now_s, LIMITS)
        for action in actions:
            if isinstance(action, Kill):
                asked_s = observed[action.task_id].asked_to_stop_at_s
                assert asked_s is not None
                assert now_s - asked_s >= LIMITS.grace_s
                assert not observed[action.task_id].killed
        observed = act(observed, actions, now_s)  # asserts that none is asked twice


def test_a_stopping_task_is_asked_then_left_alone_then_killed_once() -> None:
    wanted = {"t": task(stopping=True)}
    running = {"t": process(task())}
    assert reconcile(wanted, running, 5.0, LIMITS) == (AskToStop("t"),)
    asked = {"t": process(task(), asked_s=5.0)}
    assert reconcile(wanted, asked, 14.9, LIMITS) == ()
    assert reconcile(wanted, asked, 15.0, LIMITS) == (Kill("t"),)
    assert reconcile(wanted, {"t": process(task(), asked_s=5.0, killed=True)}, 99.0, LIMITS) == ()


def test_an_undesired_process_is_stopped_and_then_forgotten() -> None:
    assert reconcile({}, {"t": process(task())}, 0.0, LIMITS) == (AskToStop("t"),)
    assert reconcile({}, {"t": process(task(), STOPPED)}, 0.0, LIMITS) == (Forget("t"),)


def test_a_rollout_worker_restarts_after_doubling_pauses_until_its_restarts_are_used_up() -> None:
    wanted = {"t": task()}
    for restarts, pause_s in enumerate([1.0, 2.0, 4.0]):
        dead = {"t": process(task(), FAILED, restarts=restarts, ended_s=50.0)}
        assert reconcile(wanted, dead, 50.0 + pause_s - 0.01, LIMITS) == ()
        assert reconcile(wanted, dead, 50.0 + pause_s, LIMITS) == (Start(task(), restarts + 1),)
        assert report(dead["t"], task()).state is TaskState.STARTING
    dead = {"t": process(task(), FAILED, restarts=3)}
    assert reconcile(wanted, dead, 1e6, LIMITS) == ()
    assert report(dead["t"], task()).state is TaskState.FAILED


def test_the_clock_may_begin_at_zero() -> None:
    assert reconcile({"t": task()}, {"t": process(task(), FAILED, ended_s=0.0)}, 1.0, LIMITS) == (Start(task(), 1),)


@pytest.mark.parametrize("outcome", [FAILED, SUCCEEDED, STOPPED])
def test_a_trainer_is_never_started_again(outcome: TaskOutcome) -> None:
    trainer = task(Role.TRAINER)
    assert reconcile({"t": trainer}, {"t": process(trainer, outcome)}, 1e6, LIMITS) == ()
    assert report(process(trainer, outcome), trainer).state is outcome.state


def test_a_worker_that_would_fail_again_is_not_restarted() -> None:
    worker = task(Role.ROLLOUT)
    refused = process(worker, TaskOutcome(state=TaskState.FAILED, message="no such file", cause=FailureCause.LASTING))
    assert reconcile({"t": worker}, {"t": refused}, 1e6, LIMITS) == ()
    assert report(refused, worker).state is TaskState.FAILED


def test_an_engine_that_does_not_start_is_tried_once_more_and_then_reported_as_misplaced() -> None:
    worker = task(Role.ROLLOUT)
    refused = TaskOutcome(state=TaskState.FAILED, message="no memory", cause=FailureCause.ENGINE)
    assert reconcile({"t": worker}, {"t": process(worker, refused)}, 1e6, LIMITS) == (Start(worker, 1),)
    assert not report(process(worker, refused), worker).cause.is_misplaced, "it may start the next time"
    again = process(worker, refused, restarts=1)
    assert reconcile({"t": worker}, {"t": again}, 1e6, LIMITS) == ()
    assert (report(again, worker).state, report(again, worker).cause) == (TaskState.FAILED, FailureCause.ENGINE)


@pytest.mark.parametrize("role", Role)
def test_a_task_that_succeeded_is_not_started_again_while_it_is_still_desired(role: Role) -> None:
    assert reconcile({"t": task(role)}, {"t": process(task(role), SUCCEEDED)}, 1e6, LIMITS) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (task(Role.TRAINER), task(Role.TRAINER, fork=1)),
        (task(Role.ROLLOUT), task(Role.ROLLOUT, fork=1)),
    ],
)
def test_a_resumed_job_replaces_the_process_of_the_old_fork(old: LocalTask, new: LocalTask) -> None:
    assert reconcile({"t": new}, {"t": process(old)}, 5.0, LIMITS) == (AskToStop("t"),)
    assert reconcile({"t": new}, {"t": process(old, asked_s=5.0)}, 15.0, LIMITS) == (Kill("t"),)
    for outcome in (FAILED, SUCCEEDED, STOPPED):
        ended = process(old, outcome, restarts=3, asked_s=5.0)
        assert reconcile({"t": new}, {"t": ended}, 6.0, LIMITS) == (Start(new, 0),)
        assert report(ended, new).state is TaskState.STARTING, "the old fork's end is not the new one's"


def test_a_rollout_worker_that_somebody_stopped_comes_back_if_it_is_wanted() -> None:
    stopped = process(task(), STOPPED)
    told = report(stopped, task())
    assert (told.state, told.message) == (TaskState.STARTING, "it was stopped by somebody else than its agent")
    assert reconcile({"t": task()}, {"t": stopped}, 1e6, LIMITS) == (Start(task(), 1),)
    tired = process(task(), STOPPED, restarts=task().max_restarts)
    assert reconcile({"t": task()}, {"t": tired}, 1e6, LIMITS) == ()
    assert report(tired, task()).state is TaskState.FAILED


def test_a_rollout_worker_that_is_wanted_again_while_it_stops_starts_afresh() -> None:
    ending = process(task(), asked_s=5.0)
    assert report(ending, task()).state is TaskState.STARTING
    assert reconcile({"t": task()}, {"t": ending}, 15.0, LIMITS) == (Kill("t"),)
    assert reconcile({"t": task()}, {"t": replace(ending, outcome=STOPPED, ended_at_s=6.0)}, 6.0, LIMITS) == (
        Start(task(), 0),
    )


def test_reports_say_what_the_coordinator_may_count_on() -> None:
    assert report(process(task()), task()).state is TaskState.RUNNING
    assert report(process(task(), SUCCEEDED), task()).state is TaskState.SUCCEEDED
    asked = report(process(task(), FAILED, asked_s=1.0), task(stopping=True))
    assert (asked.state, asked.message) == (TaskState.STOPPED, "it broke")
    failed = report(process(task(Role.TRAINER), FAILED), task(Role.TRAINER))
    assert (failed.state, failed.message) == (TaskState.FAILED, "it broke")
    assert report_unstarted(task(stopping=True)).state is TaskState.STOPPED


def test_a_death_that_no_restart_will_mend_is_not_reported_as_starting() -> None:
    dead = process(task(), FAILED)
    assert report(dead, task(stopping=True)).state is TaskState.FAILED
    assert report(dead, None).state is TaskState.FAILED
