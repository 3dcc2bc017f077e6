"""Ctrl-C, and kill -9 of the trainer: a new fork from the last checkpoint, and an audit that finds nothing wrong."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.processes.demo import (
    DEADLINE_S,
    TINY,
    TWO_REGIONS,
    audit,
    pids_of,
    processes_of,
    read_until,
    run_demo,
    shorten,
    start_demo,
)

pytestmark = [pytest.mark.processes, pytest.mark.faults]

# A constant rate: how many steps are left does not change it.
SYNCHRONOUS = ("--staleness", "0", TWO_REGIONS, *TINY, "checkpoint.every_steps=2", "optimizer.schedule=constant")


def kill_trainer(work_dir: Path, run: Path, demo: "subprocess.Popen[str]", *, after: int) -> None:
    """Kill the trainer a moment after it has a checkpoint of a version after this one."""
    while max(checkpoints(run), default=0) <= after:
        assert demo.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    (trainer,) = [pid for pid, words in pids_of(work_dir) if " trainer " in words]
    os.kill(trainer, signal.SIGKILL)


def test_a_synchronous_run_goes_on_after_ctrl_c_and_after_a_kill_and_ends_in_the_same_bits(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, "--steps", "4000", *SYNCHRONOUS)
    lines = read_until(demo, "step ")
    peers = {words.split()[2]: _dialled(pid, words) for pid, words in pids_of(tmp_path) if "--task-file" in words}
    demo.send_signal(signal.SIGINT)
    rest = demo.communicate(timeout=DEADLINE_S)[1]
    assert demo.returncode == 130, lines + rest
    assert set(peers) == {"trainer", "rollout_worker"}
    assert all(addresses == {gateway} for gateway, addresses in peers.values()), peers
    assert "periplus demo --resume" in rest
    assert processes_of(tmp_path) == []
    (run,) = (tmp_path / "runs").iterdir()
    assert {path.name.partition(".")[0] for path in (run / "checkpoints").iterdir()} == {"0"}
    newest = max(checkpoints(run))
    assert newest >= 1

    steps = newest + 40
    shorten(run, steps)
    demo = start_demo(tmp_path, "--json", "--resume", str(run), stdout=subprocess.PIPE)
    kill_trainer(tmp_path, run, demo, after=newest)
    out, rest = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 0, rest
    assert " failed: the process ended without an outcome (killed by signal 9)" in rest
    assert "it starts again from checkpoint 1." in rest
    resumed = json.loads(out.splitlines()[-1])
    whole = run_demo(tmp_path / "whole", "--steps", str(steps), *SYNCHRONOUS)

    assert resumed["steps"] == steps
    assert resumed["weights_digest"] == whole["weights_digest"]
    assert (resumed["accuracy_before"], resumed["accuracy_after"]) == (
        whole["accuracy_before"],
        whole["accuracy_after"],
    )
    assert (resumed["staleness_violations"], resumed["weight_digest_mismatches"]) == (0, 0)
    assert audit(run)["findings"] == []
    forks = [json.loads(line)["fork"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert forks[-1] == 2


def checkpoints(run: Path) -> list[int]:
    """Return the versions of the complete checkpoints."""
    return [int(path.parent.name.partition(".")[2]) for path in (run / "checkpoints").glob("*/manifest.json")]


def _dialled(pid: int, words: str) -> tuple[str, set[str]]:
    """Return a worker's own gateway, and every TCP address that it is connected to."""
    task = json.loads(Path(words.split()[4]).read_text())
    links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    remote = [row[2].split(":") for row in rows if row[9] in inodes and row[3] == "01"]
    return task["gateway"], {f"{_dotted(host)}:{int(port, 16)}" for host, port in remote}


def _dotted(host: str) -> str:
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(host[-8:])))  # IPv4, also when mapped into IPv6
