"""What an agent exports to Prometheus: samples of its parts, and the endpoint of a whole agent."""

import asyncio
import json
from pathlib import Path

import pytest

from periplus.codec.frame import CodecId, Frame
from periplus.errors import Conflict
from periplus.process.exported_metrics import AGENT_METRICS
from periplus.process.lifecycle import ShutdownReason
from periplus.values.machine import Device, DeviceFamily, Machine
from periplus.values.task import Role, TaskOutcome, TaskState
from periplus.values.transport_keys import FrameKey
from region_agent.app import run
from region_agent.config import AgentConfig
from region_agent.control.reconcile import LocalTask, Process
from region_agent.exported import SessionStatus, agent_samples
from region_agent.gateway.hub import JobHub
from tests.support.coordinator.fake_coordinator import FakeCoordinator, served
from tests.support.gateway.loopback import JOB, anchor, frame_spool, play, played, until, weight_cache
from tests.support.keys import JOB_SECRET
from tests.support.processes.scrape import scraped, told, value

OWN = Machine(
    name="h",
    num_cores=2,
    memory_bytes=1 << 30,
    devices=(
        Device(index=0, kind=DeviceFamily.CPU),
        Device(index=1, kind=DeviceFamily.CPU, problem="it is hot"),
    ),
)


def process(task_id: str, role: Role, outcome: TaskOutcome | None = None) -> Process:
    task = LocalTask(
        task_id=task_id,
        job_id=JOB,
        role=role,
        job_json="{}",
        trainer_region="us",
        trainer_gateway="us:1",
        fork=0,
        resume_from="",
        plan_json="{}",
        stopping=False,
        authority_key="ab" * 32,
        job_secret=JOB_SECRET,
        output_dir="runs",
        max_restarts=3,
    )
    return Process(
        task=task, started_at_s=0, restarts=0, asked_to_stop_at_s=None, killed=False, outcome=outcome, ended_at_s=None
    )


def key(sequence: int) -> FrameKey:
    return FrameKey(worker_id="w", epoch=1, sequence=sequence)


def exported(
    *processes: Process, age_s: float | None = 5.0, sent: dict[str, int] | None = None, hubs: tuple[JobHub, ...] = ()
) -> dict[str, float]:
    samples = list(
        agent_samples(
            "us",
            version="1.2.3",
            session=SessionStatus(epoch=4, age_s=age_s),
            machine=OWN,
            processes={each.task.task_id: each for each in processes},
            sent_bytes=sent or {},
            hubs=hubs,
        )
    )
    assert {each.metric for each in samples} <= set(AGENT_METRICS)
    return told(samples)


def test_session_devices_and_bytes_are_told() -> None:
    assert exported(sent={"eu": 300}) == {
        "periplus_build_info 1.2.3": 1,
        "periplus_agent_session_connected us": 1,
        "periplus_agent_session_epoch us": 4,
        "periplus_agent_session_age_seconds us": 5,
        "periplus_agent_devices us": 2,
        "periplus_agent_device_problems us": 1,
        "periplus_agent_sent_bytes_total us,eu": 300,
    }


def test_a_session_that_is_lost_has_no_age() -> None:
    found = exported(age_s=None)
    assert found["periplus_agent_session_connected us"] == 0
    assert "periplus_agent_session_age_seconds us" not in found


def test_processes_are_counted_by_role_and_state() -> None:
    failed = TaskOutcome(state=TaskState.FAILED, message="it broke")
    found = exported(
        process("a", Role.TRAINER),
        process("b", Role.ROLLOUT),
        process("c", Role.ROLLOUT),
        process("d", Role.ROLLOUT, failed),
    )
    assert found["periplus_agent_processes us,trainer,running"] == 1
    assert found["periplus_agent_processes us,rollout,running"] == 2
    assert found["periplus_agent_processes us,rollout,failed"] == 1


@played
async def test_a_job_is_told_with_its_spool_and_its_newest_weights() -> None:
    frames = frame_spool(max_bytes=50_000)
    hub = JobHub(JOB, "us", frames, weight_cache(), secret=JOB_SECRET)
    labels = f"{JOB},us"
    found = exported(hubs=(hub,))
    assert found[f"periplus_agent_spool_frames {labels}"] == found[f"periplus_agent_spool_bytes {labels}"] == 0
    assert f"periplus_agent_weights_version {labels}" not in found

    frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, bytes(30_000))
    await frames.take(key(1), frame)
    blocked = asyncio.create_task(frames.take(key(2), frame))
    await until(lambda: bool(frames.obstacle))
    for record in anchor(7).records():
        hub.feed.append(record)
    found = exported(hubs=(hub,))
    assert found[f"periplus_agent_spool_frames {labels}"] == 1
    assert 30_000 < found[f"periplus_agent_spool_bytes {labels}"] < found[f"periplus_agent_spool_limit_bytes {labels}"]
    assert found[f"periplus_agent_spool_limit_bytes {labels}"] == 50_000
    assert found[f"periplus_agent_spool_blocked {labels}"] == 1
    assert found[f"periplus_agent_weights_version {labels}"] == 7

    frames.commit([key(1)])
    await blocked
    assert exported(hubs=(hub,))[f"periplus_agent_spool_blocked {labels}"] == 0


def config(folder: Path, coordinator: str, metrics: str) -> AgentConfig:
    return AgentConfig(
        plaintext=True,
        region="us",
        coordinator=coordinator,
        listen="127.0.0.1:0",
        metrics_listen=metrics,
        advertise="",
        work_dir=folder,
        state_dir=folder / "state",
        wan="",
        num_cores=2,
        memory_bytes=1 << 30,
        worker_threads=1,
        trainer_threads=1,
        stop_grace_s=5.0,
        restart_backoff_s=0.1,
    )


def test_an_agent_serves_its_session_to_a_scraper(tmp_path: Path) -> None:
    async def scene() -> None:
        fake, ready = FakeCoordinator(), tmp_path / "ready.json"
        async with served(fake) as coordinator:
            agent = run(config(tmp_path, coordinator, "127.0.0.1:0"), ready_file=ready, stop_on_stdin_eof=False)
            running: asyncio.Task[ShutdownReason] = asyncio.create_task(agent)
            try:
                await until(lambda: ready.exists() and len(fake.came) > 1)
                text = await asyncio.to_thread(scraped, json.loads(ready.read_text())["metrics"])
            finally:
                running.cancel()
                await asyncio.wait({running})
        assert value(text, "periplus_agent_session_connected", region="us") == 1
        assert value(text, "periplus_agent_session_epoch", region="us") == 1
        age_s = value(text, "periplus_agent_session_age_seconds", region="us")
        assert age_s is not None
        assert 0 <= age_s < 100

    play(scene)


def test_a_taken_port_of_metrics_is_a_conflict(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(FakeCoordinator()) as coordinator:
            with pytest.raises(Conflict, match="the port is in use"):
                await run(config(tmp_path, coordinator, coordinator), ready_file=None, stop_on_stdin_eof=False)

    play(scene)
