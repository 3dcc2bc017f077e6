"""The whole agent with a policy, between a coordinator played by hand and workers that do nothing."""

import asyncio
import hashlib
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from periplus import clock
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile
from periplus.pb.v1 import control_pb2
from periplus.values.task import FailureCause, Role
from region_agent import app
from region_agent.app import run
from region_agent.config import AgentConfig
from region_agent.gateway.traffic import Traffic
from region_agent.launchers.local import MODULE_OF
from region_agent.owner.egress import DayOfEgress, kept_day
from region_agent.owner.policy_file import AgentPolicy, SecretSource
from region_agent.owner.region_owner import RegionOwner
from region_agent.state_directory import StateDirectory
from tests.support.coordinator.fake_coordinator import FakeCoordinator, served
from tests.support.coordinator.machines import inventory, machine
from tests.support.gateway.loopback import JOB, play, until
from tests.support.keys import AUTHORITY, JOB_SECRET

TASK = f"{JOB}/rollout:us:0"
SECRET = "hidden-7f3a91"
FAILED, RUNNING = control_pb2.TASK_STATE_FAILED, control_pb2.TASK_STATE_RUNNING


@pytest.fixture(autouse=True)
def small_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for role in Role:
        monkeypatch.setitem(MODULE_OF, role, "tests.region_agent.tiny_worker")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def write_policy(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(f"schema: periplus.agent-policy/1\n{text}")
    return path


@asynccontextmanager
async def agent(tmp_path: Path, policy: str, **changes: Any) -> AsyncIterator[FakeCoordinator]:
    fake = FakeCoordinator()
    async with served(fake) as coordinator:
        fields = {
            "plaintext": True,
            "region": "us",
            "coordinator": coordinator,
            "listen": "127.0.0.1:0",
            "advertise": "",
            "work_dir": tmp_path,
            "state_dir": tmp_path / "state",
            "wan": "",
            "num_cores": 3,
            "memory_bytes": 1 << 30,
            "worker_threads": 1,
            "trainer_threads": 1,
            "stop_grace_s": 5.0,
            "restart_backoff_s": 0.1,
            "policy_file": write_policy(tmp_path, policy),
        }
        config = AgentConfig(**{**fields, **changes})
        running = asyncio.create_task(run(config, ready_file=None, stop_on_stdin_eof=False))
        try:
            await until(lambda: bool(fake.hellos) or running.done())
            yield fake
        finally:
            running.cancel()
            await asyncio.wait({running})


def wanted(
    *,
    operator: str = "",
    devices: tuple[int, ...] = (),
    fork: int = 0,
    role: Any = control_pb2.ROLE_ROLLOUT,
    **job: Any,
) -> control_pb2.CoordinatorMessage:
    file = JobFile.model_validate({"name": "sums", "environment": {"name": "chain_sum"}, "steps": 3, **job})
    of_job = control_pb2.DesiredJob(
        job_id=JOB,
        job_json=file.to_json(),
        authority_key=AUTHORITY.public_key,
        secret=JOB_SECRET,
        operator=operator,
    )
    task = control_pb2.Task(
        task_id=TASK if role == control_pb2.ROLE_ROLLOUT else f"{JOB}/trainer",
        job_id=JOB,
        role=role,
        trainer_region="us" if role == control_pb2.ROLE_TRAINER else "eu",
        trainer_gateway="127.0.0.1:1",
        devices=devices,
        fork=fork,
    )
    return control_pb2.CoordinatorMessage(desired=control_pb2.DesiredTasks(tasks=[task], jobs=[of_job]))


def reports(fake: FakeCoordinator) -> list[control_pb2.TaskReport]:
    return [message.task for message in fake.came if message.HasField("task")]


def inventories(fake: FakeCoordinator) -> list[list[int]]:
    """The indices of the devices that the agent told of, each time."""
    return [
        [device.index for device in message.inventory.machines[0].devices]
        for message in fake.came
        if message.HasField("inventory")
    ]


def told(fake: FakeCoordinator) -> list[int]:
    return [device.index for device in fake.hellos[0].inventory.machines[0].devices]


def kept_paths(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def kept_bytes(folder: Path, name: str = "*") -> bytes:
    return b"".join(path.name.encode() + path.read_bytes() for path in kept_paths(folder) if path.match(name))


def test_a_job_of_another_operator_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with agent(tmp_path, "operators: [ann]\n") as fake:
            fake.orders.put_nowait(wanted(operator="bob"))
            await until(lambda: bool(reports(fake)))
            (said,) = reports(fake)
            assert (said.task_id, said.state, said.cause) == (TASK, FAILED, FailureCause.OWNER)
            assert said.message == (
                f"the owner of the region refuses {TASK}: the operator bob may run nothing here "
                f"(operators in {tmp_path / 'policy.yaml'} is ann)"
            )
            left = {path.name for path in kept_paths(tmp_path)}
            assert left == {"policy.yaml", "gateway"}, "the job has left something"
            fake.orders.put_nowait(wanted(operator="ann"))
            await asyncio.sleep(0.3)
            assert len(reports(fake)) == 1, "what was said of a task must not change"
            fake.orders.put_nowait(wanted(operator="ann", fork=1))
            await until(lambda: reports(fake)[-1].state == RUNNING)

    play(scene)


def test_devices_that_jobs_may_not_use_are_not_told_and_a_task_on_one_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with agent(tmp_path, "devices: [0, 2]\n") as fake:
            assert told(fake) == [0, 2]
            fake.orders.put_nowait(wanted(devices=(1,)))
            await until(lambda: bool(reports(fake)))
            assert (reports(fake)[0].state, reports(fake)[0].cause) == (FAILED, FailureCause.DEVICE)

    play(scene)


def test_a_changed_file_counts_at_once_after_a_signal_and_stops_what_it_forbids(tmp_path: Path) -> None:
    async def scene() -> None:
        async with agent(tmp_path, "operators: [ann]\n") as fake:
            fake.orders.put_nowait(wanted(operator="ann"))
            await until(lambda: bool(reports(fake)))
            write_policy(tmp_path, "operators: [bob]\ndevices: [1]\n")
            os.kill(os.getpid(), signal.SIGUSR1)
            await until(lambda: inventories(fake) == [[1]])
            await until(lambda: reports(fake)[-1].state == FAILED)
        states = [each.state for each in reports(fake)]
        assert states == [RUNNING, RUNNING, FAILED], "it is asked to stop, and ended"
        assert "operator ann" in reports(fake)[1].message
        assert reports(fake)[2].cause == FailureCause.OWNER
        assert reports(fake)[2].files.log

    play(scene)


def test_a_changed_file_is_found_at_the_next_look_and_a_broken_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "DEVICES_S", 0.05)

    async def scene() -> None:
        async with agent(tmp_path, "devices: [0]\n") as fake:
            write_policy(tmp_path, "devices: [0\n")
            await until(lambda: "owner_policy_broken" in caplog.text)
            assert told(fake) == [0]
            write_policy(tmp_path, "devices: [0, 1]\n")
            await until(lambda: inventories(fake) == [[0, 1]])

    play(scene)


def test_a_broken_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key kings"):
        RegionOwner.of_file(write_policy(tmp_path, "kings: [ann]\n"), tmp_path / "egress.json", 0.0)


def test_used_up_egress_stops_what_runs_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Traffic()
    monkeypatch.setattr(app, "Traffic", lambda: counted)

    async def scene() -> None:
        async with agent(tmp_path, "egress_gb_per_day: 0.001\n") as fake:
            fake.orders.put_nowait(wanted(role=control_pb2.ROLE_TRAINER))
            await until(lambda: bool(reports(fake)))
            assert reports(fake)[0].state == RUNNING
            counted.sent("eu", 2_000_000)
            await until(lambda: reports(fake)[-1].state == FAILED)
            said = reports(fake)[-1]
            assert said.cause == FailureCause.OWNER
            assert "opens again at 2" in said.message
            assert "egress_gb_per_day" in said.message
            assert said.message.encode() in kept_bytes(tmp_path, "outcome.json"), "the run says why, too"
        assert kept_day(tmp_path / "state" / "egress.json").sent_bytes > 2_000_000

    play(scene)


def test_another_agent_knows_what_was_sent_today(tmp_path: Path) -> None:
    day = DayOfEgress().counted(2_000_000, clock.unix_s())
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "egress.json").write_text(day.to_json())

    async def scene() -> None:
        async with agent(tmp_path, "egress_gb_per_day: 0.001\n") as fake:
            fake.orders.put_nowait(wanted())
            await until(lambda: bool(reports(fake)))
            assert (reports(fake)[0].state, reports(fake)[0].cause) == (FAILED, FailureCause.OWNER)

    play(scene)


