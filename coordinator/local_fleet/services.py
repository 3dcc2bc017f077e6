"""Starts and stops the processes of a local fleet, which are the same commands that an operator would type.

Each child process writes a ready file once it serves, and ends when its standard input closes. So no process is left
behind even if the process that started them is killed. The children's output goes to log files. If a child ends early,
the error quotes the last lines of its log.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from periplus import clock
from periplus.errors import PeriplusError, TimedOut
from periplus.process.fork_server import ADDRESS_VARIABLE

READY_DEADLINE_S = 60.0
"""Seconds until a started service must be ready; chosen by hand: it takes about one, and more on a busy machine."""

FORKED_MODULES = ("trainer.app", "rollout_worker.app")
"""What the processes of a job import."""

FORK_SERVER = "fork-server"
"""Service name of the fork server. The fleet goes on without it."""

TITLE_ROOM = 400
"""Characters by which the command line of a task may be longer than that of the fork server. Chosen by hand."""

AGENT = "agent-"
"""Prefix of the service name of each agent."""

STOP_GRACE_S = 40.0
"""Seconds for services to stop; more than the 30 s that an agent gives its tasks to end and write a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One running child process and its log file."""

    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path


class Services:
    """All child processes of one local fleet. Agents, which are started last, are stopped first.

    Their logs and ready files lie in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Service] = []
        self._fork_server = ""

    def start_fork_server(self) -> None:
        """Start the process that forks the tasks of the agents that are started later.

        It imports its modules meanwhile. An agent that finds it gone starts its tasks itself.
        """
        # Not in the fleet's folder: the path of a Unix socket has at most 108 characters.
        self._fork_server = str(Path(tempfile.mkdtemp(prefix="periplus-fork-")) / "socket")
        log = self.folder / f"{FORK_SERVER}.log"
        # Libraries that start threads when they are imported would make a fork impossible.
        variables = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        popen = _spawn(fork_server_command(self._fork_server), log, variables)
        self._running.append(Service(name=FORK_SERVER, popen=popen, log=log))

    async def start(
        self, name: str, arguments: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})
    ) -> Mapping[str, str]:
        """Start `periplus ARGUMENTS` with these environment variables too, and return the content of its ready file.

        Raises: PeriplusError if the process ends before it is ready, TimedOut after READY_DEADLINE_S.
        """
        # A region's name may contain a colon, which is not usable in file names everywhere.
        file_name = name.replace(":", "-")
        ready_file, log = self.folder / f"{file_name}.ready.json", self.folder / f"{file_name}.log"
        command = [sys.executable, "-m", "periplus", *arguments, "--ready-file", str(ready_file), "--stop-on-stdin-eof"]
        forking = {ADDRESS_VARIABLE: self._fork_server} if self._fork_server else {}
        popen = _spawn(command, log, forking | dict(variables))
        self._running.append(Service(name=name, popen=popen, log=log))
        deadline_s = clock.monotonic_s() + READY_DEADLINE_S
        # A service writes its ready file once it accepts calls. It can only be polled for, as can the end of the
        # process.
        while not ready_file.exists():
            if popen.poll() is not None:
                raise PeriplusError(f"{name} ended before it was ready; its log ends with: {_end_of_log(log)}")
            if clock.monotonic_s() > deadline_s:
                raise TimedOut(
                    f"{name} was not ready within {READY_DEADLINE_S:.0f} s; its log says: {_end_of_log(log)}"
                )
            await asyncio.sleep(0.05)
        ready: dict[str, str] = json.loads(ready_file.read_text(encoding="utf-8"))
        return ready

    def check(self) -> None:
        """Check that all children still run. Raises: PeriplusError if one has ended that the fleet needs."""
        for service in self._running:
            if service.name != FORK_SERVER and service.popen.poll() is not None:
                raise PeriplusError(f"{service.name} ended unexpectedly; its log ends with: {_end_of_log(service.log)}")

    async def stop(self, in_a_hurry: Callable[[], bool]) -> None:
        """Terminate the agents, then the services that they use; wait for each wave to end.

        Kill what still runs after STOP_GRACE_S, or as soon as `in_a_hurry()` is true.
        """
        agents = [service for service in self._running if service.name.startswith(AGENT)]
        others = [service for service in self._running if service not in agents]
        # Agents go first: their trainers write checkpoints meanwhile, and need the network and the coordinator for it.
        for wave in (agents, others):
            for service in wave:
                service.popen.terminate()
            deadline_s = clock.monotonic_s() + STOP_GRACE_S
            while any(service.popen.poll() is None for service in wave):
                # Repeating the kill each round is harmless; the loop ends when the processes are gone.
                if in_a_hurry() or clock.monotonic_s() > deadline_s:
                    for service in wave:
                        service.popen.kill()
                await asyncio.sleep(0.05)
            for service in wave:
                assert service.popen.stdin is not None
                service.popen.stdin.close()
        self._running.clear()
        if self._fork_server:
            shutil.rmtree(Path(self._fork_server).parent, ignore_errors=True)

    def move_logs(self, folder: Path) -> None:
        """Append the services' logs to files of the same names in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for log in self.folder.glob("*.log"):
            with (folder / log.name).open("ab") as target:
                target.write(log.read_bytes())


def fork_server_command(path: str) -> list[str]:
    """Return the command line of a fork server that listens at `path`."""
    words = [word for module in FORKED_MODULES for word in ("--preload", module)]
    return [sys.executable, "-m", "periplus.process.fork_server", "--socket", path, *words, "--room", "." * TITLE_ROOM]


def _spawn(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    # In a session of its own the child does not get the terminal's Ctrl-C, which its parent alone answers.
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | dict(variables),
        )


def _end_of_log(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "nothing"
