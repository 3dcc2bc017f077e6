"""A real coordinator and a real agent whose devices were declared: each process of a job sees its own ones."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client.connection import connect, job_state
from coordinator.client.submission import submission
from coordinator.local_fleet.services import Services
from tests.support.processes.demo import pids_of
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEADLINE_S = 400.0
DEVICES = """
schema: periplus.devices/1
machines:
  - devices:
      - {kind: cuda, index: 0, model: NVIDIA L4, memory_gib: 22.5, uuid: GPU-a}
      - {kind: cuda, index: 1, model: NVIDIA L4, memory_gib: 22.5, uuid: GPU-b}
      - {kind: cuda, index: 4, model: NVIDIA L4, memory_gib: 22.5}
"""


def visible_devices(home: Path) -> list[str]:
    """Return the module of each trainer and rollout worker that runs, with what it has as CUDA_VISIBLE_DEVICES."""
    found = []
    for process_id, words in pids_of(home):
        if " --task-file " in words:
            variables = Path(f"/proc/{process_id}/environ").read_text().split("\0")
            visible = next(each for each in variables if each.startswith("CUDA_VISIBLE_DEVICES="))
            found.append(f"{words.split()[2]} {visible.partition('=')[2]}")
    return sorted(found)


def test_each_process_sees_the_devices_that_it_was_placed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "devices.yaml").write_text(DEVICES)
    job = tiny_job(tmp_path, steps=100_000, staleness=1, plan={"workers_per_region": 2})

    async def scene() -> None:
        services = Services(tmp_path)
        try:
            ready = await services.start(
                "coordinator", ["coordinator", "run", "--plaintext", "--listen", "127.0.0.1:0"]
            )
            address, devices = ready["coordinator"], str(tmp_path / "devices.yaml")
            agent = [
                "agent",
                "run",
                "--plaintext",
                "--region",
                "eu",
                "--coordinator",
                address,
                "--work-dir",
                str(tmp_path / "runs"),
            ]
            await services.start("agent-eu", [*agent, "--devices", devices])
            async with asyncio.timeout(DEADLINE_S), connect(address) as remote:
                job_id = (await remote.submit(submission(job, "r"))).job_id
                while job_state(placed := await remote.job(job_id)) != "running":
                    assert job_state(placed) != "failed", placed.reason
                    await asyncio.sleep(0.2)
                assert {each.task_id.partition("/")[2]: list(each.devices) for each in placed.processes} == {
                    "trainer": [0],
                    "rollout-eu-0": [1],
                    "rollout-eu-1": [4],
                }
                assert visible_devices(tmp_path) == ["rollout_worker 4", "rollout_worker GPU-b", "trainer GPU-a"]
                await remote.cancel(job_id)
        finally:
            await services.stop(lambda: False)

    asyncio.run(scene())
    assert visible_devices(tmp_path) == []
