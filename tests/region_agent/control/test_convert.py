"""What the session with the coordinator carries is converted without loss."""

import pytest

from coordinator.convert import report_from_pb
from periplus.errors import WireError
from periplus.pb.v1 import control_pb2
from periplus.values.task import RunFiles, TaskReport, TaskState
from region_agent.control.convert import report_to_pb, tasks_from_pb


@pytest.mark.parametrize("job_id", ["", ".", "..", "../j", "/j", "a/b", "a\0b"])
def test_a_job_id_that_is_no_name_of_a_directory_is_refused(job_id: str) -> None:
    with pytest.raises(WireError, match="component of a path"):
        tasks_from_pb(control_pb2.DesiredTasks(tasks=[control_pb2.Task(job_id=job_id)]))


def test_a_task_without_the_secret_of_its_job_is_refused() -> None:
    task = control_pb2.Task(task_id="j/trainer", job_id="j", role=control_pb2.ROLE_TRAINER)
    for jobs in ([], [control_pb2.DesiredJob(job_id="j")], [control_pb2.DesiredJob(job_id="k", secret="5e")]):
        with pytest.raises(WireError, match="without its job or the job's secret"):
            tasks_from_pb(control_pb2.DesiredTasks(tasks=[task], jobs=jobs))


@pytest.mark.parametrize("lacks_device", [False, True])
def test_the_coordinator_reads_what_the_agent_reports(lacks_device: bool) -> None:
    report = TaskReport(
        task_id="j/trainer",
        job_id="j",
        state=TaskState.FAILED,
        message="why",
        restarts=2,
        fork=3,
        files=RunFiles(run_dir="/run", log="/log"),
        is_misplaced=True,
        lacks_device=lacks_device,
    )
    assert report_from_pb(report_to_pb(report)) == report
