"""What a coordinator exports to Prometheus: samples of its state, bounded by what lives, and the endpoint itself."""

import asyncio
import json
from dataclasses import replace

import pytest

from coordinator.app import serving
from coordinator.config import CoordinatorConfig
from coordinator.events import (
    HeartbeatSeen,
    InventoryChanged,
    JobCancelled,
    JobSubmitted,
    RegionLeft,
    RegionOrder,
    RegionOrdered,
    StepRecorded,
)
from coordinator.exported.samples import coordinator_samples, planned_step_s
from coordinator.state import JobState, PlacedProcesses
from periplus.__main__ import run as periplus
from periplus.net import rpc
from periplus.process.exported_metrics import COORDINATOR_METRICS
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.task import TaskState
from tests.support.coordinator.loopback import DEADLINE_S, FakeAgent
from tests.support.coordinator.machine_run import Run, request
from tests.support.coordinator.machines import inventory, machine
from tests.support.planner.predicted_plan import PLAN
from tests.support.processes.scrape import scraped, told, value


def exported(run: Run) -> dict[str, float]:
    samples = list(coordinator_samples(run.state, run.now_s, "1.2.3"))
    assert {each.metric for each in samples} <= set(COORDINATOR_METRICS)
    return told(samples)


def steps(run: Run, *values: dict[str, float]) -> None:
    for version, measured in enumerate(values, 1):
        record = Record(kind=RecordKind.STEP, policy=Policy(0, version), time_s=float(version), values=measured)
        run.do(StepRecorded(run.stamp("eu"), "j", record))


def test_an_empty_fleet_has_its_version_and_no_job() -> None:
    found = exported(Run())
    assert found.pop("periplus_build_info 1.2.3") == 1
    assert found.pop("periplus_planning") == 0
    assert found == {f"periplus_jobs {state}": 0 for state in JobState}


def test_regions_are_told_with_session_mode_devices_and_bytes(run: Run) -> None:
    broken = machine("host-of-us-boot", groups=2)
    devices = (broken.devices[0], replace(broken.devices[1], problem="it is hot"))
    run.do(InventoryChanged(run.stamp("us"), inventory(replace(broken, devices=devices))))
    run.do(HeartbeatSeen(run.stamp("us"), {"eu": 500}, {"j": {"eu": 300}}))
    run.do(RegionOrdered("us", RegionOrder.CORDON))
    run.now_s += 4
    run.do(RegionLeft("us", run.state.regions["us"].epoch))
    found = exported(run)
    assert (found["periplus_region_connected eu"], found["periplus_region_connected us"]) == (1, 0)
    assert found["periplus_region_mode us,cordoned"] == found["periplus_region_mode eu,open"] == 1
    assert "periplus_region_mode us,open" not in found
    assert found["periplus_region_silence_seconds us"] == 4
    assert found["periplus_region_sessions_total us"] == run.state.regions["us"].epoch
    assert (found["periplus_region_devices us"], found["periplus_region_device_problems us"]) == (2, 1)
    assert found["periplus_region_sent_bytes_total us,eu"] == 500
    assert found["periplus_job_sent_bytes_total j,us,eu"] == 300


def test_links_are_told_in_bytes_with_those_that_fail(run: Run) -> None:
    run.wait(700.0)  # until they are measured again
    assert ("eu", "us") in run.state.probes
    run.probe_fails("eu", "us")
    found = exported(run)
    assert found["periplus_link_rtt_seconds eu,us"] == 0.1
    assert found["periplus_link_throughput_bytes_per_second us,eu"] == 1e8 / 8
    assert (found["periplus_link_failed eu,us"], found["periplus_link_failed us,eu"]) == (1, 0)


