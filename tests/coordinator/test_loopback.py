"""A real coordinator on a loopback port, agents played by hand, and the operator's command line."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc.aio
import pytest

from coordinator.app import serving
from coordinator.authority import open_authority
from coordinator.client.connection import Coordinator, connect, job_state
from coordinator.client.listing import job_details
from coordinator.config import CoordinatorConfig
from periplus.__main__ import run as periplus
from periplus.codec.frame import CodecId
from periplus.config.yaml_text import parse
from periplus.errors import ConfigError, Conflict, Fenced, NotFound, StateError, Unreachable, WireError
from periplus.job.job_file import JobFile
from periplus.job.run_directory import start_line
from periplus.net import rpc
from periplus.net.convert import certificate_from_pb
from periplus.pb.v1 import common_pb2, control_pb2, control_pb2_grpc
from periplus.publication import Certificate, Opening, PublicationKind, PublisherKey, Trust
from periplus.values.policy import Policy
from planner.files.fleet_file import fleet_of
from tests.support.left_run import left_run

DEADLINE_S = 10.0
Session = Any


class FakeAgent:
    """One session of a region. It answers probes, and keeps what it was last told to run."""

    def __init__(self, address: str, region: str, boot_id: str = "boot") -> None:
        self.address, self.region, self.boot_id = address, region, boot_id
        self.epoch, self.sequence = 0, 1
        self.desired: dict[str, control_pb2.Task] = {}

    async def __aenter__(self) -> Self:
        self.channel = rpc.channel(self.address)
        self.call: Session = control_pb2_grpc.CoordinatorStub(self.channel).Session()
        cards = control_pb2.Accelerators(name="NVIDIA L4", memory_bytes=23034 << 20, num=2)
        inventory = control_pb2.Inventory(
            num_cores=4, memory_bytes=8 << 30, hostname=f"host-{self.boot_id}", accelerators=[cards]
        )
        hello = control_pb2.Hello(
            region=self.region, boot_id=self.boot_id, gateway_address=f"{self.region}:1", inventory=inventory
        )
        await self.call.write(control_pb2.AgentMessage(sequence=1, hello=hello))
        try:
            welcome = await self.read()
        except BaseException:
            await self.channel.close()
            raise
        assert welcome.welcome.heartbeat_s == 1
        self.epoch = welcome.epoch
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        await self.channel.close()

    async def read(self) -> control_pb2.CoordinatorMessage:
        with rpc.remote_errors(self.address):
            async with asyncio.timeout(DEADLINE_S):
                message = await self.call.read()
                if not isinstance(message, control_pb2.CoordinatorMessage):
                    raise await _status(self.call, self.address)
                return message

    async def send(self, **body: Any) -> None:
        self.sequence += 1
        await self.call.write(control_pb2.AgentMessage(epoch=self.epoch, sequence=self.sequence, **body))

    async def report(
        self,
        task_id: str,
        state: control_pb2.TaskState.ValueType,
        message: str = "",
        fork: int = 0,
        files: control_pb2.RunFiles | None = None,
    ) -> None:
        job_id = task_id.split("/")[0]
        report = control_pb2.TaskReport(
            task_id=task_id, job_id=job_id, state=state, message=message, fork=fork, files=files
        )
        await self.send(task=report)

    async def until(self, done: Callable[[], bool]) -> None:
        """Do as told until `done`."""
        while not done():
            message = await self.read()
            if message.HasField("desired"):
                self.desired = {task.task_id: task for task in message.desired.tasks}
            elif message.HasField("probe"):
                link = control_pb2.LinkMeasurement(
                    src_region=self.region, dst_region=message.probe.dst_region, rtt_s=0.1, throughput_bits_per_s=1e8
                )
                await self.send(link=link)

    async def until_desired(self) -> None:
        await self.until(lambda: bool(self.desired))

    async def certificate(self, job_id: str, public_key: bytes, fork: int = 0) -> control_pb2.CertificateAnswer:
        """Ask for one, and do as told until the answer is there."""
        await self.send(certify=control_pb2.CertificateRequest(job_id=job_id, fork=fork, public_key=public_key))
        while not (message := await self.read()).HasField("certificate"):
            continue
        return message.certificate


async def _status(call: Session, address: str) -> Exception:
    error = grpc.aio.AioRpcError(await call.code(), await call.initial_metadata(), await call.trailing_metadata())
    return rpc.translate(error, address)


@asynccontextmanager
async def coordinator(authority_key: Path | None = None) -> AsyncIterator[str]:
    server = rpc.server()
    address = rpc.bind(server, "127.0.0.1:0")
    async with serving(CoordinatorConfig(listen=address, authority_key=authority_key), server):
        yield address


def play(scene: Callable[[str], Awaitable[None]]) -> None:
    """Run a scene against a coordinator of its own."""

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), coordinator() as address:
            await scene(address)

    asyncio.run(run())


def submission(request_id: str = "r", **sections: Any) -> control_pb2.SubmitJobRequest:
    tree = {"name": "sums", "environment": {"name": "chain_sum"}, "steps": 3, **sections}
    return control_pb2.SubmitJobRequest(request_id=request_id, job_json=JobFile.model_validate(tree).to_json())


async def wait_for(remote: Coordinator, job_id: str, state: str) -> control_pb2.Job:
    async for event in remote.watch(job_id):
        if event.HasField("job") and job_state(event.job) == state:
            return event.job
    raise AssertionError(f"{job_id} ended without becoming {state}")


def step_record(job_id: str, version: int) -> control_pb2.StepRecord:
    policy = common_pb2.Policy(fork=0, version=version)
    return control_pb2.StepRecord(job_id=job_id, kind="step", policy=policy, values={"reward_mean": 0.5})


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_a_job_runs_in_two_regions_and_its_watcher_sees_everything() -> None:
    async def scene(address: str) -> None:
        async with (
            connect(address) as remote,
            FakeAgent(address, "eu") as eu,
            FakeAgent(address, "us") as us,
            asyncio.TaskGroup() as tasks,
        ):
            job = await remote.submit(submission(regions={"min": 2, "trainer": "eu"}))
            trainer = f"{job.job_id}/trainer"
            us_told = tasks.create_task(us.until_desired())
            await eu.until(lambda: trainer in eu.desired)
            await us_told
            assert set(us.desired) == {f"{job.job_id}/rollout-us-0"}
            assert us.desired[f"{job.job_id}/rollout-us-0"].trainer_gateway == "eu:1"
            events, pictured = [], asyncio.Event()

            async def watch() -> None:
                async for event in remote.watch(job.job_id):
                    events.append(event)
                    if event.HasField("fleet"):
                        pictured.set()

            watching = tasks.create_task(watch())
            await eu.report(trainer, control_pb2.TASK_STATE_RUNNING)
            await eu.send(step=step_record(job.job_id, 1))
            await eu.send(
                heartbeat=control_pb2.Heartbeat(
                    traffic=[control_pb2.LinkTraffic(dst_region="us", sent_bytes=9)],
                    jobs=[
                        control_pb2.JobTraffic(
                            job_id=job.job_id, traffic=[control_pb2.LinkTraffic(dst_region="us", sent_bytes=7)]
                        )
                    ],
                )
            )
            await pictured.wait()
            await eu.report(trainer, control_pb2.TASK_STATE_SUCCEEDED)
            await watching
            await eu.until(lambda: not eu.desired)
            await us.until(lambda: not us.desired)
            states = [job_state(event.job) for event in events if event.HasField("job")]
            assert list(dict.fromkeys(states)) == ["pending", "planned", "starting", "running", "succeeded"]
            assert [event.step.policy.version for event in events if event.HasField("step")] == [1]
            assert [event.sequence for event in events] == sorted({event.sequence for event in events})
            fleet = next(event.fleet for event in events if event.HasField("fleet"))
            assert {(link.src_region, link.dst_region): link.sent_bytes for link in fleet.links} == {
                ("eu", "us"): 7,
                ("us", "eu"): 0,
            }
            assert {(link.src_region, link.dst_region): link.sent_bytes for link in (await remote.fleet()).links} == {
                ("eu", "us"): 9,
                ("us", "eu"): 0,
            }
            ended = await remote.job(job.job_id)
            assert [(pair.src_region, pair.dst_region, pair.sent_bytes) for pair in ended.traffic] == [("eu", "us", 7)]
            assert job_details(ended)["wan_bytes"] == 7
            late = [event async for event in remote.watch(job.job_id, events[-2].sequence)]
            assert late == events[-1:]

    play(scene)


def test_cancelling_asks_the_trainer_to_save_its_state_first() -> None:
    async def scene(address: str) -> None:
        async with connect(address) as remote, FakeAgent(address, "eu") as eu:
            job = await remote.submit(submission())
            trainer = f"{job.job_id}/trainer"
            await eu.until(lambda: trainer in eu.desired)
            await eu.report(trainer, control_pb2.TASK_STATE_RUNNING)
            await wait_for(remote, job.job_id, "running")
            assert "saves its state" in (await remote.cancel(job.job_id[:5])).reason
            await eu.until(lambda: eu.desired[trainer].stopping)
            await eu.report(trainer, control_pb2.TASK_STATE_STOPPED)
            await wait_for(remote, job.job_id, "cancelled")
            await eu.until(lambda: not eu.desired)
            with pytest.raises(NotFound, match="no job 'other'"):
                await remote.cancel("other")

    play(scene)


def test_a_job_that_fits_nowhere_fails_with_the_conflict() -> None:
    async def scene(address: str) -> None:
        async with connect(address) as remote, FakeAgent(address, "eu"):
            job = await remote.submit(submission(regions={"trainer": "mars"}))
            failed = await wait_for(remote, job.job_id, "failed")
            assert failed.reason.startswith("infeasible: ")
            assert "mars" in failed.reason

    play(scene)


def test_a_repeated_submission_gets_the_same_job_and_a_wrong_one_a_reason() -> None:
    async def scene(address: str) -> None:
        async with connect(address) as remote:
            first = await remote.submit(submission("same"))
            assert await remote.submit(submission("same")) == first
            assert [job.job_id for job in await remote.jobs()] == [first.job_id]
            with pytest.raises(ConfigError, match="job"):
                await remote.submit(control_pb2.SubmitJobRequest(job_json="{}"))
            await remote.cancel(first.job_id)
            second = await remote.submit(submission("other"))
            await remote.cancel(second.job_id)
            with pytest.raises(Conflict, match=second.job_id):
                await remote.job("sums")

    play(scene)


# ---- certificates ----------------------------------------------------------------------------------------------------


def test_the_authority_that_tasks_name_certifies_the_trainer_and_nobody_else(tmp_path: Path) -> None:
    async def run() -> None:
        keys = []
        for _ in range(2):
            async with (
                asyncio.timeout(DEADLINE_S),
                coordinator(tmp_path / "authority") as address,
                connect(address) as remote,
                FakeAgent(address, "eu") as eu,
            ):
                job_id = (await remote.submit(submission())).job_id
                await eu.until_desired()
                (key,) = {task.authority_key for task in eu.desired.values()}
                keys.append(key)
                trainer = PublisherKey.generate()
                answer = await eu.certificate(job_id, trainer.public_key)
                assert (answer.job_id, answer.fork, answer.refused) == (job_id, 0, "")
                certificate = certificate_from_pb(answer.certificate)
                assert certificate == (await _again(eu, job_id, trainer.public_key))
                assert open_authority(tmp_path / "authority").certify(job_id, 0, trainer.public_key) == certificate
                Trust(key, job_id).check_opening(trainer.sign_opening(opening(job_id), certificate))
                second = await eu.certificate(job_id, PublisherKey.generate().public_key)
                assert "another key" in second.refused
                assert not second.HasField("certificate")
                assert (await eu.certificate("other", trainer.public_key)).refused.startswith(
                    "this coordinator knows no job 'other'"
                )
        assert len(set(keys)) == 1

    asyncio.run(run())


async def _again(agent: FakeAgent, job_id: str, public_key: bytes) -> Certificate:
    return certificate_from_pb((await agent.certificate(job_id, public_key)).certificate)


def opening(job_id: str) -> Opening:
    return Opening(
        job_id=job_id,
        kind=PublicationKind.ANCHOR,
        policy=Policy(0, 1),
        codec=CodecId.WEIGHTS,
        max_payload_bytes=1,
        max_chunks=1,
        content_bytes=1,
    )


def test_a_key_that_anybody_can_sign_for_is_refused_and_the_session_goes_on() -> None:
    async def scene(address: str) -> None:
        async with connect(address) as remote, FakeAgent(address, "eu") as eu:
            job_id = (await remote.submit(submission())).job_id
            await eu.until_desired()
            answer = await eu.certificate(job_id, bytes(32))
            assert "cannot be certified" in answer.refused
            assert not answer.HasField("certificate")
            assert (await eu.certificate(job_id, bytes(32))).refused

    play(scene)


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_second_live_agent_is_refused_and_a_newer_session_of_the_first_fences_it() -> None:
    async def scene(address: str) -> None:
        async with FakeAgent(address, "eu", "one") as first:
            await first.until(lambda: True)
            with pytest.raises(Conflict, match=r"region eu .*host-one"):
                async with FakeAgent(address, "eu", "two"):
                    pass
            async with FakeAgent(address, "eu", "one") as again:
                assert again.epoch == first.epoch + 1
                with pytest.raises(Fenced):
                    await first.until(lambda: False)

    play(scene)


def test_an_agent_that_leaves_is_shown_as_disconnected_and_may_be_replaced() -> None:
    async def scene(address: str) -> None:
        async with connect(address) as remote:
            async with FakeAgent(address, "eu", "one"):
                assert [region.state for region in (await remote.fleet()).regions] == ["ready"]
            for _ in range(500):
                if (await remote.fleet()).regions[0].state == "disconnected":
                    break
                await asyncio.sleep(0.02)
            async with FakeAgent(address, "eu", "two") as two:
                assert two.epoch == 2

    play(scene)


@pytest.mark.parametrize(
    "body",
    [
        {"link": control_pb2.LinkMeasurement(src_region="us", dst_region="eu", throughput_bits_per_s=1)},
        {"link": control_pb2.LinkMeasurement(src_region="eu", dst_region="us", throughput_bits_per_s=-1)},
        {"task": control_pb2.TaskReport(task_id="j/trainer", job_id="j")},
        {"step": control_pb2.StepRecord(job_id="j", kind="nonsense")},
        {"certify": control_pb2.CertificateRequest(job_id="j", public_key=b"short")},
        {"hello": control_pb2.Hello(region="eu")},
        {},
    ],
    ids=["another region's link", "impossible link", "no state", "unknown kind", "no key", "second hello", "empty"],
)
def test_a_message_that_breaks_the_protocol_ends_its_session(body: dict[str, Any]) -> None:
    async def scene(address: str) -> None:
        async with FakeAgent(address, "eu") as eu, connect(address) as remote:
            await eu.send(**body)
            with pytest.raises(WireError):
                await eu.until(lambda: False)
            assert await remote.jobs() == []

    play(scene)


def test_a_stopping_coordinator_sends_agents_and_watchers_away() -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with coordinator() as address:
                eu = await FakeAgent(address, "eu").__aenter__()
                async with connect(address) as remote:
                    job = await remote.submit(submission(regions={"min": 2}))
            with pytest.raises(Unreachable, match="stopping"):
                await eu.until(lambda: False)
            await eu.channel.close()
            with pytest.raises(Unreachable, match=f"no coordinator answers at {address}"):
                async with connect(address):
                    pass
            assert job.job_id.startswith("sums-")

    asyncio.run(run())


# ---- the command line ------------------------------------------------------------------------------------------------


def against(scene: Callable[[str, Callable[..., Coroutine[Any, Any, int]]], Awaitable[None]]) -> None:
    """A scene with a coordinator and a command line, each command in a thread of its own."""

    async def run(address: str) -> None:
        async def command(*words: str) -> int:
            return await asyncio.to_thread(periplus, [*words, "--coordinator", address])

        await scene(address, command)

    play(run)


JOB_YAML = "name: sums\nenvironment: {name: chain_sum}\nsampling: {prompt_tokens: 64}\nsteps: 3\n"


def test_operators_see_jobs_regions_and_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB_YAML)

    async def scene(address: str, command: Callable[..., Coroutine[Any, Any, int]]) -> None:
        assert await command("job", "list") == 0
        assert "no jobs yet" in capsys.readouterr().err
        async with FakeAgent(address, "eu") as eu, FakeAgent(address, "us") as us, asyncio.TaskGroup() as tasks:
            told = [tasks.create_task(agent.until_desired()) for agent in (eu, us)]
            assert await command("job", "submit", str(file), "regions.min=2", "-o", "name") == 0
            out, err = capsys.readouterr()
            job_id = out.strip()
            assert f"periplus job watch {job_id}" in err
            await asyncio.gather(*told)
            assert await command("job", "show", "sums") == 0
            assert "1 rollout in us" in capsys.readouterr().out
            assert await command("job", "show", "sums", "-o", "json") == 0
            shown = json.loads(capsys.readouterr().out)
            assert (shown["job_id"], shown["job"]["steps"], shown["plan"]["schema"]) == (job_id, 3, "periplus.plan/1")
            assert await command("region", "list", "-o", "name") == 0
            assert capsys.readouterr().out == "eu\nus\n"
            assert await command("region", "show", "e") == 0
            assert "host-boot" in capsys.readouterr().out
            assert await command("links") == 0
            assert "100 Mbit/s" in capsys.readouterr().out
            assert await command("links", "-o", "json") == 0
            assert json.loads(capsys.readouterr().out)["links"][0]["rtt_s"] == pytest.approx(0.1)
            assert await command("region", "export") == 0
            fleet = fleet_of(parse(capsys.readouterr().out, "export"), "export")
            assert [(each.name, each.machines[0].gpu, each.num_cores) for each in fleet.regions] == [
                ("eu", "L4", 4),
                ("us", "L4", 4),
            ]
            assert {(link.src_region, link.dst_region) for link in fleet.links} == {("eu", "us"), ("us", "eu")}
            assert await command("job", "logs", job_id) == 3
            assert "host-boot" in capsys.readouterr().err
            assert await command("job", "cancel", "sums") == 0
            assert await command("job", "watch", "sums") == 1
            out, err = capsys.readouterr()
            assert "was cancelled" in err
            assert await command("job", "list") == 0
            assert "cancelled" in capsys.readouterr().out
            assert await command("job", "cancel", "nothing") == 3

    against(scene)


def test_submit_and_watch_ends_with_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB_YAML)

    async def scene(address: str, command: Callable[..., Coroutine[Any, Any, int]]) -> None:
        async with FakeAgent(address, "eu") as eu:
            assert await command("job", "submit", str(file), "regions.trainer=mars", "--wait") == 4
            assert capsys.readouterr().err.count("mars") == 1, "the reason is said once"
            watching = asyncio.create_task(command("job", "submit", str(file), "--watch"))
            await eu.until_desired()
            job_id = next(iter(eu.desired)).split("/")[0]
            await eu.report(f"{job_id}/trainer", control_pb2.TASK_STATE_RUNNING)
            await eu.send(step=step_record(job_id, 3))
            await eu.report(f"{job_id}/trainer", control_pb2.TASK_STATE_SUCCEEDED)
            assert await watching == 0
            out = capsys.readouterr().out
            assert "job sums succeeded" in out
            assert "step 3/3" in out

    against(scene)


def test_a_run_is_resumed_from_its_newest_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, run_dir = tmp_path / "job.yaml", left_run(tmp_path / "sums-1", (0, 9), (1, 2), (1, 10))
    file.write_text(JOB_YAML.replace("steps: 3", "steps: 20"))
    (run_dir / "checkpoints" / "1.11").mkdir()

    async def scene(address: str, command: Callable[..., Coroutine[Any, Any, int]]) -> None:
        async with FakeAgent(address, "eu") as eu:
            assert await command("job", "submit", str(file), "--resume", str(run_dir)) == 0
            assert capsys.readouterr().out == "sums-1\n"
            await eu.until(lambda: "sums-1/trainer" in eu.desired)
            task = eu.desired["sums-1/trainer"]
            assert (task.fork, task.resume_from) == (2, str(run_dir))
            assert await command("job", "submit", "--resume", str(run_dir)) == 7
            assert "cancel it before resuming it" in capsys.readouterr().err
        assert await command("job", "submit", "--resume", str(tmp_path)) == 3
        assert await command("job", "submit", "steps=30", "--resume", str(run_dir)) == 2
        assert "steps: 20 in the run, 30 now" in capsys.readouterr().err

    against(scene)


def test_a_watcher_of_a_resumed_job_is_not_told_the_failure_of_its_earlier_fork(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = left_run(tmp_path / "sums-1", (0, 9))
    files = control_pb2.RunFiles(
        run_dir=str(run_dir),
        log=str(run_dir / "logs" / "trainer.log"),
        report=str(run_dir / "report.html"),
        checkpoint=common_pb2.Policy(fork=1, version=12),
    )

    async def scene(address: str, command: Callable[..., Coroutine[Any, Any, int]]) -> None:
        async with FakeAgent(address, "eu") as eu:
            resume = ("job", "submit", "--resume", str(run_dir), "--wait")
            waiting = asyncio.create_task(command(*resume))
            await eu.until_desired()
            await eu.report("sums-1/trainer", control_pb2.TASK_STATE_FAILED, "killed", fork=1, files=files)
            assert await waiting == 1
            first = capsys.readouterr().err
            assert "the trainer in eu failed: killed; its log is" in first
            assert first.count("killed") == 1, "the reason is said once"
            for line in (
                f"run directory: {run_dir}",
                f"report: {run_dir}/report.html",
                "checkpoint: 1.12",
                f"resume: periplus job submit --resume {run_dir}",
            ):
                assert line in first.splitlines()
            assert await command("job", "show", "sums-1") == 0
            shown = capsys.readouterr().out
            assert f"periplus job submit --resume {run_dir}" in shown
            assert f"{run_dir}/report.html" in shown

            await eu.until(lambda: not eu.desired)
            watching = asyncio.create_task(command("job", "submit", "--resume", str(run_dir), "--watch"))
            await eu.until_desired()
            assert eu.desired["sums-1/trainer"].fork == 2
            await eu.report("sums-1/trainer", control_pb2.TASK_STATE_RUNNING, fork=2, files=files)
            await eu.report("sums-1/trainer", control_pb2.TASK_STATE_SUCCEEDED, fork=2, files=files)
            assert await watching == 0
            said = "".join(capsys.readouterr())
            assert "job sums succeeded" in said
            assert f"model: {run_dir}/final" in said
            assert "failed" not in said
            assert "killed" not in said

    against(scene)


def test_a_fork_that_saved_nothing_is_not_granted_again_by_a_coordinator_that_forgot_it(tmp_path: Path) -> None:
    run_dir = left_run(tmp_path / "sums-1", (0, 9))
    (run_dir / "metrics.jsonl").write_text('{"fork": 0}\n{"fork": 3}\nno record\n{"fork": 7')

    async def scene(address: str, command: Callable[..., Coroutine[Any, Any, int]]) -> None:
        async with FakeAgent(address, "eu") as eu:
            assert await command("job", "submit", "--resume", str(run_dir)) == 0
            await eu.until(lambda: "sums-1/trainer" in eu.desired)
            assert eu.desired["sums-1/trainer"].fork == 4

    against(scene)


def test_a_run_directory_that_somebody_removed_is_said_to_be_gone_on_its_own_host_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, run_dir = tmp_path / "job.yaml", tmp_path / "gone"
    file.write_text(JOB_YAML)
    files = control_pb2.RunFiles(run_dir=str(run_dir), log=str(run_dir / "logs" / "trainer.log"))

    async def scene(address: str, command: Callable[..., Coroutine[Any, Any, int]]) -> None:
        async with FakeAgent(address, "eu") as eu:
            waiting = asyncio.create_task(command("job", "submit", str(file), "--wait"))
            await eu.until_desired()
            job_id = next(iter(eu.desired)).split("/")[0]
            await eu.report(f"{job_id}/trainer", control_pb2.TASK_STATE_FAILED, "no such directory", files=files)
            assert await waiting == 1
            assert "report: none yet" in capsys.readouterr().err, "it is on another host, as far as this one knows"

            monkeypatch.setattr("socket.gethostname", lambda: "host-boot")
            assert await command("job", "show", job_id) == 0
            shown = capsys.readouterr().out
            assert f"run directory  {run_dir} is gone, with its report, logs and checkpoints" in shown
            assert "none yet" not in shown
            assert await command("job", "watch", job_id) == 1
            assert f"run directory: {run_dir} is gone" in capsys.readouterr().err
            assert await command("job", "logs", job_id) == 3
            assert f"{run_dir} was removed from this machine" in capsys.readouterr().err
            run_dir.mkdir()
            assert await command("job", "show", job_id) == 0
            assert "gone, with" not in capsys.readouterr().out

    against(scene)


def test_logs_on_this_machine_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB_YAML)

    async def scene(address: str, command: Callable[..., Coroutine[Any, Any, int]]) -> None:
        assert await command("job", "submit", str(file), f"output.dir={tmp_path}") == 0
        job_id = capsys.readouterr().out.strip()
        logs = tmp_path / job_id / "logs"
        logs.mkdir(parents=True)
        (logs / "trainer.log").write_text("one\ntwo\n")
        (logs / "rollout-aws-us-0.log").write_text("three\ntorn")
        assert await command("job", "logs", job_id) == 0
        assert capsys.readouterr().out == "rollout-aws-us-0: three\ntrainer: one\ntrainer: two\n"
        assert await command("job", "logs", job_id, "--task", "rollout-aws:us-0") == 0
        assert capsys.readouterr().out == "three\n"
        assert await command("job", "logs", job_id, "--task", "nobody") == 3
        await command("job", "cancel", job_id)
        capsys.readouterr()
        assert await command("job", "logs", job_id, "-f", "--task", "trainer") == 0
        assert capsys.readouterr().out == "one\ntwo\n"
        with (logs / "trainer.log").open("a") as log:
            log.write(f"{start_line(0, 0)}\nkilled\n{start_line(1, 0)}\nresumed\n")
        (logs / "rollout-aws-eu-0.log").write_text(f"{start_line(0, 0)}\nof the earlier fork\n")
        assert await command("job", "logs", job_id) == 0
        said = capsys.readouterr().out
        assert "trainer: resumed" in said
        assert "rollout-aws-us-0: three" in said, "a log without forks is whole"
        assert "killed" not in said
        assert "earlier" not in said
        assert await command("job", "logs", job_id, "--all-forks") == 0
        said = capsys.readouterr().out
        assert "trainer: killed" in said
        assert "earlier" in said

    against(scene)


def test_a_dry_run_needs_no_coordinator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB_YAML)
    words = ["job", "submit", str(file), "steps=7", "--dry-run", "-o", "json", "--coordinator", "127.0.0.1:1"]
    assert periplus(words) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 7
    assert periplus(["job", "schema"]) == 0
    assert "properties" in json.loads(capsys.readouterr().out)


def test_an_unreachable_coordinator_is_one_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["job", "list", "--coordinator", "127.0.0.1:1"]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: no coordinator answers at 127.0.0.1:1; start one with `periplus coordinator`")
    assert err.count("\n") == 1


def test_a_taken_port_is_a_conflict(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(address: str) -> None:
        assert await asyncio.to_thread(periplus, ["coordinator", "--listen", address, "--log-level", "error"]) == 7

    play(scene)
    assert "the port is in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "nowhere"], "is not HOST:PORT"),
        (["--wan", "127.0.0.1:1"], "--wan is given without --region"),
        (["--region", "eu"], "--region is given without --wan"),
        (["--listen", "127.0.0.1:0", "--authority-key", "/dev/null"], "the job authority's key /dev/null"),
    ],
)
def test_contradictory_settings_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["coordinator", *words, "--log-level", "error"]) == 2
    assert message in capsys.readouterr().err


def test_cancelling_an_ended_job_is_an_error() -> None:
    async def scene(address: str) -> None:
        async with connect(address) as remote, FakeAgent(address, "eu"):
            job = await remote.submit(submission(regions={"trainer": "mars"}))
            await wait_for(remote, job.job_id, "failed")
            with pytest.raises(StateError, match="already failed"):
                await remote.cancel(job.job_id)

    play(scene)
