"""The whole agent in this process, between a coordinator played by hand and workers that do nothing."""

import asyncio
import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import Conflict, NotFound, Unreachable
from periplus.job.job_file import JobFile
from periplus.net import rpc
from periplus.net.convert import certificate_to_pb
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.process.lifecycle import ShutdownReason
from periplus.publication import JobAuthority, PublisherKey
from periplus.spool.format import Durability
from periplus.values.machine import Device, DeviceFamily, Inventory
from periplus.values.task import FailureCause, Role
from region_agent import stores
from region_agent.app import run
from region_agent.config import AgentConfig
from region_agent.control.convert import heartbeat_to_pb
from region_agent.control.inventory import inventory
from region_agent.control.reconcile import LocalTask
from region_agent.gateway.frames import FrameSpool, open_frames
from region_agent.gateway.traffic import Traffic
from region_agent.launchers import region_machines
from region_agent.launchers.local import MODULE_OF
from region_agent.state_directory import StateDirectory
from region_agent.stores import open_stores
from region_agent.weights.weight_cache import WeightCache
from tests.support.coordinator.fake_coordinator import FakeCoordinator, served
from tests.support.gateway.loopback import JOB, Trainer, Worker, gateway, play, until
from tests.support.keys import AUTHORITY, JOB_SECRET
from tests.support.left_run import left_run

WORKER = "tests.region_agent.tiny_worker"
TASK = f"{JOB}/rollout:us:0"
KEY = PublisherKey.generate().public_key
JOB_JSON = JobFile.model_validate({"name": "sums", "environment": {"name": "chain_sum"}, "steps": 3}).to_json()
DESIRED_JOB = control_pb2.DesiredJob(
    job_id=JOB, job_json=JOB_JSON, authority_key=AUTHORITY.public_key, secret=JOB_SECRET
)


@pytest.fixture(autouse=True)
def small_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for role in Role:
        monkeypatch.setitem(MODULE_OF, role, WORKER)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@asynccontextmanager
async def agent(tmp_path: Path, coordinator: str) -> AsyncIterator["asyncio.Task[ShutdownReason]"]:
    config = AgentConfig(
        plaintext=True,
        region="us",
        coordinator=coordinator,
        listen="127.0.0.1:0",
        advertise="",
        work_dir=tmp_path,
        state_dir=tmp_path / "state",
        wan="",
        num_cores=2,
        memory_bytes=1 << 30,
        worker_threads=1,
        trainer_threads=1,
        stop_grace_s=5.0,
        restart_backoff_s=0.1,
    )
    running = asyncio.create_task(run(config, ready_file=None, stop_on_stdin_eof=False))
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.wait({running})


def desired(
    *, home: str = "127.0.0.1:1", region: str = "eu", stopping: bool = False, num_tasks: int = 1
) -> control_pb2.CoordinatorMessage:
    task = control_pb2.Task(
        task_id=TASK,
        job_id=JOB,
        role=control_pb2.ROLE_ROLLOUT,
        trainer_region=region,
        trainer_gateway=home,
        stopping=stopping,
    )
    return control_pb2.CoordinatorMessage(
        desired=control_pb2.DesiredTasks(tasks=[task] * num_tasks, jobs=[DESIRED_JOB])
    )


def states(fake: FakeCoordinator) -> list[int]:
    return [message.task.state for message in fake.came if message.HasField("task")]


def worker_pid(tmp_path: Path) -> int:
    return int(written(tmp_path, "running") or 0)


def written(tmp_path: Path, name: str) -> str:
    """By the worker."""
    found = list(tmp_path.rglob(name))
    return found[0].read_text() if found else ""


def test_tasks_go_on_while_the_coordinator_is_away_and_are_told_to_the_next_one(tmp_path: Path) -> None:
    async def scene() -> None:
        first, second = FakeCoordinator(), FakeCoordinator()
        async with served(first) as address:
            running = agent(tmp_path, address)
            stopped = await running.__aenter__()
            first.orders.put_nowait(desired())
            await until(lambda: worker_pid(tmp_path) > 0 and bool(states(first)))
            assert states(first) == [control_pb2.TASK_STATE_RUNNING]
            pid = worker_pid(tmp_path)
        await asyncio.sleep(0.3)  # the agent looks at its processes meanwhile
        os.kill(pid, 0)
        async with served(second, address):
            await until(lambda: bool(second.hellos))
            told = [(task.task_id, task.state) for task in second.hellos[0].tasks]
            assert told == [(TASK, control_pb2.TASK_STATE_RUNNING)]
            assert second.hellos[0].boot_id == first.hellos[0].boot_id

            os.kill(os.getpid(), signal.SIGTERM)
            assert await stopped is ShutdownReason.SIGTERM
            assert states(second) == [control_pb2.TASK_STATE_STOPPED], "the last word did not arrive"
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            await running.__aexit__(None, None, None)

    play(scene)


