"""What a coordinator keeps of ended jobs, and what it sends to one region, are bounded."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from coordinator import state
from coordinator.client.connection import connect
from coordinator.events import JobCancelled, JobSubmitted, PlanFinished
from coordinator.machine import reservations
from coordinator.machine.reservations import MAX_ORDER_BYTES, device_counts
from coordinator.state import JobState
from periplus.errors import ConfigError, NotFound
from periplus.net.rpc import MAX_MESSAGE_BYTES
from periplus.values.task import TaskState
from tests.support.coordinator.loopback import play, submission
from tests.support.coordinator.machine_run import SETTINGS, Run, placed, request


def ended(run: Run, job_id: str) -> None:
    run.do(JobSubmitted(job_id, job_id, request()))
    run.do(JobCancelled(job_id))


def test_the_oldest_ended_jobs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_ENDED_JOBS", 2)
    run = Run()
    run.do(JobSubmitted("live", "live", request()))
    for job_id in ("a", "b", "c", "d"):
        ended(run, job_id)
    assert set(run.state.jobs) == {"live", "c", "d"}
    assert set(run.state.requests) == {"live", "c", "d"}


def test_an_ended_job_whose_processes_still_run_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its region would run a job that is unknown, and would be sent no order."""
    monkeypatch.setattr(state, "MAX_ENDED_JOBS", 0)
    run = Run()
    run.join("eu")
    run.do(JobSubmitted("j", "j", request()))
    run.place("j", "eu", "eu")
    run.says("eu", "j/rollout-eu-0", TaskState.RUNNING)
    run.says("eu", "j/trainer", TaskState.FAILED)
    assert run.job().state is JobState.FAILED
    run.says("eu", "j/rollout-eu-0", TaskState.STOPPED)
    assert "j" not in run.state.jobs


def test_an_id_that_is_too_long_for_the_name_of_a_file_is_refused() -> None:
    async def scene(address: str) -> None:
        async with connect(address) as remote:
            asked = submission()
            asked.resume_from, asked.resume_job_id = "/runs/x", "x" * 201
            asked.resume_policy.version = 1
            with pytest.raises(ConfigError, match=r"has 201 bytes, and at most 200 fit into the names of files"):
                await remote.submit(asked)
            asked.resume_job_id = "x" * 200
            assert (await remote.submit(asked)).job_id == "x" * 200

    play(scene)


def test_who_follows_a_job_that_is_forgotten_gets_its_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_ENDED_JOBS", 0)

    async def scene(address: str) -> None:
        async with connect(address) as remote, asyncio.TaskGroup() as tasks:
            job, events = await remote.submit(submission()), []
            has_begun = asyncio.Event()

            async def watch() -> None:
                async for event in remote.watch(job.job_id):
                    events.append(event)
                    has_begun.set()

            tasks.create_task(watch())
            await has_begun.wait()
            with pytest.raises(NotFound):
                await remote.cancel(job.job_id)
            await asyncio.sleep(1.2)  # a tick
            assert await remote.jobs() == []
        assert "cancelled" in events[-1].job.reason

    play(scene)


def test_a_job_whose_texts_do_not_fit_into_an_order_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ORDER_BYTES < MAX_MESSAGE_BYTES
    monkeypatch.setattr(reservations, "MAX_ORDER_BYTES", 1000)
    run = Run(replace(SETTINGS, jobs_per_region=2))
    run.join("eu")
    sizes: dict[str, Any] = {"small": "x" * 100, "large": "x" * 2000}
    for job_id, text in sizes.items():
        run.do(JobSubmitted(job_id, job_id, request(model_config=text)))
        run.do(PlanFinished(job_id, device_counts(run.state), placed("eu", "eu")))
    assert run.job("small").state is JobState.PLANNED
    assert run.job("large").state is JobState.FAILED
    assert "an agent is sent at most 1,000" in run.job("large").reason
