"""What the session with the coordinator carries is converted without loss."""

from pathlib import Path

import pytest

from coordinator.convert import report_from_pb
from periplus.pb.v1 import control_pb2
from periplus.values.task import FailureCause, RunFiles, TaskReport, TaskState
from region_agent.control.convert import report_to_pb, tasks_from_pb
from tests.support.keys import AUTHORITY
from tests.support.tiny_job import tiny_job


@pytest.mark.parametrize("job_id", ["", ".", "..", "../j", "/j", "a/b", "a\0b"])
def test_a_job_id_that_is_no_name_of_a_directory_is_refused(job_id: str) -> None:
    tasks, failed = tasks_from_pb(control_pb2.DesiredTasks(tasks=[control_pb2.Task(job_id=job_id)]))
    assert tasks == ()
    assert "component of a path" in failed[0].message


def test_a_task_without_the_secret_of_its_job_is_refused() -> None:
    task = control_pb2.Task(task_id="j/trainer", job_id="j", role=control_pb2.ROLE_TRAINER)
    for jobs in ([], [control_pb2.DesiredJob(job_id="j")], [control_pb2.DesiredJob(job_id="k", secret="5e")]):
        _, failed = tasks_from_pb(control_pb2.DesiredTasks(tasks=[task], jobs=jobs))
        assert "without its job or the job's secret" in failed[0].message


def test_a_job_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    good = control_pb2.DesiredJob(
        job_id="good", job_json=tiny_job(tmp_path).to_json(), authority_key=AUTHORITY.public_key, secret="5e"
    )
    bad = control_pb2.DesiredJob(job_id="bad", job_json="{", authority_key=AUTHORITY.public_key, secret="5e")
    orders = [
        control_pb2.Task(task_id=f"{name}/trainer", job_id=name, role=control_pb2.ROLE_TRAINER, fork=3)
        for name in ("bad", "good")
    ]
    tasks, (failed,) = tasks_from_pb(control_pb2.DesiredTasks(tasks=orders, jobs=[bad, good]))
    assert [task.task_id for task in tasks] == ["good/trainer"]
    assert (failed.task_id, failed.job_id, failed.fork, failed.state) == ("bad/trainer", "bad", 3, TaskState.FAILED)


def test_a_task_has_its_operator_and_names_of_secrets(tmp_path: Path) -> None:
    job = tiny_job(tmp_path).model_copy(update={"secrets": {"WANDB_API_KEY": "wandb", "HF_TOKEN": "hub-token"}})
    of_job = control_pb2.DesiredJob(
        job_id="j", job_json=job.to_json(), authority_key=AUTHORITY.public_key, secret="5e", operator="ann"
    )
    order = control_pb2.Task(task_id="j/trainer", job_id="j", role=control_pb2.ROLE_TRAINER)
    (task,), _ = tasks_from_pb(control_pb2.DesiredTasks(tasks=[order], jobs=[of_job]))
    assert (task.operator, task.has_own_code) == ("ann", False)
    assert task.secrets == (("HF_TOKEN", "hub-token"), ("WANDB_API_KEY", "wandb"))


@pytest.mark.parametrize("cause", FailureCause)
def test_the_coordinator_reads_what_the_agent_reports(cause: FailureCause) -> None:
    report = TaskReport(
        task_id="j/trainer",
        job_id="j",
        state=TaskState.FAILED,
        message="why",
        restarts=2,
        fork=3,
        files=RunFiles(run_dir="/run", log="/log"),
        cause=cause,
    )
    assert report_from_pb(report_to_pb(report)) == report
