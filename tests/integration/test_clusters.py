"""Jobs whose processes a real Ray or a real Slurm starts for a real agent."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.client.connection import Coordinator, job_state
from coordinator.client.submission import submission
from periplus.pb.v1 import control_pb2
from tests.support.processes.clusters import ray_nodes, slurm_allocation
from tests.support.processes.declared_fleet import DeclaredRegion, declared_fleet, until_running
from tests.support.tiny_job import tiny_job

# Ray, Slurm and several processes with torch take minutes beside other tests.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

DEADLINE_S = 200.0
CORES = ({"kind": "cpu"}, {"kind": "cpu"})
EMULATED = ({"kind": "emulated", "model": "L4", "slowdown": 1},)


@pytest.mark.parametrize(
    "launcher", [pytest.param("ray", marks=pytest.mark.clusters), pytest.param("slurm", marks=pytest.mark.slow)]
)
def test_a_job_runs_on_the_nodes_of_a_cluster(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny_job(tmp_path, steps=4, staleness=1)
    with ExitStack() as stack:
        options = ("--launcher", launcher)
        if launcher == "ray":
            nodes = stack.enter_context(ray_nodes(tmp_path))
            variables = nodes.variables | {"RAY_ADDRESS": nodes.address}
        else:
            variables = dict(stack.enter_context(slurm_allocation(tmp_path / "slurm")).variables)
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        region = DeclaredRegion(devices=EMULATED * 2, others={"n1": EMULATED}, options=options)

        async def scene() -> None:
            async with declared_fleet(tmp_path, {"eu": region}) as remote, asyncio.timeout(2 * DEADLINE_S):
                await until_offered(remote, ["n0", "n1"])
                job_id = (await remote.submit(submission(job, "r"))).job_id
                placed = await until_running(remote, job_id, DEADLINE_S)
                assert {each.machine for each in placed.processes} == {"n0", "n1"}
                while job_state(ended := await remote.job(job_id)) == "running":  # noqa: ASYNC110  # processes of others
                    await asyncio.sleep(0.2)
                assert (job_state(ended), ended.reason) == ("succeeded", "")

        asyncio.run(scene())


@pytest.mark.clusters
def test_a_trainer_spans_two_nodes_and_goes_on_elsewhere_when_one_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(
        tmp_path, steps=4000, staleness=1, train={"devices": 3, "groups_per_step": 4}, checkpoint={"every_steps": 2}
    )
    with ray_nodes(tmp_path) as nodes:
        third = nodes.add_node()
        for name, text in (nodes.variables | {"RAY_ADDRESS": nodes.address}).items():
            monkeypatch.setenv(name, text)
        region = DeclaredRegion(devices=CORES, others={"n1": CORES, third: CORES}, options=("--launcher", "ray"))

        async def scene() -> None:
            async with declared_fleet(tmp_path, {"eu": region}) as remote, asyncio.timeout(4 * DEADLINE_S):
                await until_offered(remote, ["n0", "n1", third])
                job_id = (await remote.submit(submission(job, "r"))).job_id
                await until_running(remote, job_id, DEADLINE_S)
                placed = await until_version(remote, job_id, 2)
                assert places_of(placed) == ["n1:0,1", f"{third}:0"], placed
                nodes.kill_node(third)
                while places_of(placed := await remote.job(job_id)) != ["n1:0,1", "n0:1"]:
                    assert job_state(placed) in ("running", "planned", "starting"), placed.reason
                    await asyncio.sleep(0.2)
                told = [each.text async for each in remote.events(job_id, "", follow=False)]
                assert any(f"rank 2 of 3 on {third}" in text for text in told), told
                await until_version(remote, job_id, placed.policy.version + 1)
                await remote.cancel(job_id)

        asyncio.run(scene())


@pytest.mark.clusters
def test_a_trainer_waits_for_a_node_of_slurm_that_died_and_goes_on_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(
        tmp_path, steps=4000, staleness=1, train={"devices": 3, "groups_per_step": 4}, checkpoint={"every_steps": 2}
    )
    with slurm_allocation(tmp_path / "slurm") as nodes:
        for name, text in nodes.variables.items():
            monkeypatch.setenv(name, text)
        region = DeclaredRegion(devices=CORES, others={"n1": CORES}, options=("--launcher", "slurm"))

        async def scene() -> None:
            async with declared_fleet(tmp_path, {"eu": region}) as remote, asyncio.timeout(4 * DEADLINE_S):
                await until_offered(remote, ["n0", "n1"])
                job_id = (await remote.submit(submission(job, "r"))).job_id
                await until_running(remote, job_id, DEADLINE_S)
                placed = await until_version(remote, job_id, 2)
                assert sorted(place.partition(":")[0] for place in places_of(placed)) == ["n0", "n1"]
                nodes.kill_node("n1")
                await until_offered(remote, ["n0"])
                while "waits for 3 devices in eu" not in (waiting := await remote.job(job_id)).doing:
                    assert job_state(waiting) != "failed", waiting.reason
                    await asyncio.sleep(0.2)
                nodes.start_node("n1")
                await until_offered(remote, ["n0", "n1"])
                await until_version(remote, job_id, waiting.policy.version + 1)
                await remote.cancel(job_id)

        asyncio.run(scene())


async def until_offered(remote: Coordinator, names: list[str]) -> control_pb2.Inventory:
    """Return what the region offers, once it offers all of these machines. A busy node is held seconds later."""
    while True:
        (region,) = (await remote.fleet()).regions
        if [each.name for each in region.inventory.machines if each.has_launcher] == names:
            return region.inventory
        await asyncio.sleep(0.2)


def places_of(job: control_pb2.Job) -> list[str]:
    """Return the machines of a job's trainer with the indices of its devices there."""
    trainer = next(each for each in job.processes if each.task_id.endswith("/trainer"))
    machines = [trainer.machine, *(each.machine for each in trainer.others)]
    devices = [trainer.devices, *(each.devices for each in trainer.others)]
    return [f"{machine}:{','.join(map(str, there))}" for machine, there in zip(machines, devices, strict=True)]


async def until_version(remote: Coordinator, job_id: str, version: int) -> control_pb2.Job:
    while (job := await remote.job(job_id)).policy.version < version:
        assert job_state(job) != "failed", job.reason
        await asyncio.sleep(0.2)
    return job


@pytest.mark.clusters
def test_nodes_say_what_they_have_and_how_fast_they_reach_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_nodes(tmp_path) as nodes:
        for name, text in (nodes.variables | {"RAY_ADDRESS": nodes.address}).items():
            monkeypatch.setenv(name, text)
        region = DeclaredRegion(options=("--launcher", "ray"))

        async def scene() -> None:
            async with declared_fleet(tmp_path, {"eu": region}) as remote, asyncio.timeout(2 * DEADLINE_S):
                offered = await until_offered(remote, ["n0", "n1"])
                assert all(each.engines and each.devices for each in offered.machines)
                while not offered.fabric_bytes_per_s:
                    await asyncio.sleep(0.5)
                    offered = await until_offered(remote, ["n0", "n1"])
                assert 0 < offered.fabric_latency_s < 0.1

        asyncio.run(scene())
