"""The services of a fleet, started as an operator starts them, and one job that trains there."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from coordinator.client.connection import Coordinator, connect, job_state
from coordinator.client.submission import submission
from coordinator.demo.job import example_file
from coordinator.members.access import VARIABLE, Access
from coordinator.members.issuing import issued_identity, issued_token
from periplus.errors import Unreachable
from periplus.job.job_file import load_job
from periplus.net import parties
from periplus.net.certificates import Identity
from periplus.net.join_token import TOKEN_VARIABLE
from periplus.net.parties import COORDINATOR, Rights
from periplus.net.rpc import Secured
from tests.support.processes.demo import environment, pids_of

HOME, NEAR, FAR, NEW, CONTROL = "home", "near", "far", "new", "control"
"""Regions: that of the trainer, two with workers, one that joins later, and that of the coordinator alone."""

REGIONS = (HOME, NEAR, FAR)
START_S, JOB_S = 180.0, 600.0
"""Seconds for a service or a job to begin, and for a job to go on. Chosen by hand."""

TRAINER, WORKER = "-m trainer ", "-m rollout_worker "
"""Words of the command lines of a job's processes."""


class NewLines:
    """Reads only the new lines of a growing file, so that whoever waits leaves the machine to the job.

    A shorter copy that takes its place holds nothing new.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._num_read = 0

    def read(self) -> list[bytes]:
        if not self._file.exists():
            return []
        with self._file.open("rb") as opened:
            self._num_read = min(self._num_read, opened.seek(0, os.SEEK_END))
            opened.seek(self._num_read)
            whole, newline, _ = opened.read().rpartition(b"\n")
        self._num_read += len(whole + newline)
        return whole.splitlines()


class OperatedFleet:
    """A coordinator and an agent in each region, each a process of its own, in a home and folder of their own.

    With `rtt_ms` the regions are apart, and the coordinator is in a region of its own: see `periplus wan run`.
    """

    def __init__(self, folder: Path, rtt_ms: float | None = None) -> None:
        self.folder = folder
        self.work = folder / "work"
        self._identity = folder / "identity"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""
        self.job_id = ""
        self._steps: list[dict[str, Any]] = []
        self._lines: NewLines | None = None
        # One for the calls of all threads: gRPC gets along with no second one.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._wan = self._start_wan(rtt_ms) if rtt_ms else ""
        self.start_coordinator()
        for region in REGIONS:
            self.start_agent(region)

    def start(self, name: str, *words: str, **variables: str) -> dict[str, str]:
        """Start a service with these environment variables too, and return what its ready file says."""
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "periplus", *words, "--ready-file", str(ready)]
            own = {**environment(self.folder), **variables}
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=own)
        wait_for(lambda: ready.exists() or self.running[name].poll() is not None, START_S, f"the start of {name}")
        assert ready.exists(), f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
        found: dict[str, str] = json.loads(ready.read_text())
        return found

    def _start_wan(self, rtt_ms: float) -> str:
        names = (*REGIONS, NEW, CONTROL)
        rows = [f"{src},{dst},0.075,{rtt_ms}" for src in names for dst in names if src != dst]
        grid = self.folder / "grid.csv"
        grid.write_text("\n".join(("src_region,dst_region,throughput_gbps,rtt_ms", *rows)))
        return self.start("wan", "wan", "run", "--grid", str(grid), "--control", "127.0.0.1:0")["control"]

    def start_coordinator(self) -> None:
        words = ("--listen", self.address or "127.0.0.1:0", "--state-dir", str(self.folder / "state"))
        place = ("--region", CONTROL, "--wan", self._wan) if self._wan else ()
        self.address = self.start("coordinator", "coordinator", "run", *words, *place)["coordinator"]
        if not self._identity.exists():
            issued_identity(self.folder / "state", parties.operator("ann", Rights.OPERATOR)).save(self._identity)

    def start_agent(self, region: str) -> None:
        words = ["--region", region, "--coordinator", self.address, "--shared-cores", "--work-dir", str(self.work)]
        words += ["--state-dir", str(self.state_dir(region)), *(["--wan", self._wan] if self._wan else [])]
        words += ["--replica-store", f"file://{self.work}/replicas"]
        # One that is a member already does not use it.
        token = issued_token(self.folder / "state", self.address, parties.region(region))
        self.start(region, "agent", "run", *words, **{TOKEN_VARIABLE: token})

    def state_dir(self, region: str) -> Path:
        return self.folder / f"state-{region}"

    def run(self, *words: str) -> str:
        """Run a command of an operator to its end and return its output."""
        own = {**environment(self.folder), "PERIPLUS_COORDINATOR": self.address, VARIABLE: str(self._identity)}
        command = [sys.executable, "-m", "periplus", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=own, cwd=self.folder)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def set_link(self, src: str, dst: str, what: str, value: str) -> None:
        """Change the link between two regions, in both directions."""
        for pair in ((src, dst), (dst, src)):
            self.run("wan", "set", *pair, what, value, "--control", self._wan)

    def ask(self, call: Callable[[Coordinator], Awaitable[Any]]) -> Any:
        """Call the coordinator. Raises: Unreachable if it does not answer."""

        async def answered() -> Any:
            user = Secured(identity=Identity.load(self._identity), peer=COORDINATOR)
            async with connect(self.address, Access(secured=user)) as remote:
                return await call(remote)

        return asyncio.run_coroutine_threadsafe(answered(), self._loop).result()

    def ask_until_answered(self, call: Callable[[Coordinator], Awaitable[Any]]) -> Any:
        while True:
            try:
                return self.ask(call)
            except Unreachable:
                time.sleep(0.05)

    def job_state(self) -> str:
        return job_state(self.ask_until_answered(lambda remote: remote.job(self.job_id)))

    def train(self, overrides: Sequence[str], steps: int) -> None:
        """Submit the demo's job, its trainer in HOME, and wait until it has made so many steps."""
        wait_for(lambda: len(self.ask(lambda remote: remote.fleet()).links) >= 6, START_S, "links")
        job = load_job(example_file(), [f"regions.min={len(REGIONS)}", f"regions.trainer={HOME}", *overrides])
        self.job_id = self.ask(lambda remote: remote.submit(submission(job, "r"))).job_id
        self.wait_for_steps(steps)

    @property
    def run_dir(self) -> Path:
        return self.work / "runs" / self.job_id

    def steps(self) -> list[dict[str, Any]]:
        """Return the records of all steps so far."""
        if self._lines is None:
            self._lines = NewLines(self.run_dir / "metrics.jsonl")
        found = [json.loads(line) for line in self._lines.read()]
        self._steps += [record for record in found if record["kind"] == "step"]
        return self._steps

    def wait_for_steps(self, count: int) -> None:
        """Wait until so many more steps were done."""
        wanted = len(self.steps()) + count
        wait_for(lambda: len(self.steps()) >= wanted, JOB_S, f"{count} steps")

    def wait_for_fork(self, fork: int) -> None:
        """Wait for the first step of a fork."""
        wait_for(lambda: any(record["fork"] == fork for record in self.steps()[-20:]), START_S, f"fork {fork}")

    def pids(self, words: str, region: str = "") -> list[int]:
        """Return the processes whose command lines have these words and the region's name."""
        return [pid for pid, found in pids_of(self.folder) if words in found and (not region or region in found)]

    def end_job(self) -> None:
        """Cancel the job; its audit must be clean."""
        self.ask_until_answered(lambda remote: remote.cancel(self.job_id))
        wait_for(lambda: self.job_state() in ("cancelled", "failed"), START_S, "the end of the job")
        assert self.job_state() == "cancelled"
        self.run("job", "audit", str(self.run_dir))

    def stop(self) -> None:
        """End all services: agents before the others, which they need for that."""
        for wave in (self.running.keys() - {"coordinator", "wan"}, self.running.keys() & {"coordinator", "wan"}):
            for name in wave:
                self.running[name].send_signal(signal.SIGCONT)
                self.running[name].terminate()
            for name in wave:
                self.running[name].wait()

    def assert_nothing_is_left(self) -> None:
        """Check that no process runs and no port is held, after `stop`."""
        wait_for(lambda: not pids_of(self.folder), 60.0, "the end of all processes")
        for file in self.folder.glob("*.ready"):
            for address in json.loads(file.read_text()).values():
                host, _, port = address.rpartition(":")
                with socket.create_server((host, int(port))):
                    pass


def signalled(pids: Sequence[int], number: signal.Signals) -> None:
    assert pids, "there is no such process"
    for pid in pids:
        os.kill(pid, number)


def wait_for(found: Callable[[], bool], most_s: float, what: str) -> None:
    until_s = time.monotonic() + most_s
    while not found():
        assert time.monotonic() < until_s, f"waited {most_s:.0f} s in vain for {what}"
        time.sleep(0.05)