def test_a_new_day_lets_the_coordinator_plan_here_again(tmp_path: Path) -> None:
    async def scene() -> None:
        owner = RegionOwner.of_file(write_policy(tmp_path, ""), tmp_path / "egress.json", 0.0)
        assert not await owner.changed(0.01)
        await owner.count(10, 3600.0)
        assert not await owner.changed(0.01)
        await owner.count(10, 86_400.0)
        assert await owner.changed(60.0)
        assert not await owner.changed(0.01)

    play(scene)


def test_a_gateway_relays_no_more_once_the_days_egress_is_used_up(tmp_path: Path) -> None:
    offers = replace(inventory(machine()), relays=True)

    async def scene() -> None:
        owner = RegionOwner.of_file(write_policy(tmp_path, "egress_gb_per_day: 1\n"), tmp_path / "egress.json", 0.0)
        assert owner.spent() == ""
        assert owner.offered(offers).relays
        await owner.count(1_000_000_000, 3600.0)
        assert owner.spent().endswith("lets it send 1 GB a day; it relays again at 1970-01-02 00:00 UTC")
        assert not owner.offered(offers).relays
        await owner.count(1_000_000_000, 86_400.0)
        assert owner.offered(offers).relays
        assert RegionOwner().offered(offers).relays

    play(scene)


