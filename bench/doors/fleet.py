"""A fleet of two regions on this machine with one running job, and what its owner knows of it.

Its processes have a folder of their own as home, so that they are found by it.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from coordinator.client.connection import Coordinator, connect
from coordinator.client.submission import submission
from coordinator.local_fleet.fleet import LocalFleet, LocalFleetSettings
from coordinator.local_fleet.services import Services
from coordinator.members.access import Access
from periplus.job.job_file import JobFile
from periplus.net import rpc
from periplus.net.parties import Party
from periplus.pb.v1 import control_pb2
from periplus.values.task import Role
from tests.support.processes.declared_fleet import until_running
from tests.support.processes.demo import audit, pids_of
from tests.support.tiny_job import tiny_job

REGIONS = ("a", "b")
START_S = 240.0
"""Seconds for all processes of a job to start. Chosen by hand: each imports torch, on two cores."""


@dataclass(kw_only=True)
class Doors:
    """The doors of a running fleet: its addresses, its owner's access and a connection; and its newest job.

    `attacker` is the identity with which strangers come, or None for none at all.
    """

    folder: Path
    coordinator: str
    gateways: tuple[str, ...]
    access: Access
    remote: Coordinator
    attacker: rpc.Secured | None = None
    job_id: str = ""
    secret: str = ""

    def worker(self) -> rpc.Secured:
        """Return the identity of a worker of the newest job in the region of the first gateway."""
        return self.processes(REGIONS[0])[Role.ROLLOUT]

    def processes(self, region: str) -> dict[Role, rpc.Secured]:
        """Return the identities of processes of the newest job in a region, by role, as they call its gateway."""
        found = {}
        for task in self._tasks(region):
            secured = rpc.own_gateway(task["identity"], region)
            assert secured is not None
            found[Role(task["role"])] = secured
        return found

    def _tasks(self, region: str) -> list[Any]:
        files = self.folder.glob(f"work/.periplus/{region}/tasks/*/task.json")
        return [task for file in files if (task := json.loads(file.read_text()))["job_id"] == self.job_id]

    def stranger(self, peer: Party) -> rpc.Secured | None:
        """Return how the attacker calls a party."""
        return None if self.attacker is None else rpc.Secured(identity=self.attacker.identity, peer=peer)

    def job(self, steps: int) -> JobFile:
        return tiny_job(self.folder, steps=steps, staleness=1, regions={"min": 2})

    async def start(self, steps: int, request_id: str) -> None:
        """Submit a job, and wait until all of its processes run."""
        self.job_id = (await self.remote.submit(submission(self.job(steps), request_id))).job_id
        await until_running(self.remote, self.job_id, START_S)
        self.secret = str(self._tasks("*")[0]["job_secret"])

    async def ended(self, job_id: str) -> control_pb2.Job:
        """Wait until a job has ended, and return it."""
        async for _ in self.remote.watch(job_id):
            pass
        return await self.remote.job(job_id)

    async def checked(self, steps: int) -> list[str]:
        """Wait for the end of the newest job, and return what is wrong with it."""
        ended = await self.ended(self.job_id)
        if ended.state != control_pb2.JOB_STATE_SUCCEEDED:
            return [f"{self.job_id} ended as {ended.state}: {ended.reason}"]
        try:
            await asyncio.to_thread(audit, Path(ended.files.run_dir))
        except AssertionError as error:
            return [f"the audit of {self.job_id}: {error}"]
        return [] if ended.policy.version == steps else [f"{self.job_id} made {ended.policy.version} of {steps} steps"]

    def services(self) -> dict[str, int]:
        """Return the resident KiB of the coordinator and the agents, by region and process id."""
        found = {}
        for pid, words in pids_of(self.folder):
            if " coordinator run" in words or " agent run" in words:
                region = f"{words} --region coordinator".split("--region ")[1].split()[0]
                found[f"{region} {pid}"] = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
        return found

    def tracebacks(self) -> list[str]:
        """Return the lines of the services' logs that tell of an exception which nobody expected."""
        logs = self.folder.glob("services/*.log")
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        return [line for line in lines if "Traceback" in line or "call_crashed" in line or "never retrieved" in line]


@asynccontextmanager
async def doors_of_a_fleet(jobs_per_region: int = 1) -> AsyncIterator[Doors]:
    """Start a fleet. All of its processes end with the context."""
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
        folder, token_file = Path(name), Path(name) / "state" / "token"
        (folder / "services").mkdir()
        services = Services(folder / "services")
        places: Any = {
            "work_dir": folder / "work",
            "token_file": token_file,
            "state_dir": folder / "coordinator",
            "identity": folder / "identity",
        }
        settings = LocalFleetSettings(regions=REGIONS, wan="", **places, jobs_per_region=jobs_per_region)
        fleet = LocalFleet(settings, services, lambda text: None)
        with patch.dict(os.environ, {"HOME": name}):
            try:
                address = (await fleet.start()).coordinator
                access = fleet.access()
                async with connect(address, access) as remote:
                    await fleet.await_regions(remote)
                    gateways = tuple(region.gateway_address for region in (await remote.fleet()).regions)
                    yield Doors(folder=folder, coordinator=address, gateways=gateways, access=access, remote=remote)
            finally:
                await services.stop(lambda: False)
