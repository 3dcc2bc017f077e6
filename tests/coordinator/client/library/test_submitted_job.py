"""A script follows a job to its end. The job's region is played by hand, the coordinator is real."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.library.client import connect
from coordinator.client.library.submitted_job import SubmittedJob
from periplus.errors import NotFound, PeriplusError, PlanInfeasible, TimedOut
from periplus.pb.v1 import common_pb2, control_pb2
from tests.support.coordinator.loopback import JOB, FakeAgent, play, step_record

in_thread = asyncio.to_thread


@asynccontextmanager
async def running_job(address: str) -> Any:
    """Yield a submitted job and the agent whose region has started its trainer and worker."""
    client = await in_thread(connect, address)
    try:
        async with FakeAgent(address, "eu") as eu:
            job = await in_thread(client.submit, JOB)
            assert (await in_thread(job.status)).run_dir is None
            with pytest.raises(NotFound, match="no run directory yet"):
                await in_thread(lambda: job.run_dir)
            await eu.until_desired()
            files = control_pb2.RunFiles(run_dir="/runs/sums", log="/runs/sums/logs/trainer.log")
            await eu.report(f"{job.job_id}/trainer", control_pb2.TASK_STATE_RUNNING, files=files)
            yield job, eu
    finally:
        await in_thread(client.close)


def play_job(scene: Callable[[SubmittedJob, FakeAgent], Awaitable[None]]) -> None:
    async def run(address: str) -> None:
        async with running_job(address) as (job, eu):
            await scene(job, eu)

    play(run)


async def end(job: SubmittedJob, eu: FakeAgent, state: control_pb2.TaskState.ValueType, message: str = "") -> None:
    checkpoint = common_pb2.Policy(fork=0, version=2)
    files = control_pb2.RunFiles(run_dir="/runs/sums", log="x", checkpoint=checkpoint)
    await eu.report(f"{job.job_id}/trainer", state, message, files=files)


def until_version(job: SubmittedJob, version: int) -> None:
    while job.status().version != version:
        pass


def eval_record(job_id: str) -> control_pb2.StepRecord:
    policy = common_pb2.Policy(fork=0, version=0)
    return control_pb2.StepRecord(
        job_id=job_id, kind="eval", policy=policy, text="before", values={"accuracy": 0.25, "loss": float("nan")}
    )


def test_metrics_are_followed_to_the_end_of_the_job() -> None:
    async def scene(job: SubmittedJob, eu: FakeAgent) -> None:
        await eu.send(step=eval_record(job.job_id))
        await eu.send(step=step_record(job.job_id, 1))
        following = job.metrics(follow=True)
        first = await in_thread(next, following)
        assert (first["kind"], first["version"], first["reward_mean"]) == ("step", 1, 0.5)
        coming = asyncio.create_task(in_thread(next, following))
        await asyncio.sleep(0)
        await eu.send(step=step_record(job.job_id, 2))
        assert (await coming)["version"] == 2
        await end(job, eu, control_pb2.TASK_STATE_SUCCEEDED)
        assert await in_thread(list, following) == []
        done = await in_thread(job.wait)
        assert (done.state, done.has_ended, done.version, done.checkpoint_version) == ("succeeded", True, 2, 2)
        assert done.run_dir == Path("/runs/sums")
        assert await in_thread(lambda: job.run_dir) == Path("/runs/sums")

    play_job(scene)


def test_without_following_the_metrics_so_far_come_at_once() -> None:
    async def scene(job: SubmittedJob, eu: FakeAgent) -> None:
        assert await in_thread(lambda: list(job.metrics())) == []
        await eu.send(step=eval_record(job.job_id))
        for version in (1, 2):
            await eu.send(step=step_record(job.job_id, version))
        await in_thread(until_version, job, 2)
        assert [step["version"] for step in await in_thread(lambda: list(job.metrics()))] == [1, 2]
        (evaluation,) = await in_thread(lambda: list(job.metrics(kinds=["eval"])))
        assert (evaluation["text"], evaluation["accuracy"], evaluation["loss"]) == ("before", 0.25, None)
        assert len(await in_thread(lambda: list(job.metrics(kinds=["eval", "step"])))) == 3
        with pytest.raises(ValueError, match="steps"):
            job.metrics(kinds=["steps"])

    play_job(scene)


def interrupted(following: Iterator[dict[str, Any]]) -> None:
    for _ in following:
        raise KeyboardInterrupt


def test_leaving_the_loop_leaves_the_job_running() -> None:
    async def scene(job: SubmittedJob, eu: FakeAgent) -> None:
        await eu.send(step=step_record(job.job_id, 1))

        def leave() -> None:
            with pytest.raises(KeyboardInterrupt):
                interrupted(job.metrics(follow=True))
            assert job.status().state == "running"

        await in_thread(leave)
        await eu.send(step=step_record(job.job_id, 2))
        await in_thread(until_version, job, 2)

    play_job(scene)


def test_a_failed_job_raises_its_reason() -> None:
    async def scene(job: SubmittedJob, eu: FakeAgent) -> None:
        await end(job, eu, control_pb2.TASK_STATE_FAILED, "the loss is NaN")
        with pytest.raises(PeriplusError, match=r"failed: .*the loss is NaN"):
            await in_thread(job.wait)
        assert (await in_thread(job.cancel)).state == "failed", "there is nothing left to cancel"

    play_job(scene)


def test_a_job_that_nothing_can_place_is_infeasible() -> None:
    async def run(address: str) -> None:
        async with FakeAgent(address, "eu"):
            client = await in_thread(connect, address)
            job = await in_thread(client.submit, {**JOB, "regions": {"trainer": "mars"}})
            with pytest.raises(PlanInfeasible, match="mars"):
                await in_thread(job.wait)
            client.close()

    play(run)


def test_waiting_ends_after_its_time_and_the_job_goes_on() -> None:
    async def scene(job: SubmittedJob, eu: FakeAgent) -> None:
        with pytest.raises(TimedOut, match=r"not ended within 0\.1 s: it is running and goes on"):
            await in_thread(job.wait, 0.1)
        assert (await in_thread(job.status)).state == "running"

    play_job(scene)


def test_a_cancelled_job_ends_without_an_error() -> None:
    async def scene(job: SubmittedJob, eu: FakeAgent) -> None:
        assert not (await in_thread(job.cancel)).has_ended, "the trainer saves its state first"
        waiting = asyncio.create_task(in_thread(job.wait))
        trainer = f"{job.job_id}/trainer"
        await eu.until(lambda: trainer not in eu.desired or eu.desired[trainer].stopping)
        await end(job, eu, control_pb2.TASK_STATE_STOPPED)
        await eu.report(f"{job.job_id}/rollout-eu-0", control_pb2.TASK_STATE_STOPPED)
        assert (await waiting).state == "cancelled"
        assert (await in_thread(job.cancel)).state == "cancelled"

    play_job(scene)


def test_samples_of_a_run_on_another_machine_are_not_found() -> None:
    async def scene(job: SubmittedJob, eu: FakeAgent) -> None:
        while (await in_thread(job.status)).state == "planned":  # noqa: ASYNC110  # no event tells of the agent's report
            await asyncio.sleep(0.01)
        with pytest.raises(NotFound, match=r"/runs/sums of job .* is not on this machine"):
            await in_thread(job.samples)
        with pytest.raises(ValueError, match="newest"):
            await in_thread(lambda: job.samples(order="newest"))

    play_job(scene)