def test_the_value_of_a_secret_reaches_the_jobs_process_and_no_file_log_or_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HUB", SECRET)
    caplog.set_level(logging.DEBUG, "region_agent")
    policy = "secrets: {hub-token: {env: HUB}}\n"

    async def scene() -> None:
        async with agent(tmp_path, policy) as fake:
            fake.orders.put_nowait(wanted(secrets={"HF_TOKEN": "hub-token"}))
            digest = hashlib.sha256(SECRET.encode()).hexdigest()
            await until(lambda: digest.encode() in kept_bytes(tmp_path, "token_digest"))
            # While the process runs, its task file and what the agent noted of it are there.
            kept = kept_bytes(tmp_path)
            assert b"hub-token" in kept
            assert SECRET.encode() not in kept
        assert not any(SECRET in str(message) for message in (*fake.came, *fake.hellos))

    play(scene)
    assert SECRET.encode() not in kept_bytes(tmp_path)
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "hub-token" in logged
    assert SECRET not in logged


@pytest.mark.parametrize("policy", ["", "secrets: {hub-token: {env: NOT_THERE}}\n"])
def test_a_region_without_the_secret_refuses_the_task_by_its_name(tmp_path: Path, policy: str) -> None:
    async def scene() -> None:
        async with agent(tmp_path, policy) as fake:
            fake.orders.put_nowait(wanted(secrets={"HF_TOKEN": "hub-token"}))
            await until(lambda: bool(reports(fake)))
            (said,) = reports(fake)
            assert (said.state, said.cause) == (FAILED, FailureCause.OWNER)
            assert "secret hub-token" in said.message
            assert "policy.yaml" in said.message

    play(scene)


def test_an_agent_without_a_policy_has_no_secrets_and_keeps_no_count(tmp_path: Path) -> None:
    async def scene() -> None:
        async with agent(tmp_path, "", policy_file=None) as fake:
            fake.orders.put_nowait(wanted(secrets={"HF_TOKEN": "hub-token"}))
            await until(lambda: bool(reports(fake)))
            assert "--policy" in reports(fake)[0].message
        assert not StateDirectory(tmp_path / "state").egress.exists()

    play(scene)


def test_processes_do_not_inherit_the_agents_secrets_and_its_join_token() -> None:
    owner = RegionOwner(policy=AgentPolicy(secrets={"hub-token": SecretSource(env="HUB_TOKEN")}))
    environment = {"HUB_TOKEN": "secret", "PERIPLUS_JOIN_TOKEN": "secret", "HOME": "/root"}
    assert owner.visible(environment) == {"HOME": "/root"}
