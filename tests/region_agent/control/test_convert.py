"""What the session with the coordinator carries is converted without loss."""

import pytest

from coordinator.convert import report_from_pb
from periplus.errors import WireError
from periplus.pb.v1 import control_pb2
from periplus.values.task import RunFiles, TaskReport, TaskState
from region_agent.control.convert import report_to_pb, task_from_pb


@pytest.mark.parametrize("job_id", ["", ".", "..", "../j", "/j", "a/b", "a\0b"])
def test_a_job_id_that_is_no_name_of_a_directory_is_refused(job_id: str) -> None:
    with pytest.raises(WireError, match="component of a path"):
        task_from_pb(control_pb2.Task(job_id=job_id))


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