def test_a_running_job_is_told_with_its_processes_and_means_of_its_steps(run: Run) -> None:
    first = {"step_s": 90.0, "train_s": 5.0}
    other = {"step_s": 12.0, "train_s": 6.0, "wait_s": 5.0, "publish_s": 0.5, "reward_mean": 1.0}
    by_region = {"weights_s_region/us": 3.0, "generation_s_region/us": 9.0, "tokens_per_s_region/eu": 100.0}
    steps(run, first, other | by_region)
    run.now_s += 7
    found = exported(run)
    assert found["periplus_job_state j,running"] == found["periplus_jobs running"] == 1
    assert (found["periplus_job_policy_version j"], found["periplus_job_fork j"]) == (2, 0)
    assert found["periplus_job_silence_seconds j"] == 7
    assert found["periplus_job_step_seconds j"] == 12, "the first step is not counted"
    assert found["periplus_job_training_seconds j"] == 6
    assert found["periplus_job_waiting_seconds j"] == 5
    assert found["periplus_job_publication_seconds j"] == 0.5
    assert found["periplus_job_region_weights_seconds j,us"] == 3
    assert found["periplus_job_region_generation_seconds j,us"] == 9
    assert found["periplus_job_region_tokens_per_second j,eu"] == 100
    assert found["periplus_tasks eu,trainer,running"] == 1
    assert found["periplus_tasks us,rollout,assigned"] == 1
    assert not any("reward" in name for name in found)


def test_a_plan_tells_the_seconds_of_a_step(run: Run) -> None:
    job = run.job()
    assert job.placement is not None
    assert "periplus_job_planned_step_seconds j" not in exported(run), "a plan without predictions"
    placement = PlacedProcesses(processes=job.placement.processes, plan_json=json.dumps(PLAN.to_tree()))
    run.state = replace(run.state, jobs={"j": replace(job, placement=placement)})
    assert exported(run)["periplus_job_planned_step_seconds j"] == planned_step_s(placement.plan_json) == 10.0


def test_a_pending_job_tells_how_long_it_waits() -> None:
    run = Run()
    run.do(JobSubmitted("r", "j", request(min_regions=2)))
    run.wait(90.0)
    found = exported(run)
    assert found["periplus_job_pending_seconds j"] == 90
    assert found["periplus_job_state j,pending"] == 1
    assert "periplus_job_policy_version j" not in found


def test_a_job_that_has_ended_is_only_counted(run: Run) -> None:
    steps(run, {"step_s": 1.0})
    run.do(JobCancelled("j"))
    for region, task_id in (("eu", "j/trainer"), ("eu", "j/rollout-eu-0"), ("us", "j/rollout-us-0")):
        run.says(region, task_id, TaskState.STOPPED)
    assert run.job().ended
    found = exported(run)
    assert found["periplus_jobs cancelled"] == 1
    assert not [name for name in found if name.startswith(("periplus_job_", "periplus_tasks"))]


def test_a_coordinator_serves_its_state_to_a_scraper() -> None:
    async def scene() -> None:
        server = rpc.server()
        address = rpc.bind(server, "127.0.0.1:0")
        config = CoordinatorConfig(listen=address, metrics_listen="127.0.0.1:0")
        async with serving(config, server) as others, FakeAgent(address, "eu"):
            text = await asyncio.to_thread(scraped, others["metrics"])
            assert value(text, "periplus_region_connected", region="eu") == 1
            assert value(text, "periplus_region_devices", region="eu") == 2

    async def within_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scene()

    asyncio.run(within_time())


def test_a_taken_port_of_metrics_is_a_conflict(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        server = rpc.server()
        taken = rpc.bind(server, "127.0.0.1:0")
        words = ["coordinator", "--plaintext", "--listen", "127.0.0.1:0", "--metrics", taken, "--log-level", "error"]
        assert await asyncio.to_thread(periplus, words) == 7
        await server.stop(None)

    asyncio.run(scene())
    assert "the port is in use" in capsys.readouterr().err


def test_an_address_of_metrics_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["coordinator", "--metrics", "nowhere", "--log-level", "error"]) == 2
    assert "is not HOST:PORT" in capsys.readouterr().err
