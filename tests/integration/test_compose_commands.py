"""The commands of the compose file as processes of this machine: a coordinator, three agents, a real broker, a job."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.client.connection import connect, job_state
from coordinator.client.submission import submission
from coordinator.local_fleet.services import Services
from coordinator.members.access import Access
from coordinator.members.issuing import issued_identity, issued_token
from periplus.net import parties
from periplus.net.join_token import TOKEN_VARIABLE
from periplus.net.parties import COORDINATOR, Rights
from periplus.net.rpc import Secured
from tests.support.processes.deploy_tools import DEPLOY
from tests.support.processes.mosquitto import Mosquitto
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEADLINE_S = 400.0
REGIONS = ("us-east", "eu-west", "ap-south")


def command(service: str, places: dict[str, str]) -> list[str]:
    """Return the command of a service with `places` of this machine in place of the containers'."""
    file: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    words = []
    for word in file["services"][service]["command"]:
        for there, here in places.items():
            word = word.replace(there, here)
        words.append(word)
    return words


def test_the_fleet_of_the_compose_file_trains(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, steps=3, staleness=1, regions={"min": 3})

    async def scene() -> None:
        services = Services(tmp_path)
        with Mosquitto(tmp_path) as broker:
            try:
                state = tmp_path / "coordinator" / "state"
                places = {"0.0.0.0:7070": "127.0.0.1:0", "mosquitto:1883": broker.address}
                words = command("coordinator", places | {"/var/lib/periplus": str(tmp_path / "coordinator")})
                address = (await services.start("coordinator", words))["coordinator"]
                for name in REGIONS:
                    # The system chooses ports here, so that an agent tells the address at which it listens.
                    words = command(
                        name,
                        {
                            "coordinator:7070": address,
                            "0.0.0.0:7072": "127.0.0.1:0",
                            f"{name}:7072": "",
                            "/var/lib/periplus": str(tmp_path / name),
                        },
                    )
                    token = issued_token(state, address, parties.region(name))
                    await services.start(f"agent-{name}", words, {TOKEN_VARIABLE: token})
                user = issued_identity(state, parties.operator("ann", Rights.OPERATOR))
                access = Access(secured=Secured(identity=user, peer=COORDINATOR))
                async with asyncio.timeout(DEADLINE_S), connect(address, access) as remote:
                    while len((await remote.fleet()).regions) < len(REGIONS):  # noqa: ASYNC110  # other processes
                        await asyncio.sleep(0.2)
                    job_id = (await remote.submit(submission(job, "r"))).job_id
                    async for _ in remote.watch(job_id):
                        pass
                    ended = await remote.job(job_id)
                    assert (job_state(ended), ended.reason) == ("succeeded", "")
                    assert {each.region for each in ended.processes} <= set(REGIONS)
            finally:
                await services.stop(lambda: False)

    asyncio.run(scene())
