"""What a coordinator publishes over MQTT, as a function of its states, events and records (docs/mqtt.md).

A retained message tells the present state of a region or a job, and is published when its text has changed. A region or
a job that is forgotten is cleared by an empty retained message. Nothing that changes with each heartbeat is told.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

from coordinator.events import FleetEvent
from coordinator.state import Job, RegionState, State
from periplus.config import finite_json
from periplus.values.record import Record

_Told = TypeVar("_Told")

_ENCODED = str.maketrans({mark: f"%{ord(mark):02X}" for mark in "%/+#"})
"""Characters that mean something in a topic, or in this encoding, percent-encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttMessage:
    """A message to publish. An empty `text` of a retained message clears its topic."""

    topic: str
    text: str
    qos: int = 1
    retain: bool = False


def presence(prefix: str, *, online: bool, version: str, started_s: float) -> MqttMessage:
    """Return the message that a coordinator is there, or, as its last will, that it is not."""
    text = finite_json.dumps({"online": online, "version": version, "started_s": round(started_s, 3)})
    return MqttMessage(topic=f"{prefix}/coordinator", text=text, retain=True)


def state_messages(before: State | None, after: State, prefix: str) -> Iterator[MqttMessage]:
    """Yield the retained messages that bring subscribers from one state to a later one; all of them from None."""
    regions, jobs = (before.regions, before.jobs) if before else ({}, {})
    yield from _changes(f"{prefix}/regions", regions, after.regions, region_text)
    yield from _changes(f"{prefix}/jobs", jobs, after.jobs, job_text)


def _changes(
    prefix: str, before: Mapping[str, _Told], after: Mapping[str, _Told], text_of: Callable[[_Told], str]
) -> Iterator[MqttMessage]:
    for name, value in after.items():
        old = before.get(name)
        # What has not changed is the same object, as most jobs are.
        if old is not value and (old is None or text_of(old) != text_of(value)):
            yield MqttMessage(topic=f"{prefix}/{encoded(name)}", text=text_of(value), retain=True)
    for name in before.keys() - after.keys():
        yield MqttMessage(topic=f"{prefix}/{encoded(name)}", text="", retain=True)


def region_text(region: RegionState) -> str:
    """Return the state of a region, with the number of its devices of each model and of those that fail."""
    devices = [device for machine in region.hello.inventory.machines for device in machine.devices]
    counts = Counter((device.kind, device.model) for device in devices)
    failing = Counter((device.kind, device.model) for device in devices if device.problem)
    return finite_json.dumps(
        {
            "region": region.hello.region,
            "connected": region.connected,
            "mode": region.mode,
            "epoch": region.epoch,
            "devices": [
                {"kind": kind, "model": model, "count": count, "failing": failing[kind, model]}
                for (kind, model), count in counts.items()
            ],
        }
    )


def job_text(job: Job) -> str:
    """Return the state of a job."""
    return finite_json.dumps(
        {
            "job_id": job.job_id,
            "name": job.request.name,
            "state": job.state,
            "policy": str(job.policy) if job.policy else None,
            "reason": job.reason,
        }
    )


def event_message(number: int, time_s: float, event: FleetEvent, prefix: str) -> MqttMessage:
    """Return the message of an event of the fleet. Its number tells a subscriber which it has had already."""
    text = finite_json.dumps({"number": number, "time_s": time_s, **asdict(event)})
    return MqttMessage(topic=f"{prefix}/events", text=text)


def step_message(job_id: str, record: Record, prefix: str) -> MqttMessage:
    """Return the message of a training step: its line of `metrics.jsonl`."""
    return MqttMessage(topic=f"{prefix}/jobs/{encoded(job_id)}/step", text=record.to_json(), qos=0)


def encoded(name: str) -> str:
    """Return a name as one level of a topic."""
    return name.translate(_ENCODED)
