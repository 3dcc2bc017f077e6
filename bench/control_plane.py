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
- `pause_survived_s`: trainer, agent of the trainer's region and coordinator stand still for 45 s, each at `--tries`
  moments of the pings between them; 0 if one of them did not go on in the same fork.
- `event_cpu_ms_200`, `coordinator_rss_mb_200`: CPU time a message, and memory, of a coordinator with 200 regions that
  beat once a second, after their 39,800 links were measured.

Each fault is tried `--tries` times, one job for each fault; the worst counts. After each job the audit must be clean.
`python -m bench.control_plane --only NAME` measures one of them. The last line is one JSON object, and everything
else goes to stderr.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench.provenance import Measure, print_figures, say
from coordinator.client.connection import connect
from tests.support.coordinator.loopback import FakeAgent
from tests.support.processes.operated_fleet import (
    FAR,
    HOME,
    NEW,
    START_S,
    TRAINER,
    WORKER,
    OperatedFleet,
    signalled,
    wait_for,
)

SILENT_S, PAUSE_S, PING_S = 30.0, 45.0, 20.0
SETTLE_STEPS = 20
"""Steps between two tries, in which the job is as before."""

MANY, STEADY_S = 200, 30.0
"""Regions of the fleet whose coordinator is measured, and seconds of that."""

JOB = ("steps=4000", "staleness=2", "checkpoint.every_steps=20")

TARGETS: dict[str, tuple[str, float, str]] = {
    "coordinator_restart_s": ("<=", 5.0, "s"),
    "trainer_restart_s": ("<=", 15.0, "s"),
    "agent_upgrade_pause_s": ("<=", 5.0, "s"),
    "agent_upgrade_lost_samples": ("==", 0, "samples"),
    "join_to_first_sample_s": ("<=", 20.0, "s"),
    "pause_survived_s": (">=", 45.0, "s"),
    "silent_region_pause_s": ("<=", 5.0, "s"),
    "event_cpu_ms_200": ("<=", 0.3, "ms"),
    "coordinator_rss_mb_200": ("<=", 200.0, "MB"),
}


@contextmanager
def training() -> Iterator[OperatedFleet]:
    """Yield a fleet whose job trains; afterwards the job is cancelled, and its audit must be clean."""
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
        made = OperatedFleet(Path(name))
        try:
            made.train(JOB, SETTLE_STEPS)
            yield made
            made.end_job()
        finally:
            made.stop()


def num_accepted(made: OperatedFleet, region: str) -> int:
    """Return how many samples of a region the ledger has accepted."""
    lines = (made.run_dir / "audit.jsonl").read_bytes().split(b"\n")
    wanted = (b'"kind":"result","verdict":"accepted"', b'"region":"%s"' % region.encode())
    return sum(all(words in line for words in wanted) for line in lines)


def longest_gap_s(made: OperatedFleet, since: int) -> float:
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
            state = made.job_state()
            seconds.append(time.monotonic() - begun_s)
            assert state == "running"
            say(f"the coordinator answers after {seconds[-1]:.2f} s")
            made.wait_for_steps(SETTLE_STEPS)
    return max(seconds), {"s": seconds}


def trainer_restart(tries: int) -> tuple[float, dict[str, Any]]:
    seconds = []
    with training() as made:
        for _ in range(tries):
            fork = made.steps()[-1]["fork"] + 1
            signalled(made.pids(TRAINER), signal.SIGKILL)
            begun_s = time.monotonic()
            made.wait_for_fork(fork)
            seconds.append(time.monotonic() - begun_s)
            say(f"the next fork made a step after {seconds[-1]:.2f} s")
            made.wait_for_steps(2 * SETTLE_STEPS)  # past the next checkpoint
    return max(seconds), {"s": seconds}


def agent_upgrade(tries: int) -> tuple[dict[str, float], dict[str, Any]]:
    gaps, lost, undisturbed = [], 0, 0
    with training() as made:
        for _ in range(tries):
            made.wait_for_steps(SETTLE_STEPS)
            undisturbed += num_dropped(made, len(made.steps()) - SETTLE_STEPS)
            since = len(made.steps()) - 2
            made.running[HOME].send_signal(signal.SIGHUP)
            made.running[HOME].wait()
            made.start_agent(HOME)
            made.wait_for_steps(SETTLE_STEPS)
            gaps.append(longest_gap_s(made, since))
            lost += num_dropped(made, since)
            say(f"two steps were {gaps[-1]:.2f} s apart, {lost} samples were lost")
    found = {"agent_upgrade_pause_s": max(gaps), "agent_upgrade_lost_samples": lost}
    return found, {"s": gaps, "dropped_in_as_many_steps_before": undisturbed}


def num_dropped(made: OperatedFleet, since: int) -> int:
    return sum(int(record.get("dropped_samples", 0)) for record in made.steps()[since:])


def silent_region(tries: int) -> tuple[float, dict[str, Any]]:
    gaps = []
    with training() as made:
        for _ in range(tries):
            since = len(made.steps()) - 2
            stopped = [made.running[FAR].pid, *made.pids(WORKER, f"rollout-{FAR}")]
            signalled(stopped, signal.SIGSTOP)
            time.sleep(SILENT_S)
            signalled(stopped, signal.SIGCONT)
            made.wait_for_steps(SETTLE_STEPS)
            gaps.append(longest_gap_s(made, since))
            say(f"two steps were {gaps[-1]:.2f} s apart")
    return max(gaps), {"s": gaps}