def test_an_order_that_cannot_be_read_is_reported_and_the_session_goes_on(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address, agent(tmp_path, address):
            order = desired()
            order.desired.tasks.add(task_id="bad/trainer", job_id="bad", role=control_pb2.ROLE_TRAINER, fork=2)
            fake.orders.put_nowait(order)
            await until(lambda: states(fake) == [control_pb2.TASK_STATE_FAILED, control_pb2.TASK_STATE_RUNNING])
            assert [message.task.task_id for message in fake.came if message.HasField("task")] == ["bad/trainer", TASK]
            assert len(fake.hellos) == 1

    play(scene)


def test_a_device_that_vanished_is_told_before_the_failure_that_it_caused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator plans the job anew by what it knows of devices then."""
    monkeypatch.setenv("TINY_WORKER", "die")
    problems = ["", *["it is not on the bus any more"] * 100]  # none when the agent starts

    def with_a_card(*arguments: Any) -> Inventory:
        card = Device(index=0, kind=DeviceFamily.CUDA, model="NVIDIA L4", memory_bytes=1 << 30, problem=problems.pop(0))
        found = inventory(*arguments)
        return replace(found, machines=(replace(found.own, devices=(card,)),))

    monkeypatch.setattr(region_machines, "inventory", with_a_card)

    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as coordinator, agent(tmp_path, coordinator):
            fake.orders.put_nowait(desired())
            await until(lambda: control_pb2.TASK_STATE_FAILED in states(fake))
        failed = next(at for at, message in enumerate(fake.came) if message.task.state == control_pb2.TASK_STATE_FAILED)
        news = [at for at, message in enumerate(fake.came[:failed]) if message.HasField("inventory")]
        assert fake.came[news[0]].inventory.machines[0].devices[0].problem == "it is not on the bus any more"

    asyncio.run(scene())


def test_a_task_that_is_to_stop_stops_and_one_that_never_ran_is_reported_stopped(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address, agent(tmp_path, address):
            fake.orders.put_nowait(desired(stopping=True))
            await until(lambda: states(fake) == [control_pb2.TASK_STATE_STOPPED])
            fake.orders.put_nowait(desired(num_tasks=0))
            fake.orders.put_nowait(desired())
            await until(lambda: worker_pid(tmp_path) > 0)
            fake.orders.put_nowait(desired(stopping=True))
            await until(lambda: states(fake)[1:] == [control_pb2.TASK_STATE_RUNNING, control_pb2.TASK_STATE_STOPPED])

    play(scene)


@pytest.mark.parametrize("behaviour", ["die", "fail"])
def test_before_anybody_hears_that_a_trainer_has_ended_its_outcome_and_report_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    monkeypatch.setenv("TINY_WORKER", behaviour)
    run_dir = left_run(tmp_path / "elsewhere" / JOB, (0, 7))

    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address, agent(tmp_path, address):
            task = control_pb2.Task(
                task_id=f"{JOB}/trainer",
                job_id=JOB,
                role=control_pb2.ROLE_TRAINER,
                fork=3,
                trainer_region="us",
                trainer_gateway=address,
                resume_from=str(run_dir),
            )
            fake.orders.put_nowait(
                control_pb2.CoordinatorMessage(desired=control_pb2.DesiredTasks(tasks=[task], jobs=[DESIRED_JOB]))
            )
            await until(lambda: control_pb2.TASK_STATE_FAILED in states(fake))
            told = next(m.task for m in fake.came if m.task.state == control_pb2.TASK_STATE_FAILED)
            page = (run_dir / "report.html").read_text()
        assert (told.fork, told.files.run_dir) == (3, str(run_dir))
        assert (told.files.log, told.files.report) == (f"{run_dir}/logs/trainer.log", f"{run_dir}/report.html")
        assert (told.files.checkpoint.fork, told.files.checkpoint.version) == (0, 7)
        assert f"failed: {told.message}." in page
        assert json.loads((run_dir / "outcome.json").read_text()) == {
            "fork": 3,
            "state": "failed",
            "message": told.message,
        }

    play(scene)


def test_files_of_a_run_that_nobody_can_read_cost_the_report_and_not_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_WORKER", "die")
    run_dir = left_run(tmp_path / "runs" / JOB, (0, 7))
    (run_dir / "plan.json").write_text('{"assignments": [1]}')
    (run_dir / "checkpoints" / "0.7" / "manifest.json").write_text("{")

    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address, agent(tmp_path, address) as running:
            task = control_pb2.Task(
                task_id=f"{JOB}/trainer",
                job_id=JOB,
                role=control_pb2.ROLE_TRAINER,
                trainer_region="us",
                trainer_gateway=address,
            )
            fake.orders.put_nowait(
                control_pb2.CoordinatorMessage(desired=control_pb2.DesiredTasks(tasks=[task], jobs=[DESIRED_JOB]))
            )
            await until(lambda: control_pb2.TASK_STATE_FAILED in states(fake))
            told = next(m.task for m in fake.came if m.task.state == control_pb2.TASK_STATE_FAILED)
            assert not running.done()
        assert (told.files.report, told.files.HasField("checkpoint")) == ("", False)

    play(scene)


def test_when_the_home_gateway_has_moved_the_region_follows_it(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with (
            served(fake) as address,
            agent(tmp_path, address),
            gateway("eu") as old,
            gateway("eu") as new,
            Trainer(old.address) as before,
            Trainer(new.address, fork=1) as after,
        ):
            fake.orders.put_nowait(desired(home=old.address))
            await until(lambda: bool(states(fake)))
            async with Worker(fake.hellos[0].gateway_address, "w1") as worker:
                await until(lambda: before.came == ["w1 hello"])
                fake.orders.put_nowait(desired(home=new.address))
                await worker.ended()
            async with Worker(fake.hellos[0].gateway_address, "w1"):
                await until(lambda: after.came == ["w1 hello"])
                await until(lambda: before.came == ["w1 hello", "w1 gone"])

    play(scene)


def test_when_the_trainer_has_moved_into_the_region_the_way_to_its_old_home_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with (
            served(fake) as address,
            agent(tmp_path, address),
            gateway("eu") as old,
            Trainer(old.address) as before,
        ):
            fake.orders.put_nowait(desired(home=old.address))
            await until(lambda: bool(states(fake)))
            own = fake.hellos[0].gateway_address
            async with Worker(own, "w1") as worker:
                await until(lambda: before.came == ["w1 hello"])
                fake.orders.put_nowait(desired(home=own, region="us"))
                await worker.ended()
            async with Worker(own, "w1"), Trainer(own, fork=1) as after:
                await until(lambda: bool(fake.asked()))
                certificate = certificate_to_pb(AUTHORITY.certify(JOB, 1, AUTHORITY.public_key))
                fake.orders.put_nowait(answer(1, certificate=certificate))
                await until(lambda: after.came == ["w1 hello"] and before.came == ["w1 hello", "w1 gone"])

    play(scene)


@asynccontextmanager
async def trainer_with_key(address: str) -> AsyncIterator[Any]:
    """Its stream, opened by a hello with a key and a record."""
    async with rpc.channel(address) as channel:
        call: Any = gateway_pb2_grpc.GatewayStub(channel).Train(metadata=metadata_of_job(JOB_SECRET))
        hello = gateway_pb2.TrainerHello(job_id=JOB, fork=3, public_key=KEY)
        await call.write(gateway_pb2.TrainerUp(hello=hello))
        await call.write(gateway_pb2.TrainerUp(record=control_pb2.StepRecord(job_id=JOB, kind="phase", time_s=7.0)))
        yield call
        call.cancel()


def answer(fork: int = 3, **fields: Any) -> control_pb2.CoordinatorMessage:
    return control_pb2.CoordinatorMessage(certificate=control_pb2.CertificateAnswer(job_id=JOB, fork=fork, **fields))


def test_a_trainer_gets_its_certificate_first_and_from_the_next_coordinator_if_the_first_one_dies(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        first, second = FakeCoordinator(), FakeCoordinator()
        certificate = certificate_to_pb(AUTHORITY.certify(JOB, 3, KEY))
        request = control_pb2.CertificateRequest(job_id=JOB, fork=3, public_key=KEY)
        async with served(first) as coordinator:
            running = agent(tmp_path, coordinator)
            await running.__aenter__()
            first.orders.put_nowait(desired())
            await until(lambda: bool(states(first)))
            gateway_address = first.hellos[0].gateway_address
            training = trainer_with_key(gateway_address)
            call = await training.__aenter__()
            await until(lambda: first.asked() == [request])
        async with served(second, coordinator), Worker(gateway_address, "w1"):
            await until(lambda: second.asked() == [request])
            second.orders.put_nowait(answer(certificate=certificate))
            assert (await call.read()).certificate.certificate == certificate
            assert (await call.read()).up.worker_id == "w1"
            await until(lambda: second.steps() == [7.0])
            assert first.steps() == [], "nobody hears of a trainer without a certificate"
            await training.__aexit__(None, None, None)
            await running.__aexit__(None, None, None)

    play(scene)


def test_a_trainer_that_the_coordinator_refuses_hears_why(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address, agent(tmp_path, address):
            fake.orders.put_nowait(desired())
            await until(lambda: bool(states(fake)))
            async with trainer_with_key(fake.hellos[0].gateway_address) as call:
                await until(lambda: bool(fake.asked()))
                fake.orders.put_nowait(answer(refused="not you"))
                assert (await call.read()).certificate.refused == "not you"

    play(scene)


def test_a_process_is_told_whose_certificates_count(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address, agent(tmp_path, address):
            fake.orders.put_nowait(desired())
            await until(lambda: worker_pid(tmp_path) > 0)
            assert written(tmp_path, "authority_key") == AUTHORITY.public_key.hex()

    play(scene)


def test_a_task_without_an_authority_fails_and_the_session_goes_on(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        wrong = desired()
        wrong.desired.jobs[0].ClearField("authority_key")
        async with served(fake) as address, agent(tmp_path, address):
            fake.orders.put_nowait(wrong)
            await until(lambda: bool(states(fake)))
            (failed,) = [message.task for message in fake.came if message.HasField("task")]
            assert failed.state == control_pb2.TASK_STATE_FAILED
            assert "authority's key of 0 bytes" in failed.message
            assert len(fake.hellos) == 1

    play(scene)


def test_a_job_of_another_authority_gets_a_hub_of_its_own(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        other = JobAuthority.generate()
        again = desired()
        again.desired.jobs[0].authority_key = other.public_key
        async with served(fake) as address, agent(tmp_path, address):
            fake.orders.put_nowait(desired())
            await until(lambda: bool(states(fake)))
            async with Worker(fake.hellos[0].gateway_address, "w1") as worker:
                fake.orders.put_nowait(again)
                assert isinstance(await worker.ended(), Unreachable)

    play(scene)


def test_a_job_whose_spool_cannot_be_opened_waits_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        folder = StateDirectory(tmp_path / "state").spool_of(JOB)
        held = open_frames(folder, durability=Durability.PROCESS, max_bytes=1 << 20)
        async with served(fake) as address, agent(tmp_path, address), gateway("eu") as home:
            fake.orders.put_nowait(desired(home=home.address))
            await until(lambda: "spool_unusable" in caplog.text)
            await until(lambda: states(fake) == [control_pb2.TASK_STATE_STARTING])
            [said] = [message.task for message in fake.came if message.HasField("task")]
            assert f"{folder} is locked by another process" in said.message
            async with Worker(fake.hellos[0].gateway_address, "w1") as worker:
                assert isinstance(await worker.ended(), NotFound)
            held.close()
            await until(lambda: states(fake) == [control_pb2.TASK_STATE_STARTING, control_pb2.TASK_STATE_RUNNING])
            assert caplog.text.count("spool_unusable") == 1

    play(scene)


def test_a_task_that_could_not_start_and_is_wanted_no_more_is_reported_as_ended(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        folder = StateDirectory(tmp_path / "state").spool_of(JOB)
        held = open_frames(folder, durability=Durability.PROCESS, max_bytes=1 << 20)
        async with served(fake) as address, agent(tmp_path, address):
            fake.orders.put_nowait(desired())
            await until(lambda: states(fake) == [control_pb2.TASK_STATE_STARTING])
            fake.orders.put_nowait(desired(num_tasks=0))
            await until(lambda: states(fake) == [control_pb2.TASK_STATE_STARTING, control_pb2.TASK_STATE_STOPPED])
        held.close()

    play(scene)


def test_a_job_whose_id_is_too_long_for_a_file_is_reported_as_misplaced_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        fake, order = FakeCoordinator(), desired()
        order.desired.tasks[0].job_id = order.desired.jobs[0].job_id = "j" * 300
        async with served(fake) as address, agent(tmp_path, address):
            fake.orders.put_nowait(order)
            await until(lambda: bool(states(fake)))
            [said] = [message.task for message in fake.came if message.HasField("task")]
            assert said.state == control_pb2.TASK_STATE_FAILED
            assert said.cause == FailureCause.STORAGE
            assert "File name too long" in said.message

    play(scene)


class SlowDisk:
    """Opening the stores of `JOB` lasts until `may_open` is set."""

    def __init__(self) -> None:
        self.num_begun = self.num_opened = 0
        self.may_open = threading.Event()

    def open_stores(self, config: AgentConfig, task: LocalTask) -> tuple[FrameSpool, WeightCache]:
        if task.job_id == JOB:
            self.num_begun += 1
            assert self.may_open.wait(timeout=60.0)
        opened = open_stores(config, task)
        self.num_opened += task.job_id == JOB
        return opened


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(stores, "open_stores", disk.open_stores)
    return disk


def test_a_job_whose_weights_take_long_to_read_holds_up_no_other_job(tmp_path: Path, slow_disk: SlowDisk) -> None:
    async def scene() -> None:
        fake, both = FakeCoordinator(), desired(num_tasks=2)
        other = both.desired.tasks[1]
        other.job_id, other.task_id = "job-2", "job-2/rollout:us:0"
        both.desired.jobs.append(DESIRED_JOB)
        both.desired.jobs[1].job_id = "job-2"
        async with served(fake) as address, agent(tmp_path, address):
            fake.orders.put_nowait(both)
            await until(lambda: states(fake) == [control_pb2.TASK_STATE_RUNNING])
            await until(lambda: len(fake.came) > 20)  # it goes on looking
            assert [message.task.task_id for message in fake.came if message.HasField("task")] == [other.task_id]
            slow_disk.may_open.set()
            await until(lambda: states(fake) == [control_pb2.TASK_STATE_RUNNING] * 2)

    play(scene)


@pytest.mark.parametrize("how", ["the agent stops", "the job leaves"])
def test_stores_that_are_opened_for_nobody_any_more_are_closed_again(
    tmp_path: Path, slow_disk: SlowDisk, how: str
) -> None:
    def is_closed() -> bool:
        # Nothing was in the spool, so closing it removes its folder. Opening it here would disturb that.
        folder = StateDirectory(tmp_path / "state").spool_of(JOB)
        return slow_disk.num_opened == 1 and not folder.exists()

    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address:
            running = agent(tmp_path, address)
            stopped = await running.__aenter__()
            fake.orders.put_nowait(desired())
            await until(lambda: slow_disk.num_begun == 1)
            if how == "the agent stops":
                stopped.cancel()
                await asyncio.sleep(0.05)
                assert not stopped.done(), "a thread cannot be cancelled"
                slow_disk.may_open.set()
                await asyncio.wait({stopped})
            else:
                fake.orders.put_nowait(desired(num_tasks=0))
                num_heartbeats = len(fake.came)
                await until(lambda: len(fake.came) > num_heartbeats + 4)  # it knows by now
                slow_disk.may_open.set()
            await until(is_closed)
            assert slow_disk.num_begun == 1
            assert states(fake) == []
            await running.__aexit__(None, None, None)

    play(scene)


def test_a_region_that_another_agent_serves_is_a_conflict(tmp_path: Path) -> None:
    async def scene() -> None:
        refusal = Conflict("region us is already served by the agent on h")
        async with served(FakeCoordinator(refusal)) as address, agent(tmp_path, address) as running:
            with pytest.raises(Conflict, match="already served"):
                await running

    play(scene)


def test_an_order_to_probe_is_answered_with_a_measurement_and_a_dead_end_with_its_reason(tmp_path: Path) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address, agent(tmp_path, address), gateway("eu") as there:
            with socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))
                dead = f"127.0.0.1:{unused.getsockname()[1]}"
                for target in (dead, there.address):
                    order = control_pb2.ProbeOrder(dst_region="eu", gateway_address=target, payload_bytes=1 << 20)
                    fake.orders.put_nowait(control_pb2.CoordinatorMessage(probe=order))
                links: Any = lambda: [message.link for message in fake.came if message.HasField("link")]  # noqa: E731
                await until(lambda: len(links()) == 2)
            failed, measured = sorted(links(), key=lambda link: link.throughput_bits_per_s)
            assert [(link.src_region, link.dst_region) for link in links()] == [("us", "eu")] * 2
            assert (dead in failed.error, failed.throughput_bits_per_s) == (True, 0.0)
            assert (measured.error, measured.throughput_bits_per_s > 0) == ("", True)
            await until(lambda: any(message.heartbeat.traffic for message in fake.came))

    play(scene)


def test_heartbeats_carry_the_bytes_of_each_job() -> None:
    traffic = Traffic()
    traffic.sent("eu", 1)
    traffic.sent("eu", 1, "sums-1")
    beat = heartbeat_to_pb(traffic)
    assert [(link.dst_region, link.sent_bytes) for link in beat.traffic] == [("eu", 30)]
    assert [(job.job_id, [(link.dst_region, link.sent_bytes) for link in job.traffic]) for job in beat.jobs] == [
        ("sums-1", [("eu", 15)])
    ]
