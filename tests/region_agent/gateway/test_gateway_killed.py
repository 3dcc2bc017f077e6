"""A real agent, killed between its promise to a worker and the ledger's commit, and started again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from periplus.job.job_file import JobFile
from periplus.pb.v1 import control_pb2
from periplus.spool.database import DATABASE
from periplus.values.transport_keys import FrameKey, SeenFrames
from tests.support.cases.tiers import rest_is_slow
from tests.support.coordinator.fake_coordinator import FakeCoordinator, served
from tests.support.gateway.loopback import JOB, Trainer, Worker, gateway, until
from tests.support.keys import AUTHORITY, JOB_SECRET

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
NUM_FRAMES = 20
DEADLINE_S = 200.0


def desired(home: str, durability: str, *, num_tasks: int = 1) -> control_pb2.CoordinatorMessage:
    """A task that was stopped before it ran: the gateway serves the job, and no process is started."""
    job = JobFile.model_validate(
        {"name": "sums", "environment": {"name": "chain_sum"}, "network": {"durability": durability}}
    )
    task = control_pb2.Task(
        task_id=f"{JOB}/rollout:us:0",
        job_id=JOB,
        role=control_pb2.ROLE_ROLLOUT,
        trainer_region="home",
        trainer_gateway=home,
        stopping=True,
    )
    of_job = control_pb2.DesiredJob(
        job_id=JOB, job_json=job.to_json(), authority_key=AUTHORITY.public_key, secret=JOB_SECRET
    )
    return control_pb2.CoordinatorMessage(desired=control_pb2.DesiredTasks(tasks=[task] * num_tasks, jobs=[of_job]))


@asynccontextmanager
async def agent(work_dir: Path, coordinator: str) -> AsyncIterator[tuple["subprocess.Popen[bytes]", str]]:
    ready = work_dir / "ready.json"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(  # noqa: ASYNC220  # it starts in the background
        [
            sys.executable,
            "-m",
            "periplus",
            "agent",
            "--plaintext",
            "--region",
            "us",
            "--coordinator",
            coordinator,
            "--work-dir",
            str(work_dir),
            "--ready-file",
            str(ready),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not ready.exists():  # noqa: ASYNC110  # another process writes it
                await asyncio.sleep(0.02)
        yield process, json.loads(ready.read_text())["gateway"]
    finally:
        process.kill()
        process.wait()


async def joined(worker_id: str, address: str, first: int) -> Worker:
    """A worker's stream, once the gateway knows the job and has taken the frame `first`."""
    while True:
        worker = await Worker(address, worker_id).__aenter__()
        worker.sequence = first
        with suppress(asyncio.InvalidStateError, grpc.RpcError):  # it is refused until then
            await worker.frame(bytes([first]) * 1000)
        await until(lambda: bool(worker.spooled()) or worker.error is not None)  # noqa: B023  # it is awaited here
        if worker.error is None:
            return worker
        await worker.__aexit__()
        await asyncio.sleep(0.02)


def spools_below(folder: Path) -> list[str]:
    """Return the names of all spools' databases. Folders may be removed meanwhile, which a glob takes for an error."""
    return [name for _, _, names in os.walk(folder) for name in names if name == DATABASE]


@pytest.mark.parametrize("durability", rest_is_slow(["machine", "process"]))
def test_what_a_killed_gateway_had_promised_reaches_the_next_trainer_once(tmp_path: Path, durability: str) -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        expected = {FrameKey(worker_id="w1", epoch=1, sequence=number) for number in range(NUM_FRAMES)}
        async with served(fake) as coordinator, gateway() as home:
            async with agent(tmp_path, coordinator) as (process, address):
                fake.orders.put_nowait(desired(home.address, durability))
                worker = await joined("w1", address, 0)
                for number in range(1, NUM_FRAMES):
                    await worker.frame(bytes([number]) * 1000)
                await until(lambda: len(worker.spooled()) == NUM_FRAMES)
                async with Trainer(home.address) as first:
                    await until(lambda: len(first.frames) == NUM_FRAMES)
                    await first.commit(*range(5))
                    await asyncio.sleep(0.2)  # it is heard, or not: both are right
                    os.kill(process.pid, signal.SIGKILL)
                await worker.__aexit__()
            assert spools_below(tmp_path / ".periplus"), "nothing was kept"
            async with agent(tmp_path, coordinator) as (process, address), Trainer(home.address, fork=1) as second:
                fake.orders.put_nowait(desired(home.address, durability))
                await until(lambda: {one.sequence for one in second.keys} >= set(range(5, NUM_FRAMES)))
                ledger = SeenFrames()
                for one in first.keys[:5]:
                    ledger.add(one)
                assert sum(ledger.add(one) for one in second.keys) == NUM_FRAMES - 5
                assert set(second.keys) <= expected
                assert all(set(each) == {one.sequence} for one, each in zip(second.keys, second.frames, strict=True))

                again = await joined("w1", address, NUM_FRAMES - 1)  # not acknowledged, as far as it knows
                await again.frame(b"new")
                await until(lambda: second.frames[-1] == b"new" and len(again.spooled()) == 2)
                await second.commit()
                await second.lease("w1", 1)
                await until(lambda: 1 in again.leases())  # what was sent before it has been heard too
                fake.orders.put_nowait(desired(home.address, durability, num_tasks=0))
                await until(lambda: not spools_below(tmp_path / ".periplus"))
                await again.__aexit__()
                process.terminate()

    async def timed() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scene()

    asyncio.run(timed())
