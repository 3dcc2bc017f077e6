"""Every value of ours has one number on the wire, and every number of the wire a value; links say what they are."""

from coordinator.convert import JOB_STATE_TO_PB, TASK_STATE_TO_PB, agent_event_from_pb, fleet_to_pb
from coordinator.events import ProbeFailed, RegionLeft, Stamp
from coordinator.state import JobState
from periplus.errors import LINE_CHARACTERS
from periplus.pb.v1 import control_pb2
from periplus.values.task import TaskState
from tests.support.coordinator.machine_run import Run


def test_job_states_are_those_of_the_protocol() -> None:
    assert set(JOB_STATE_TO_PB) == set(JobState)
    assert set(JOB_STATE_TO_PB.values()) == set(control_pb2.JobState.values()) - {control_pb2.JOB_STATE_UNSPECIFIED}


def test_task_states_are_those_of_the_protocol() -> None:
    assert set(TASK_STATE_TO_PB) == set(TaskState)
    assert set(TASK_STATE_TO_PB.values()) == set(control_pb2.TaskState.values()) - {control_pb2.TASK_STATE_UNSPECIFIED}


def test_a_failed_probe_is_read_with_its_reason() -> None:
    body = control_pb2.LinkMeasurement(src_region="us", dst_region="eu", error="no route" + "!" * 1000)
    event = agent_event_from_pb("us", control_pb2.AgentMessage(epoch=2, sequence=7, link=body))
    assert isinstance(event, ProbeFailed)
    assert (event.stamp, event.dst_region, event.why[:9]) == (Stamp("us", 2, 7), "eu", "no route!")
    assert len(event.why) == LINE_CHARACTERS


def test_a_fleet_shows_links_that_have_failed_and_those_whose_regions_are_gone() -> None:
    run = Run()
    run.join("ap", "eu", "us")
    run.probe_fails("ap", "eu", "no route")
    run.measure_all()
    run.do(RegionLeft("us", 1))
    links = {(link.src_region, link.dst_region): link for link in fleet_to_pb(run.state).links}
    assert (links["ap", "eu"].failure, links["ap", "eu"].failed_since_s) == ("no route", 1000.0)
    assert (links["ap", "eu"].throughput_bits_per_s, links["ap", "eu"].measured_at_s) == (0.0, 0.0)
    assert [pair for pair, link in links.items() if link.is_stale] == [
        ("ap", "us"),
        ("eu", "us"),
        ("us", "ap"),
        ("us", "eu"),
    ]
