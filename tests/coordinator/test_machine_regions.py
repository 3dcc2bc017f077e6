"""The coordinator's machine follows regions: whose session counts, what was measured between them, what was sent."""

import pytest

from coordinator.doing import doing
from coordinator.events import (
    FenceSession,
    FleetEvent,
    FleetEventKind,
    HeartbeatSeen,
    JobSubmitted,
    RegionJoined,
    RegionLeft,
    RegionOrder,
    RegionOrdered,
    SendDesired,
    SendProfile,
    Ticked,
)
from coordinator.machine.reservations import device_counts
from coordinator.state import JobState
from periplus.errors import Conflict, NotFound
from periplus.values.policy import Policy
from periplus.values.task import TaskState
from tests.support.coordinator.machine_run import Run, hello, report, request


def test_a_second_live_agent_of_a_region_is_refused_with_the_other_host(run: Run) -> None:
    before = run.state
    with pytest.raises(Conflict, match=r"region us .*host-of-us-boot.*another --region"):
        run.do(RegionJoined(hello("us", "other"), 1))
    assert run.state is before


def test_the_same_boot_takes_its_session_over_and_the_older_one_is_fenced(run: Run) -> None:
    effects = run.do(RegionJoined(hello("us", tasks=(report("j/rollout-us-0", TaskState.RUNNING),)), 1))
    assert FenceSession("us", 1) in effects
    assert run.state.regions["us"].epoch == 2
    [sent] = [effect for effect in effects if isinstance(effect, SendDesired)]
    assert [task.task_id for task in sent.tasks] == ["j/rollout-us-0"]


def test_another_agent_takes_a_disconnected_or_silent_region_over(run: Run) -> None:
    run.do(RegionLeft("us", 1))
    run.do(RegionJoined(hello("us", "second"), 1))
    run.now_s += 11
    run.do(Ticked())
    run.do(RegionJoined(hello("us", "third"), 1))
    assert run.state.regions["us"].epoch == 3


def test_the_end_of_a_fenced_session_does_not_disconnect_the_newer_one(run: Run) -> None:
    run.do(RegionJoined(hello("us"), 1))
    run.do(RegionLeft("us", 1))
    assert run.state.regions["us"].connected


def test_a_silent_region_is_ready_again_at_its_next_word(run: Run) -> None:
    run.now_s += 11
    run.do(Ticked())
    assert not run.state.regions["us"].connected
    run.do(HeartbeatSeen(run.stamp("us"), {"eu": 7}))
    assert run.state.regions["us"].connected
    assert run.state.regions["us"].sent_bytes == {"eu": 7}


def counts(run: Run, region: str, **sent_bytes: int) -> None:
    run.do(HeartbeatSeen(run.stamp(region), {}, {"j": sent_bytes, "unknown": {"eu": 1}}))


def test_the_bytes_of_a_job_are_summed_by_pair_and_in_both_directions(run: Run) -> None:
    counts(run, "eu", us=70)
    counts(run, "us", eu=10)
    counts(run, "eu", us=100)
    assert run.job().sent_bytes == {("eu", "us"): 100, ("us", "eu"): 10}
    assert run.job().wan_bytes == 110


def test_bytes_that_are_reported_after_the_end_of_a_job_count(run: Run) -> None:
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    counts(run, "us", eu=10)
    assert run.job().wan_bytes == 10


def test_the_bytes_of_a_job_do_not_fall_when_an_agents_counter_begins_anew(run: Run) -> None:
    counts(run, "us", eu=100)
    run.do(RegionLeft("us", 1))
    run.do(RegionJoined(hello("us", "second"), 1))
    counts(run, "us", eu=130)
    assert run.job().wan_bytes == 230
    counts(run, "us", eu=5)
    assert run.job().wan_bytes == 235


def test_a_resumed_job_goes_on_counting_its_bytes(run: Run) -> None:
    counts(run, "us", eu=100)
    run.says("eu", "j/trainer", TaskState.FAILED)
    again = request(resume_from="runs/j", resume_policy=Policy(0, 3), resume_job_id="j")
    run.do(JobSubmitted("again", "j2", again))
    counts(run, "us", eu=120)
    assert run.job().wan_bytes == 120


def test_nothing_new_is_placed_in_a_cordoned_region_and_what_runs_there_goes_on(run: Run) -> None:
    run.do(RegionOrdered("us", RegionOrder.CORDON))
    assert "j/rollout-us-0" in run.desired("us")
    assert "us" not in device_counts(run.state)
    run.do(JobSubmitted("r2", "k", request(min_regions=2)))
    assert "us is cordoned; `periplus region uncordon` opens it" in run.job("k").reason
    run.do(RegionOrdered("us", RegionOrder.UNCORDON))
    assert "cordoned" not in run.job("k").reason


def test_the_workers_of_a_drained_region_leave_and_come_back(run: Run) -> None:
    run.says("us", "j/rollout-us-0", TaskState.RUNNING)
    run.do(RegionOrdered("us", RegionOrder.DRAIN, "operator at here"))
    assert not run.desired("us")
    assert doing(run.state, run.job(), run.now_s).endswith("us is drained: no worker runs there")
    run.says("us", "j/rollout-us-0", TaskState.STOPPED)
    assert run.job().state is JobState.RUNNING
    run.do(RegionJoined(hello("us"), 1))
    assert not run.desired("us"), "a new session changes nothing"
    run.do(RegionOrdered("us", RegionOrder.UNCORDON))
    assert "j/rollout-us-0" in run.desired("us")
    (told,) = [each for each in run.effects if isinstance(each, FleetEvent)]
    assert (told.kind, told.text, told.region) == (FleetEventKind.REGION_ORDERED, "uncordon", "us")


def test_the_trainer_of_a_drained_region_stays_until_its_job_has_ended(run: Run) -> None:
    run.do(RegionOrdered("eu", RegionOrder.DRAIN))
    assert set(run.desired("eu")) == {"j/trainer"}
    (told,) = [each for each in run.effects if isinstance(each, FleetEvent)]
    assert told.text == "drain; the trainers of j stay"


def test_only_a_region_without_agent_and_tasks_is_forgotten(run: Run) -> None:
    for name, why in (("eu", "its agent is connected"), ("nowhere", "no region 'nowhere'")):
        with pytest.raises((Conflict, NotFound), match=why):
            run.do(RegionOrdered(name, RegionOrder.REMOVE))
    run.do(RegionLeft("us", 1))
    with pytest.raises(Conflict, match="it has tasks of j"):
        run.do(RegionOrdered("us", RegionOrder.REMOVE))
    run.join("ap")
    run.measure_all()
    run.do(RegionLeft("ap", 1))
    run.do(RegionOrdered("ap", RegionOrder.REMOVE))
    assert "ap" not in run.state.regions
    assert not [pair for pair in run.state.links if "ap" in pair]


def test_a_region_is_profiled_only_while_its_agent_is_there_and_no_job_is(run: Run) -> None:
    with pytest.raises(Conflict, match="us cannot be profiled: it has tasks of j"):
        run.do(RegionOrdered("us", RegionOrder.PROFILE))
    run.join("asia")
    order = RegionOrdered("asia", RegionOrder.PROFILE, "me", "{}", "config")
    (sent,) = (effect for effect in run.do(order) if isinstance(effect, SendProfile))
    assert (sent.region, sent.job_json, sent.model_config) == ("asia", "{}", "config")
    run.do(RegionLeft("asia", run.state.regions["asia"].epoch))
    with pytest.raises(Conflict, match="asia cannot be profiled: its agent is not connected"):
        run.do(order)
