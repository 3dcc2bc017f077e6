"""What the session with the coordinator carries is converted without loss."""

import pytest

from periplus.errors import WireError
from periplus.pb.v1 import control_pb2
from region_agent.control.convert import task_from_pb


@pytest.mark.parametrize("job_id", ["", ".", "..", "../j", "/j", "a/b", "a\0b"])
def test_a_job_id_that_is_no_name_of_a_directory_is_refused(job_id: str) -> None:
    with pytest.raises(WireError, match="component of a path"):
        task_from_pb(control_pb2.Task(job_id=job_id))
