"""Claim: what dies comes back, and a job loses seconds and no sample.

A coordinator with a state directory and an agent in each of three regions run as an operator starts them, and a job
of the demo's size trains on them, its trainer in the first region. Each figure is one fault:

- `coordinator_restart_s`: from `kill -9` of the coordinator to the first command that is answered by the next one.
- `trainer_restart_s`: from `kill -9` of the trainer to the first step of its next fork.
- `agent_upgrade_pause_s`, `agent_upgrade_lost_samples`: the agent of the trainer's region gets SIGHUP and another one
  is started; the longest time between two steps around it, and the samples that the trainer had and dropped.
- `join_to_first_sample_s`: from the start of the agent of a fourth region to the first sample of its worker that the
  ledger accepts.
- `silent_region_pause_s`: the agent and the worker of the third region stand still for 30 s; the longest time between
  two steps meanwhile.

Each fault is tried `--tries` times, one job for each fault; the worst counts. After each job the audit must be clean.
`python -m bench.control_plane --only NAME` measures one of them. The last line is one JSON object, and everything
else goes to stderr.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.provenance import print_figures, say
from coordinator.client.connection import Coordinator, connect, job_state
from coordinator.client.submission import submission
from coordinator.demo.job import example_file
from periplus.audit.records import ResultEntry, from_line
from periplus.errors import Unreachable
from periplus.job.job_file import JobFile, load_job
from tests.support.processes.demo import pids_of

REGIONS = ("home", "near", "far")
NEW_REGION = "new"
START_S, JOB_S = 120.0, 600.0
"""Seconds for a job to begin to train, and to end. Chosen by hand."""

SILENT_S = 30.0
SETTLE_STEPS = 20
"""Steps between two tries, in which the job is as before."""

TARGETS: dict[str, tuple[str, float, str]] = {
    "coordinator_restart_s": ("<=", 5.0, "s"),
    "trainer_restart_s": ("<=", 15.0, "s"),
    "agent_upgrade_pause_s": ("<=", 5.0, "s"),
    "agent_upgrade_lost_samples": ("==", 0, "samples"),
    "join_to_first_sample_s": ("<=", 20.0, "s"),
    "silent_region_pause_s": ("<=", 5.0, "s"),
}


class Fleet:
    """The services of one fleet, started as an operator does, and one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""
        self.job_id = ""

    def start(self, name: str, *words: str) -> dict[str, str]:
        """Start a service and return what its ready file says."""
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "periplus", *words, "--ready-file", str(ready)]
            home = {**os.environ, "HOME": str(self.folder)}
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=home)
        until_s = time.monotonic() + START_S
        while not ready.exists():
            assert self.running[name].poll() is None, f"{name} ended"
            assert time.monotonic() < until_s, f"{name} did not start"
            time.sleep(0.02)
        found: dict[str, str] = json.loads(ready.read_text())
        return found

    def start_coordinator(self) -> None:
        words = ("--listen", self.address or "127.0.0.1:0", "--state-dir", str(self.folder / "state"))
        self.address = self.start("coordinator", "coordinator", "run", *words)["coordinator"]

    def start_agent(self, region: str) -> None:
        places = ("--work-dir", str(self.folder / "work"), "--state-dir", str(self.folder / f"state-{region}"))
        self.start(region, "agent", "run", "--region", region, "--coordinator", self.address, *places, "--shared-cores")

    def pids(self, words: str, region: str = "") -> list[int]:
        return [pid for pid, found in pids_of(self.folder) if words in found and (not region or region in found)]

    def steps(self) -> list[dict[str, Any]]:
        """Return the records of all steps so far."""
        file = self.folder / "work" / "runs" / self.job_id / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [record for record in found if record["kind"] == "step"]

    def num_accepted(self, region: str) -> int:
        """Return how many samples of a region the ledger has accepted."""
        file = self.folder / "work" / "runs" / self.job_id / "audit.jsonl"
        lines = file.read_bytes().split(b"\n")[:-1]
        entries = [from_line(line, file.name).record for line in lines]
        return sum(isinstance(entry, ResultEntry) and entry.region == region for entry in entries)

    def wait_for_steps(self, count: int) -> None:
        """Wait until so many more steps were done."""
        wanted, until_s = len(self.steps()) + count, time.monotonic() + JOB_S
        while len(self.steps()) < wanted:
            assert time.monotonic() < until_s, "the job stands still"
            time.sleep(0.05)

    def stop(self) -> None:
        for _, process in sorted(self.running.items(), key=lambda each: each[0] == "coordinator"):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.running.values():
            process.wait()


@contextmanager
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
        made = Fleet(Path(name))
        try:
            made.start_coordinator()
            for region in REGIONS:
                made.start_agent(region)
            yield made
        finally:
            made.stop()


def job() -> JobFile:
    overrides = ["steps=4000", "staleness=2", "checkpoint.every_steps=20", "regions.min=3"]
    overrides.append(f"regions.trainer={REGIONS[0]}")
    return load_job(example_file(), overrides)


async def answered(address: str, call: Callable[[Coordinator], Awaitable[Any]]) -> Any:
    async with connect(address) as remote:
        return await call(remote)


def asked(made: Fleet, call: Callable[[Coordinator], Awaitable[Any]]) -> Any:
    """Call the coordinator, again and again while it is away."""
    while True:
        try:
            return asyncio.run(answered(made.address, call))
        except Unreachable:
            time.sleep(0.05)


