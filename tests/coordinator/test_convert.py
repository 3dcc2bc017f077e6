"""Every value of ours has one number on the wire, and every number of the wire a value."""

from coordinator.convert import JOB_STATE_TO_PB, TASK_STATE_TO_PB
from coordinator.state import JobState
from periplus.pb.v1 import control_pb2
from periplus.values.task import TaskState


def test_job_states_are_those_of_the_protocol() -> None:
    assert set(JOB_STATE_TO_PB) == set(JobState)
    assert set(JOB_STATE_TO_PB.values()) == set(control_pb2.JobState.values()) - {control_pb2.JOB_STATE_UNSPECIFIED}


def test_task_states_are_those_of_the_protocol() -> None:
    assert set(TASK_STATE_TO_PB) == set(TaskState)
    assert set(TASK_STATE_TO_PB.values()) == set(control_pb2.TaskState.values()) - {control_pb2.TASK_STATE_UNSPECIFIED}
