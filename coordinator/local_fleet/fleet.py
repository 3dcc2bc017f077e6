"""Starts the processes of a local fleet in order, and waits until its regions have joined and measured their links.

Each service needs the address of those before it: the emulator comes first if there is one, then the coordinator, then
the agents. Every address is on the loopback interface, with a port that the system chooses.
"""

import asyncio
import getpass
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from coordinator.client.connection import Coordinator
from coordinator.local_fleet.services import AGENT, Services
from coordinator.members.access import Access
from coordinator.members.issuing import issued_identity, issued_token
from periplus import clock
from periplus.errors import Denied, TimedOut
from periplus.net import parties
from periplus.net.certificates import Identity
from periplus.net.join_token import TOKEN_VARIABLE
from periplus.net.parties import COORDINATOR, Rights
from periplus.net.rpc import Secured
from periplus.net.tokens import make_token

JOIN_DEADLINE_S = 120.0
"""Seconds for all regions to join and all links to be measured; chosen by hand: an idle machine needs a few."""

POLL_S = 0.2
"""Seconds between two questions whether the regions have joined; chosen by hand."""

ANY_PORT = "127.0.0.1:0"
"""Address at which the system chooses a port that only this machine can reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFleetSettings:
    """What a local fleet consists of.

    `wan` is the grid of the WAN emulator, or empty for the loopback network as it is. Output directories of jobs are
    relative to `work_dir`, and runs lie below it, the user's home, or `allow_dirs`. Calls of the emulator need the
    token in `token_file`, which the fleet makes. The coordinator's state lies in `state_dir`, and the identity of the
    fleet's user in `identity`; both are made anew. `agent_options` are further options of every agent's command line.
    """

    regions: tuple[str, ...]
    wan: str
    work_dir: Path
    token_file: Path
    state_dir: Path
    identity: Path
    allow_dirs: tuple[Path, ...] = ()
    agent_options: tuple[str, ...] = ()
    jobs_per_region: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAddresses:
    """Where the services of a fleet listen: the coordinator, and the control of the WAN emulator or an empty text."""

    coordinator: str
    wan: str


class LocalFleet:
    """The fleet of some settings. Its processes belong to `services`; `say` is told each step that begins."""

    def __init__(self, settings: LocalFleetSettings, services: Services, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._services = services
        self._say = say

    @property
    def _token(self) -> tuple[str, str]:
        return "--token-file", str(self._settings.token_file)

    async def start(self) -> FleetAddresses:
        """Start all services and return their addresses. Raises: PeriplusError if one ends, TimedOut, Denied."""
        self._make_token()
        self._services.start_fork_server()
        wan = await self._start_emulator() if self._settings.wan else ""
        coordinator = await self._start_coordinator(wan)
        await self._start_agents(coordinator, wan)
        return FleetAddresses(coordinator=coordinator, wan=wan)

    def access(self) -> Access:
        """Return how the fleet's own user calls its coordinator, once it has started."""
        return Access(secured=Secured(identity=Identity.load(self._settings.identity), peer=COORDINATOR))

    def _make_token(self) -> None:
        file = self._settings.token_file
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            make_token(file)
        except OSError as error:
            raise Denied(
                f"cannot write {file}, the token of the fleet's own user: {error.strerror}; set XDG_STATE_HOME to a "
                "folder that you may write"
            ) from error

    async def _start_emulator(self) -> str:
        settings = self._settings
        regions = settings.regions
        self._say(f"starting the emulated network ({settings.wan}): {', '.join(regions)}")
        ready = await self._services.start(
            "wan",
            ["wan", "run", "--grid", settings.wan, "--regions", ",".join(regions), "--control", ANY_PORT, *self._token],
        )
        return ready["control"]

    async def _start_coordinator(self, wan: str) -> str:
        self._say("starting the coordinator")
        shared = ["--jobs-per-region", str(self._settings.jobs_per_region)]
        place = ["--region", self._settings.regions[0], "--wan", wan] if wan else []
        state_dir = self._settings.state_dir
        shutil.rmtree(state_dir, ignore_errors=True)
        arguments = ["coordinator", "run", "--listen", ANY_PORT, "--state-dir", str(state_dir)]
        # The emulator is known by its token, and places the coordinator.
        ready = await self._services.start("coordinator", [*arguments, *place, *(self._token if wan else ()), *shared])
        try:
            user = parties.operator(getpass.getuser(), Rights.OPERATOR)
            issued_identity(state_dir, user).save(self._settings.identity)
        except OSError as error:
            raise Denied(
                f"cannot write {self._settings.identity}, the identity of the fleet's user: {error}"
            ) from error
        return ready["coordinator"]

    async def _start_agents(self, coordinator: str, wan: str) -> None:
        settings = self._settings
        regions = settings.regions
        self._say(
            "starting the agent" if len(regions) == 1 else f"starting {len(regions)} agents, one a region",
        )
        agent = ["agent", "run", "--coordinator", coordinator, "--work-dir", str(settings.work_dir)]
        # Jobs here are of the person who owns this machine, and so is the code that travels with them.
        agent += [word for each in settings.allow_dirs for word in ("--allow-dir", str(each))]
        agent += self._token if wan else ()
        # All regions compute on the same cores.
        agent += ["--allow-code", "--shared-cores", *(["--wan", wan] if wan else []), *settings.agent_options]
        await asyncio.gather(
            *(
                self._services.start(
                    f"{AGENT}{name}",
                    [
                        *agent,
                        "--region",
                        name,
                        "--identity-dir",
                        str(self._services.folder / f"identity-{quote(name, safe='')}"),
                    ],
                    {TOKEN_VARIABLE: issued_token(settings.state_dir, coordinator, parties.region(name))},
                )
                for name in regions
            )
        )

    async def await_regions(self, remote: Coordinator) -> None:
        """Wait until all regions have joined and all links are measured.

        Raises: PeriplusError if a service has ended, TimedOut after JOIN_DEADLINE_S.
        """
        num_regions = len(self._settings.regions)
        num_links = num_regions * (num_regions - 1)
        deadline_s = clock.monotonic_s() + JOIN_DEADLINE_S
        self._say(
            f"waiting for {num_regions} regions to join and measure {num_links} links"
            if num_links
            else "waiting for the region to join"
        )
        announced: set[tuple[str, str]] = set()
        while True:
            # A service that has ended would never join; its log says more than a timeout.
            self._services.check()
            fleet = await remote.fleet()
            measured = [link for link in fleet.links if link.throughput_bits_per_s > 0]
            for link in measured:
                pair = (link.src_region, link.dst_region)
                if pair not in announced:
                    announced.add(pair)
                    self._say(
                        f"link {len(announced)} of {num_links}: {' -> '.join(pair)}, {link.rtt_s * 1e3:.0f} ms, "
                        f"{link.throughput_bits_per_s / 1e6:.0f} Mbit/s"
                    )
            if len(fleet.regions) == num_regions and len(measured) == num_links:
                break
            if clock.monotonic_s() > deadline_s:
                raise TimedOut(
                    f"after {JOIN_DEADLINE_S:.0f} s only {len(fleet.regions)} of {num_regions} regions have joined and "
                    f"{len(measured)} of {num_links} links are measured; is the machine overloaded?"
                )
            await asyncio.sleep(POLL_S)
