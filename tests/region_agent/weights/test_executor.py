"""Disk jobs are done one at a time, each to its end, and whoever waits for one is told when there are none any more."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from region_agent.weights import machine as machine_module
from region_agent.weights.executor import DiskExecutor
from region_agent.weights.jobs import CacheNotice, CopyMoved, CopyRefused, DiskAccepts, DiskJob, DiskRefuses, JobOutcome
from region_agent.weights.machine import WeightCacheMachine
from tests.support.gateway.loopback import play, until
from tests.support.gateway.simulated_weights import Fate, SimulatedDisk, anchor, bundle, delta


class Scene:
    """An executor over a simulated disk. `gate` holds up each job."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.machine = WeightCacheMachine(self.disk.restarted(), chain_versions=1)
        self.told: list[CacheNotice] = []
        self.executor = DiskExecutor("job-1", self.machine, self.perform, self.told.extend)
        self.gate = threading.Event()
        self.gate.set()
        self.fate: Fate = "ok"
        self.num_settled = self.num_begun = self.num_at_once = 0
        self.bug: Exception | None = None

    def perform(self, job: DiskJob) -> JobOutcome:
        self.num_begun += 1
        self.num_at_once += 1
        assert self.num_at_once == 1
        self.gate.wait()
        self.num_at_once -= 1
        if self.bug is not None:
            raise self.bug
        return self.disk.perform(job, self.fate)

    async def settled(self) -> None:
        self.num_settled += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        self.machine.take(bundle(), 0)
        self.machine.take(anchor(0), 0)
        for version in range(3):
            self.machine.take(delta(version, version + 1), 0)
        self.executor.wake()
        run = asyncio.create_task(self.executor.run(self.settled))
        try:
            yield run
        finally:
            self.gate.set()
            run.cancel()
            await asyncio.wait({run})


def test_all_jobs_are_done_one_after_another_and_then_it_is_settled() -> None:
    async def scene() -> None:
        at = Scene()
        async with at.running():
            await until(lambda: at.num_settled == 1)
            assert at.machine.held.copy is not None
            assert at.machine.held.copy.policy.version == 2
            assert len(at.disk.files) == 2, "the bundle and one delta"
            assert [type(each) for each in at.told][:1] == [CopyMoved]

    play(scene)


def test_a_job_that_has_begun_is_finished_and_counts_though_the_run_is_cancelled() -> None:
    async def scene() -> None:
        at = Scene()
        at.gate.clear()
        async with at.running() as run:
            await until(lambda: at.num_begun == 1)
            for _ in range(3):  # by its owner, and by a TaskGroup that ends
                run.cancel()
                await asyncio.sleep(0)
                assert not run.done(), "a thread cannot be cancelled"
            at.gate.set()
            await asyncio.wait({run})
            assert run.cancelled()
        assert at.num_begun == 1
        assert at.machine.held.bundle in at.disk.files
        async with at.running():
            await until(lambda: at.num_settled == 1)

    play(scene)


def test_a_fault_of_ours_is_logged_and_ends_no_other_job(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        at = Scene()
        at.bug = RuntimeError("a bug")
        async with at.running() as run:
            await until(lambda: at.num_settled == 1)
            assert not run.done()
        assert "weights_failed" in caplog.text

    play(scene)


def test_a_disk_that_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "RETRY_S", 0.001)

    async def scene() -> None:
        at = Scene()
        at.fate = "full"
        async with at.running():
            await until(lambda: at.num_begun >= 3)
            at.fate = "ok"
            await until(lambda: any(isinstance(each, DiskAccepts) for each in at.told))
            assert sum(isinstance(each, DiskRefuses) for each in at.told) == 1
            assert not any(isinstance(each, CopyRefused) for each in at.told)

    play(scene)


def test_who_waits_for_a_job_goes_on_after_it_and_at_the_end() -> None:
    async def scene() -> None:
        at = Scene()
        at.gate.clear()
        async with at.running():
            await until(lambda: at.num_begun == 1)
            waiting = asyncio.create_task(at.executor.progress())
            await asyncio.sleep(0)
            assert not waiting.done()
            at.gate.set()
            await waiting
        waiting = asyncio.create_task(at.executor.progress())
        await asyncio.sleep(0)
        at.executor.stop()
        await waiting

    play(scene)
