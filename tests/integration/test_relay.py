"""Two regions that nobody can dial train one job, by way of a third one, also when that dies and another takes over."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from coordinator.client.connection import Coordinator, job_state
from coordinator.client.submission import submission
from periplus.pb.v1 import control_pb2
from tests.support.processes.declared_fleet import DeclaredRegion, declared_fleet
from tests.support.processes.demo import audit, pids_of
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEADLINE_S = 400.0
HOME, FAR, HUBS = "home", "far", ("hub-1", "hub-2")
STEPS, KILLED_AT = 24, 3


async def relayed_bytes(remote: Coordinator, dst: str) -> int:
    fleet = await remote.fleet()
    return sum(link.sent_bytes for link in fleet.links if link.dst_region == dst and link.src_region in HUBS)


def agent_of(home: Path, region: str) -> int:
    (found,) = {pid for pid, words in pids_of(home) if f"agent run --region {region} " in words}
    return found


def test_a_job_trains_between_two_regions_that_nobody_can_dial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    regions = {hub: DeclaredRegion(options=("--relay",)) for hub in HUBS}
    regions |= {name: DeclaredRegion(options=("--advertise", "none")) for name in (HOME, FAR)}
    job = tiny_job(tmp_path, steps=STEPS, staleness=1, regions={"trainer": HOME, "rollout": (FAR,)})

    async def scene() -> control_pb2.Job:
        async with declared_fleet(tmp_path, regions) as remote, asyncio.timeout(DEADLINE_S):
            job_id, killed = (await remote.submit(submission(job, "r"))).job_id, False
            async for event in remote.watch(job_id):
                if event.HasField("job"):
                    assert job_state(event.job) not in ("failed", "cancelled"), event.job.reason
                if event.step.policy.version >= KILLED_AT and not killed:
                    relays = {region.name: region.relay for region in (await remote.fleet()).regions}
                    assert relays[HOME] in HUBS
                    os.kill(agent_of(tmp_path, relays[HOME]), signal.SIGKILL)
                    killed = True
            ended = await remote.job(job_id)
            sent = {pair.dst_region: pair.sent_bytes for pair in ended.traffic}
            assert sent.keys() == {HOME, FAR}
            # A relay that was killed has not told of its last second.
            while any([await relayed_bytes(remote, dst) < sent[dst] / 2 for dst in (HOME, FAR)]):  # noqa: ASYNC110  # heartbeats
                await asyncio.sleep(0.2)
            relays = {region.name: region.relay for region in (await remote.fleet()).regions}
            assert relays[HOME] in HUBS
            return ended

    ended = asyncio.run(scene())
    assert (job_state(ended), ended.policy.fork, ended.policy.version) == ("succeeded", 0, STEPS)
    (run,) = (tmp_path / "runs" / HOME).glob("runs/*")
    assert audit(run)["clean"]
