"""A coordinator on a loopback port serves operators and agents: jobs, certificates and sessions over gRPC."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.connection import connect, job_state
from coordinator.client.listing import job_details
from coordinator.store import DATABASE
from periplus.codec.frame import CodecId
from periplus.errors import ConfigError, Conflict, Fenced, NotFound, StateError, Unreachable, WireError
from periplus.net.convert import certificate_from_pb
from periplus.pb.v1 import control_pb2
from periplus.publication import Certificate, JobAuthority, Opening, PublicationKind, PublisherKey, Trust
from periplus.values.policy import Policy
from tests.support.coordinator.loopback import (
    DEADLINE_S,
    FakeAgent,
    coordinator,
    play,
    step_record,
    submission,
    wait_for,
)


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
            # How many of its two accelerators the plan uses is the planner's to say.
            assert {task_id.rpartition("-")[0] for task_id in us.desired} == {f"{job.job_id}/rollout-us"}
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
            for field in ("job_json", "model_config", "plan_json"):
                huge = submission()
                setattr(huge, field, " " * ((1 << 20) + 1))
                with pytest.raises(ConfigError, match="1,048,577 bytes, and a coordinator takes at most 1,048,576"):
                    await remote.submit(huge)
            await remote.cancel(first.job_id)
            second = await remote.submit(submission("other"))
            await remote.cancel(second.job_id)
            with pytest.raises(Conflict, match=second.job_id):
                await remote.job("sums")

    play(scene)


def test_cancelling_an_ended_job_is_an_error() -> None:
    async def scene(address: str) -> None:
        async with connect(address) as remote, FakeAgent(address, "eu"):
            job = await remote.submit(submission(regions={"trainer": "mars"}))
            await wait_for(remote, job.job_id, "failed")
            with pytest.raises(StateError, match="already failed"):
                await remote.cancel(job.job_id)

    play(scene)


def test_the_authority_that_tasks_name_certifies_the_trainer_and_nobody_else(tmp_path: Path) -> None:
    async def run() -> None:
        keys, trainer = [], PublisherKey.generate()
        for _ in range(2):
            async with (
                asyncio.timeout(DEADLINE_S),
                coordinator(tmp_path) as address,
                connect(address) as remote,
                FakeAgent(address, "eu") as eu,
            ):
                job_id = (await remote.submit(submission())).job_id
                await eu.until_desired()
                (of_job,) = eu.jobs.values()
                key = of_job.authority_key
                keys.append(key)
                with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
                    (private_key,) = database.execute("SELECT private_key FROM authority").fetchone()
                authority = JobAuthority.from_private_bytes(bytes.fromhex(private_key))
                assert of_job.secret == authority.secret_of(job_id)
                answer = await eu.certificate(job_id, trainer.public_key)
                assert (answer.job_id, answer.fork, answer.refused) == (job_id, 0, "")
                certificate = certificate_from_pb(answer.certificate)
                assert certificate == (await _again(eu, job_id, trainer.public_key))
                assert authority.certify(job_id, 0, trainer.public_key) == certificate
                Trust(key, job_id).check_opening(trainer.sign_opening(opening(job_id), certificate))
                second = await eu.certificate(job_id, PublisherKey.generate().public_key)
                assert "another key" in second.refused
                assert not second.HasField("certificate")
                assert (await eu.certificate("other", trainer.public_key)).refused.startswith(
                    "this coordinator knows no job 'other'"
                )
        assert len(set(keys)) == 1

    asyncio.run(run())


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


def test_an_agent_of_another_machine_must_be_reachable_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.service.is_other_machine", lambda peer: True)

    async def scene(address: str) -> None:
        with pytest.raises(ConfigError, match=r"localhost:1, where no other machine finds it.*--advertise HOST:PORT"):
            async with FakeAgent(address, "localhost"):
                pass
        async with FakeAgent(address, "eu") as eu:
            assert eu.epoch == 1

    play(scene)
