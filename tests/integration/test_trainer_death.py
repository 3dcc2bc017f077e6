"""kill -9 of the trainer: a new fork from the last checkpoint, and an audit that finds nothing to complain about."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.processes.demo import (
    TINY,
    TWO_REGIONS,
    audit,
    pids_of,
    read_until,
    resume_demo,
    run_demo,
    shorten,
    start_demo,
)

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SHORT = (TWO_REGIONS, *TINY, "checkpoint.every_steps=2")
STEPS = 24


def kill_trainer(work_dir: Path, demo: "subprocess.Popen[str]", *, after: str, pause_s: float = 0.0) -> Path:
    """Kill the trainer, and return the run's directory once the demo has said what happened."""
    read_until(demo, after)
    time.sleep(pause_s)
    (trainer,) = [pid for pid, words in pids_of(work_dir) if " trainer " in words]
    os.kill(trainer, signal.SIGKILL)
    rest = demo.communicate(timeout=90)[1]
    assert demo.returncode == 1, rest
    (run,) = (work_dir / "runs").iterdir()
    assert f"its log is {run}/logs/trainer.log" in rest
    assert f"periplus job submit --resume {run}" in rest
    assert f"periplus demo --resume {run}" in rest
    assert f"report: {run}/report.html" in rest
    assert "killed by signal 9" in (run / "report.html").read_text()
    return run


def test_a_synchronous_run_that_is_killed_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    arguments = ("--staleness", "0", "--steps", str(STEPS), *SHORT)
    whole = run_demo(tmp_path / "whole", *arguments)
    broken = tmp_path / "broken"
    broken.mkdir()
    run = kill_trainer(broken, start_demo(broken, *arguments), after="step ")
    assert max(checkpoints(run)) < STEPS, "it was killed too late for the test to show anything"

    resumed = resume_demo(broken, run)

    assert resumed["steps"] == STEPS
    assert resumed["weights_digest"] == whole["weights_digest"]
    assert (resumed["accuracy_before"], resumed["accuracy_after"]) == (
        whole["accuracy_before"],
        whole["accuracy_after"],
    )
    assert audit(Path(whole["run_dir"]))["findings"] == []
    assert audit(run)["findings"] == []


def test_an_asynchronous_run_that_is_killed_resumes_and_its_audit_is_clean(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, "--staleness", "2", "--steps", "4000", *SHORT)
    run = kill_trainer(tmp_path, demo, after="step ", pause_s=0.7)
    newest = max(checkpoints(run))
    shorten(run, newest + 6)

    resumed = resume_demo(tmp_path, run)

    assert resumed["steps"] == newest + 6
    assert (resumed["staleness_violations"], resumed["weight_digest_mismatches"]) == (0, 0)
    assert audit(run)["findings"] == []


def checkpoints(run: Path) -> list[int]:
    """Return the versions of the complete checkpoints."""
    return [int(path.parent.name.partition(".")[2]) for path in (run / "checkpoints").glob("*/manifest.json")]
