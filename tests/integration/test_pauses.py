"""A trainer or its agent stands still for 45 s, so that their connection is given up, and the job goes on after it."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.processes.demo import TINY, TWO_REGIONS, audit, pids_of, read_until, start_demo
from tests.support.processes.runtime import log_lines

pytestmark = [pytest.mark.processes, pytest.mark.faults]

PAUSE_S = 45.0
"""Longer than the time in which each end notices that the other one is silent (periplus/net/rpc.py)."""

STEPS = 60


@pytest.mark.parametrize("paused", [" trainer ", "agent run"])
def test_a_pause_costs_no_fork_and_no_sample(tmp_path: Path, paused: str) -> None:
    sizes = ("--staleness", "1", TWO_REGIONS, *TINY, "regions.trainer=aws:us-east-1")
    demo = start_demo(tmp_path, "--steps", str(STEPS), *sizes)
    read_until(demo, "phase training")
    (run,) = (tmp_path / "runs").iterdir()
    found = [pid for pid, words in pids_of(tmp_path) if paused in words]
    at_home = [pid for pid, words in pids_of(tmp_path) if paused in words and "aws:us-east-1" in words]
    (pid,) = at_home or found
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(PAUSE_S)
        num_steps = len(steps(run))
    finally:
        os.kill(pid, signal.SIGCONT)
    rest = demo.communicate(timeout=120)[1]
    assert demo.returncode == 0, rest

    assert num_steps < STEPS, "the job ended before the pause did"
    assert {record["fork"] for record in steps(run)} == {0}
    assert len(steps(run)) == STEPS
    events = [line.event for line in log_lines(run / "logs" / "trainer.log")]
    assert events.count("gateway_lost") == events.count("gateway_found") > 0
    assert audit(run)["findings"] == []


def steps(run: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "step"]