@contextmanager
def training() -> Iterator[Fleet]:
    """Yield a fleet whose job trains; afterwards the job is cancelled, and its audit must be clean."""
    with fleet() as made:
        until_s = time.monotonic() + START_S
        while len(asked(made, lambda remote: remote.fleet()).links) < 6:
            assert time.monotonic() < until_s
            time.sleep(0.2)
        made.job_id = asked(made, lambda remote: remote.submit(submission(job(), "r"))).job_id
        made.wait_for_steps(SETTLE_STEPS)
        yield made
        asked(made, lambda remote: remote.cancel(made.job_id))
        while job_state(asked(made, lambda remote: remote.job(made.job_id))) not in ("cancelled", "failed"):
            time.sleep(0.2)
        run = made.folder / "work" / "runs" / made.job_id
        command = [sys.executable, "-m", "periplus", "job", "audit", str(run)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def longest_gap_s(made: Fleet, since: int) -> float:
    """Return the longest time between two steps from the step with number `since` on, all of one fork."""
    steps = made.steps()[since:]
    assert len({record["fork"] for record in steps}) == 1
    return max(float(later["time_s"] - earlier["time_s"]) for earlier, later in pairwise(steps))


def coordinator_restart(tries: int) -> tuple[float, dict[str, Any]]:
    seconds = []
    with training() as made:
        for _ in range(tries):
            made.running["coordinator"].kill()
            made.running["coordinator"].wait()
            begun_s = time.monotonic()
            made.start_coordinator()
            found = asked(made, lambda remote: remote.job(made.job_id))
            seconds.append(time.monotonic() - begun_s)
            assert job_state(found) == "running"
            say(f"the coordinator answers after {seconds[-1]:.2f} s")
            made.wait_for_steps(SETTLE_STEPS)
    return max(seconds), {"s": seconds}


def trainer_restart(tries: int) -> tuple[float, dict[str, Any]]:
    seconds = []
    with training() as made:
        for _ in range(tries):
            fork, known = made.steps()[-1]["fork"], len(made.steps())
            (trainer,) = made.pids("-m trainer ")
            os.kill(trainer, signal.SIGKILL)
            begun_s = time.monotonic()
            while not any(record["fork"] > fork for record in made.steps()[known:]):
                assert time.monotonic() - begun_s < START_S
                time.sleep(0.05)
            seconds.append(time.monotonic() - begun_s)
            say(f"the next fork made a step after {seconds[-1]:.2f} s")
            made.wait_for_steps(2 * SETTLE_STEPS)  # past the next checkpoint
    return max(seconds), {"s": seconds}


def agent_upgrade(tries: int) -> tuple[dict[str, float], dict[str, Any]]:
    gaps, lost = [], 0
    with training() as made:
        for _ in range(tries):
            since = len(made.steps()) - 2
            made.running[REGIONS[0]].send_signal(signal.SIGHUP)
            made.running[REGIONS[0]].wait()
            made.start_agent(REGIONS[0])
            made.wait_for_steps(SETTLE_STEPS)
            gaps.append(longest_gap_s(made, since))
            lost += sum(int(record.get("dropped_samples", 0)) for record in made.steps()[since:])
            say(f"two steps were {gaps[-1]:.2f} s apart")
    return {"agent_upgrade_pause_s": max(gaps), "agent_upgrade_lost_samples": lost}, {"s": gaps}


def silent_region(tries: int) -> tuple[float, dict[str, Any]]:
    gaps = []
    with training() as made:
        for _ in range(tries):
            since = len(made.steps()) - 2
            stopped = [made.running["far"].pid, *made.pids("-m rollout_worker ", "rollout-far")]
            assert len(stopped) == 2
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(SILENT_S)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            made.wait_for_steps(SETTLE_STEPS)
            gaps.append(longest_gap_s(made, since))
            say(f"two steps were {gaps[-1]:.2f} s apart")
    return max(gaps), {"s": gaps}


def join(tries: int) -> tuple[float, dict[str, Any]]:
    seconds = []
    for _ in range(tries):
        with training() as made:
            begun_s = time.monotonic()
            made.start_agent(NEW_REGION)
            while not made.num_accepted(NEW_REGION):
                assert time.monotonic() - begun_s < START_S
                time.sleep(0.2)
            seconds.append(time.monotonic() - begun_s)
            say(f"the first sample of a new region came after {seconds[-1]:.2f} s")
            made.wait_for_steps(SETTLE_STEPS)
    return max(seconds), {"s": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TARGETS), help="measure this figure alone")
    parser.add_argument("--tries", type=int, default=3, help="faults of each kind")
    arguments = parser.parse_args()
    tries: int = arguments.tries
    upgrade: list[tuple[dict[str, float], dict[str, Any]]] = []

    def of_upgrade(name: str) -> tuple[float, dict[str, Any]]:
        if not upgrade:
            upgrade.append(agent_upgrade(tries))
        return upgrade[0][0][name], upgrade[0][1]

    measures = {
        "coordinator_restart_s": lambda: coordinator_restart(tries),
        "trainer_restart_s": lambda: trainer_restart(tries),
        "agent_upgrade_pause_s": lambda: of_upgrade("agent_upgrade_pause_s"),
        "agent_upgrade_lost_samples": lambda: of_upgrade("agent_upgrade_lost_samples"),
        "join_to_first_sample_s": lambda: join(tries),
        "silent_region_pause_s": lambda: silent_region(tries),
    }
    names = [arguments.only] if arguments.only else list(TARGETS)
    return print_figures("control_plane", measures, names, TARGETS, tries=tries)


if __name__ == "__main__":
    sys.exit(main())
