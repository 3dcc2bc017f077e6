"""Events of a job as the live view takes them."""

import pytest

from coordinator.client.connection import view_event
from periplus.pb.v1 import control_pb2
from periplus.view.state import JobChanged
from tests.support.planner.predicted_plan import PLAN


@pytest.mark.parametrize(("plan_json", "plan"), [("", {}), (PLAN.to_json(), PLAN.to_tree())])
def test_an_event_of_a_job_brings_its_plan(plan_json: str, plan: object) -> None:
    event = control_pb2.JobEvent(time_s=3.0, job=control_pb2.Job(job_id="j", name="n", plan_json=plan_json))
    seen = view_event(event)
    assert isinstance(seen, JobChanged)
    assert (seen.job_id, seen.at_s, seen.plan) == ("j", 3.0, plan)
