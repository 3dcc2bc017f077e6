"""The demo's processes: the same commands that an operator types, started in order and ended in order.

Each child writes a ready file once it serves and ends when its standard input closes, so that nothing is left behind
even if the demo itself is killed. Logs go to files; a child that dies early is an error that quotes the end of its
log.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from periplus import clock
from periplus.errors import PeriplusError, TimedOut

READY_DEADLINE_S = 60.0
"""Starting a service takes a second; a machine that is busy with other things may take many."""

AGENT = "agent-"
"""Names of agents begin so."""

STOP_GRACE_S = 40.0
"""An agent gives its workers 30 s, in which a trainer writes its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One running child."""

    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path


class Services:
    """All children of one demo. `start` in order, `stop` in the reverse."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Service] = []

    async def start(self, name: str, arguments: Sequence[str]) -> Mapping[str, str]:
        """Start `periplus ARGUMENTS` and return what its ready file says.

        Raises: PeriplusError if it ends first, TimedOut if it takes too long.
        """
        file_name = name.replace(":", "-")
        ready_file, log = self._folder / f"{file_name}.ready.json", self._folder / f"{file_name}.log"
        command = [sys.executable, "-m", "periplus", *arguments, "--ready-file", str(ready_file), "--stop-on-stdin-eof"]
        popen = _spawn(command, log)
        self._running.append(Service(name=name, popen=popen, log=log))
        deadline_s = clock.monotonic_s() + READY_DEADLINE_S
        while not ready_file.exists():
            if popen.poll() is not None:
                raise PeriplusError(f"{name} ended at its start: {_last_words(log)}")
            if clock.monotonic_s() > deadline_s:
                raise TimedOut(
                    f"{name} was not ready within {READY_DEADLINE_S:.0f} s; its log says: {_last_words(log)}"
                )
            await asyncio.sleep(0.05)
        ready: dict[str, str] = json.loads(ready_file.read_text(encoding="utf-8"))
        return ready

    def check(self) -> None:
        """Raises: PeriplusError if a child has ended by itself."""
        for service in self._running:
            if service.popen.poll() is not None:
                raise PeriplusError(f"{service.name} ended unexpectedly: {_last_words(service.log)}")

    async def stop(self, in_a_hurry: Callable[[], bool]) -> None:
        """Ask all to stop, agents before what they lean on, and kill what does not, at once when in a hurry."""
        agents = [service for service in self._running if service.name.startswith(AGENT)]
        others = [service for service in self._running if service not in agents]
        for wave in (agents, others):
            for service in wave:
                service.popen.terminate()
            deadline_s = clock.monotonic_s() + STOP_GRACE_S
            while any(service.popen.poll() is None for service in wave):
                if in_a_hurry() or clock.monotonic_s() > deadline_s:
                    for service in wave:
                        service.popen.kill()
                await asyncio.sleep(0.05)
            for service in wave:
                assert service.popen.stdin is not None
                service.popen.stdin.close()
        self._running.clear()

    def move_logs(self, folder: Path) -> None:
        """Put the logs where the run's other logs are."""
        folder.mkdir(parents=True, exist_ok=True)
        for log in self._folder.glob("*.log"):
            with (folder / log.name).open("ab") as target:
                target.write(log.read_bytes())


def _spawn(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "nothing"
