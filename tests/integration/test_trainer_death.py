"""kill -9 of the trainer: a new fork from the last checkpoint, and an audit that finds nothing to complain about."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.demo import DEADLINE_S, TINY, pids_of, read_until, run_demo, start_demo

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SHORT = (*TINY, "checkpoint.every_steps=2")


def audit(run: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "periplus", "job", "audit", str(run), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kill_trainer(work_dir: Path, demo: "subprocess.Popen[str]", *, after: str, pause_s: float = 0.0) -> Path:
    """Returns the run's directory, once the demo has noticed."""
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


def resume(work_dir: Path, run: Path) -> dict[str, Any]:
    return run_demo(work_dir, "--resume", str(run))


def test_a_synchronous_run_that_is_killed_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    arguments = ("--staleness", "0", "--steps", "60", *SHORT)
    whole = run_demo(tmp_path / "whole", *arguments)
    broken = tmp_path / "broken"
    broken.mkdir()
    run = kill_trainer(broken, start_demo(broken, *arguments), after="step ")
    assert max(checkpoints(run)) < 60, "it was killed too late for the test to show anything"

    resumed = resume(broken, run)

    assert resumed["steps"] == 60
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

    resumed = resume(tmp_path, run)

    assert resumed["steps"] == newest + 6
    assert (resumed["staleness_violations"], resumed["weight_digest_mismatches"]) == (0, 0)
    assert audit(run)["findings"] == []


def checkpoints(run: Path) -> list[int]:
    """Versions of the complete ones."""
    return [int(path.parent.name.partition(".")[2]) for path in (run / "checkpoints").glob("*/manifest.json")]


def shorten(run: Path, steps: int) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("steps: 4000", f"steps: {steps}"))