def join(tries: int) -> tuple[float, dict[str, Any]]:
    seconds = []
    for _ in range(tries):
        with training() as made:
            begun_s = time.monotonic()
            made.start_agent(NEW)
            wait_for(lambda: num_accepted(made, NEW) > 0, START_S, "a sample of the new region")
            seconds.append(time.monotonic() - begun_s)
            say(f"the first sample of a new region came after {seconds[-1]:.2f} s")
            made.wait_for_steps(SETTLE_STEPS)
    return max(seconds), {"s": seconds}


def pause_survived(tries: int) -> tuple[float, dict[str, Any]]:
    """Return the longest pause after which the job went on in its fork, whoever paused and whatever the phase."""
    survived = dict.fromkeys(("trainer", "agent", "coordinator"), 0.0)
    with training() as made:
        for who in survived:
            for attempt in range(tries):
                # Connections are pinged every 20 s, so that tries at other moments of that are other cases.
                time.sleep(PING_S * attempt / tries)
                fork = made.steps()[-1]["fork"]
                pids = made.pids(TRAINER) if who == "trainer" else [made.running[HOME if who == "agent" else who].pid]
                signalled(pids, signal.SIGSTOP)
                time.sleep(PAUSE_S)
                signalled(pids, signal.SIGCONT)
                made.wait_for_steps(SETTLE_STEPS)
                if made.steps()[-1]["fork"] != fork:
                    say(f"the {who} did not survive a pause of {PAUSE_S:.0f} s, try {attempt + 1}")
                    break
            else:
                survived[who] = PAUSE_S
                say(f"the {who} survived {tries} pauses of {PAUSE_S:.0f} s")
    return min(survived.values()), {"s": survived, "tries": tries}


async def _with_many_regions(address: str, pid: int) -> dict[str, float]:
    """Return what a coordinator takes for MANY regions that beat once a second, once all their links are measured."""
    process = psutil.Process(pid)

    def cpu_s() -> float:
        times = process.cpu_times()
        return times.user + times.system

    async with contextlib.AsyncExitStack() as opened:
        agents = [await opened.enter_async_context(FakeAgent(address, f"r{i}")) for i in range(MANY)]
        remote = await opened.enter_async_context(connect(address))
        reading = [asyncio.create_task(agent.until(lambda: False)) for agent in agents]
        begun_s, num_links = cpu_s(), MANY * (MANY - 1)
        while (measured := len((await remote.fleet()).links)) < num_links:
            say(f"{measured} of {num_links} links are measured")
            await asyncio.sleep(10.0)
        per_link_s = (cpu_s() - begun_s) / num_links
        before_s, sent = cpu_s(), sum(agent.sequence for agent in agents)
        await asyncio.sleep(STEADY_S)
        took_s, num_events = cpu_s() - before_s, sum(agent.sequence for agent in agents) - sent
        for each in reading:
            each.cancel()
    rss_mb = process.memory_info().rss / 1e6
    return {"event_cpu_ms": took_s / num_events * 1e3, "link_cpu_ms": per_link_s * 1e3, "rss_mb": rss_mb}


def many_regions() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
        folder = Path(name)
        ready = folder / "ready"
        words = [
            "--listen",
            "127.0.0.1:0",
            "--state-dir",
            str(folder / "state"),
            "--ready-file",
            str(ready),
        ]
        command = [
            sys.executable,
            "-m",
            "periplus",
            "coordinator",
            "run",
            "--plaintext",
            *words,
            "--log-level",
            "warning",
        ]
        process = subprocess.Popen(command)
        try:
            wait_for(ready.exists, START_S, "the coordinator")
            address = json.loads(ready.read_text())["coordinator"]
            found = asyncio.run(_with_many_regions(address, process.pid))
        finally:
            process.terminate()
            process.wait()
    say(f"{MANY} regions: {found}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TARGETS), help="measure this figure alone")
    parser.add_argument("--tries", type=int, default=3, help="faults of each kind")
    arguments = parser.parse_args()
    tries: int = arguments.tries
    upgrade = functools.cache(lambda: agent_upgrade(tries))
    many = functools.cache(many_regions)
    measures: dict[str, Measure] = {
        "coordinator_restart_s": lambda: coordinator_restart(tries),
        "trainer_restart_s": lambda: trainer_restart(tries),
        "agent_upgrade_pause_s": lambda: (upgrade()[0]["agent_upgrade_pause_s"], upgrade()[1]),
        "agent_upgrade_lost_samples": lambda: (upgrade()[0]["agent_upgrade_lost_samples"], upgrade()[1]),
        "join_to_first_sample_s": lambda: join(tries),
        "pause_survived_s": lambda: pause_survived(tries),
        "silent_region_pause_s": lambda: silent_region(tries),
        "event_cpu_ms_200": lambda: (many()["event_cpu_ms"], many()),
        "coordinator_rss_mb_200": lambda: (many()["rss_mb"], many()),
    }
    names = [arguments.only] if arguments.only else list(TARGETS)
    return print_figures("control_plane", measures, names, TARGETS, tries=tries)


if __name__ == "__main__":
    sys.exit(main())
