"""What is published over MQTT, without a broker: retained states by topic, events and steps."""

import json
from dataclasses import replace
from math import nan

from hypothesis import given
from hypothesis import strategies as st

from coordinator.events import (
    FleetEvent,
    FleetEventKind,
    HeartbeatSeen,
    InventoryChanged,
    RegionOrder,
    RegionOrdered,
    StepRecorded,
)
from coordinator.exported.mqtt_messages import (
    MqttMessage,
    encoded,
    event_message,
    presence,
    state_messages,
    step_message,
)
from coordinator.state import State
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from tests.support.coordinator.machine_run import Run, record
from tests.support.coordinator.machines import inventory, machine


def told(before: State | None, after: State) -> dict[str, MqttMessage]:
    messages = list(state_messages(before, after, "p"))
    assert all(message.retain and message.qos == 1 for message in messages)
    assert len({message.topic for message in messages}) == len(messages)
    return {message.topic: message for message in messages}


def test_from_nothing_all_regions_and_jobs_are_told(run: Run) -> None:
    found = told(None, run.state)
    assert set(found) == {"p/regions/eu", "p/regions/us", "p/jobs/j"}
    region = json.loads(found["p/regions/eu"].text)
    assert (region["region"], region["connected"], region["mode"]) == ("eu", True, "open")
    assert region["epoch"] == run.state.regions["eu"].epoch
    assert region["devices"] == [{"kind": "cpu", "model": "", "count": 1, "failing": 0}]
    job = json.loads(found["p/jobs/j"].text)
    assert (job["job_id"], job["state"], job["policy"]) == ("j", "running", None)
    assert job["reason"] == run.job().reason


def test_a_heartbeat_tells_nothing_and_a_changed_device_its_region(run: Run) -> None:
    before = run.state
    run.do(HeartbeatSeen(run.stamp("us"), {"eu": 500}))
    assert run.state is not before
    assert told(before, run.state) == {}
    broken = machine("h", groups=2)
    devices = (broken.devices[0], replace(broken.devices[1], problem="it is hot"))
    run.do(InventoryChanged(run.stamp("us"), inventory(replace(broken, devices=devices))))
    found = told(before, run.state)
    assert set(found) == {"p/regions/us"}
    assert json.loads(found["p/regions/us"].text)["devices"][0]["failing"] == 1


def test_a_mode_and_a_policy_are_told(run: Run) -> None:
    before = run.state
    run.do(RegionOrdered("us", RegionOrder.CORDON))
    run.do(StepRecorded(run.stamp("eu"), "j", record(3)))
    found = told(before, run.state)
    assert set(found) == {"p/regions/us", "p/jobs/j"}
    assert json.loads(found["p/regions/us"].text)["mode"] == "cordoned"
    assert json.loads(found["p/jobs/j"].text)["policy"] == "0.3"


def test_what_is_forgotten_is_cleared(run: Run) -> None:
    found = told(run.state, replace(run.state, jobs={}, regions={"eu": run.state.regions["eu"]}))
    assert {topic: message.text for topic, message in found.items()} == {"p/jobs/j": "", "p/regions/us": ""}


def test_an_event_and_a_step_are_json(run: Run) -> None:
    event = FleetEvent(FleetEventKind.REGION_JOINED, "it joined", region="eu", actor="ann")
    message = event_message(7, 12.5, event, "p")
    assert (message.topic, message.qos, message.retain) == ("p/events", 1, False)
    assert json.loads(message.text) == {
        "number": 7,
        "time_s": 12.5,
        "kind": "region_joined",
        "text": "it joined",
        "job_id": "",
        "region": "eu",
        "actor": "ann",
    }
    step = Record(kind=RecordKind.STEP, policy=Policy(0, 4), time_s=9.0, values={"reward_mean": 0.5, "loss": nan})
    message = step_message("j", step, "p")
    assert (message.topic, message.qos, message.retain) == ("p/jobs/j/step", 0, False)
    found = json.loads(message.text)
    assert (found["version"], found["reward_mean"], found["loss"]) == (4, 0.5, None)


def test_presence_is_retained() -> None:
    message = presence("p", online=False, version="1.2", started_s=5.0)
    assert (message.topic, message.retain) == ("p/coordinator", True)
    assert json.loads(message.text) == {"online": False, "version": "1.2", "started_s": 5.0}


@given(st.text(), st.text())
def test_names_are_one_level_of_a_topic_and_stay_apart(a: str, b: str) -> None:
    assert not set(encoded(a)) & set("/+#")
    assert (encoded(a) == encoded(b)) == (a == b)
    assert encoded("aws:us-east-1") == "aws:us-east-1"
    assert encoded("a/b+c#d%") == "a%2Fb%2Bc%23d%25"
