"""A real fleet whose regions declare their devices, and what the processes of its jobs really run with."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.client.connection import Coordinator, connect, job_state
from coordinator.local_fleet.services import Services
from coordinator.members.access import NO_ACCESS, Access
from coordinator.members.issuing import issued_identity, issued_token
from periplus.net import parties
from periplus.net.join_token import TOKEN_VARIABLE
from periplus.net.parties import COORDINATOR, Rights
from periplus.net.rpc import Secured
from periplus.pb.v1 import control_pb2
from tests.support.processes.demo import pids_of

JOINED_S = 200.0

Devices = tuple[Mapping[str, object], ...]
"""Devices of one machine, with the keys of a devices file."""


@dataclass(frozen=True, kw_only=True)
class DeclaredRegion:
    """A region's own devices, those of its other machines by name, and further options of its agent.

    A region without devices offers the machine's cores.
    """

    devices: Devices = ()
    others: Mapping[str, Devices] = ()  # type: ignore[assignment]
    options: tuple[str, ...] = ()

    def file(self) -> str:
        own = {"devices": list(self.devices)}
        others = [
            {"name": name, "num_cores": 8, "memory_gib": 32, "devices": list(devices)}
            for name, devices in dict(self.others).items()
        ]
        return json.dumps({"schema": "periplus.devices/1", "machines": [own, *others]})


@asynccontextmanager
async def declared_fleet(
    folder: Path,
    regions: Mapping[str, DeclaredRegion],
    grid: Path | None = None,
    *,
    plaintext: bool = False,
    coordinator_options: Sequence[str] = (),
) -> AsyncIterator[Coordinator]:
    """Start a coordinator and an agent a region; `grid` is the network that is emulated between them.

    With `plaintext` nobody has an identity. Runs are below `folder`/runs/REGION. All processes end with the context.
    """
    services, state_dir, plain = Services(folder), folder / "coordinator", ["--plaintext"] * plaintext
    try:
        wan: list[str] = []
        if grid is not None:
            emulator = ["wan", "run", "--grid", str(grid), "--regions", ",".join(regions), "--control", "127.0.0.1:0"]
            wan = ["--wan", (await services.start("wan", emulator))["control"]]
        place = ["--region", next(iter(regions)), *wan] if wan else []
        coordinator = [
            "coordinator",
            "run",
            "--listen",
            "127.0.0.1:0",
            "--state-dir",
            str(state_dir),
            *place,
            *plain,
            *coordinator_options,
        ]
        address = (await services.start("coordinator", coordinator))["coordinator"]
        for name, region in regions.items():
            agent = ["agent", "run", "--region", name, "--coordinator", address, *wan, "--shared-cores", *plain]
            agent += ["--work-dir", str(folder / "runs" / name), "--state-dir", str(folder / "state" / name)]
            if region.devices:
                file = folder / f"{name}.devices.yaml"
                file.write_text(region.file())
                agent += ["--devices", str(file)]
            token = {} if plaintext else {TOKEN_VARIABLE: issued_token(state_dir, address, parties.region(name))}
            await services.start(f"agent-{name}", [*agent, *region.options], token)
        access = NO_ACCESS
        if not plaintext:
            user = issued_identity(state_dir, parties.operator("tester", Rights.OPERATOR))
            access = Access(secured=Secured(identity=user, peer=COORDINATOR))
        async with connect(address, access) as remote:
            # An agent is ready once its gateway listens; it joins a moment later.
            async with asyncio.timeout(JOINED_S):
                while len((await remote.fleet()).regions) < len(regions):  # noqa: ASYNC110  # another process joins
                    await asyncio.sleep(0.1)
            yield remote
    finally:
        await services.stop(lambda: False)


async def until_running(remote: Coordinator, job_id: str, deadline_s: float) -> control_pb2.Job:
    """Wait until all processes of a job run, and return the job. Raises: AssertionError if it fails, TimeoutError."""
    running = control_pb2.TASK_STATE_RUNNING
    async with asyncio.timeout(deadline_s):
        while job_state(job := await remote.job(job_id)) != "running" or any(
            each.state != running for each in job.processes
        ):
            assert job_state(job) not in ("failed", "cancelled"), job.reason
            await asyncio.sleep(0.2)
    return job


def running_tasks(home: Path) -> dict[str, dict[str, Any]]:
    """Return the task file of each trainer and rollout worker that runs, by task id, with what it sees as `visible`."""
    found = {}
    for process_id, words in pids_of(home):
        parts = words.split()
        if "--task-file" not in parts or "-m" not in parts:
            continue
        task = json.loads(Path(parts[parts.index("--task-file") + 1]).read_text())
        variables = Path(f"/proc/{process_id}/environ").read_text().split("\0")
        visible = next(each for each in variables if each.startswith("CUDA_VISIBLE_DEVICES="))
        found[task["task_id"]] = task | {"visible": visible.partition("=")[2], "module": parts[parts.index("-m") + 1]}
    return found
