"""The batch script of Slurm stops its agent on SIGTERM, and is queued again only when the time limit is near."""

import re
import shlex
import signal
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.processes.deploy_tools import DEPLOY, check_command, output_of, tool

SCRIPT = DEPLOY / "slurm" / "agent.sbatch"

AGENT = """#!/bin/sh
echo "$@" >"$FOLDER/words"
echo "$PERIPLUS_JOIN_TOKEN" >"$FOLDER/token"
trap 'echo stopped >"$FOLDER/stopped"; exit 3' TERM
touch "$FOLDER/started"
while :; do sleep 0.05; done
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def stopped(folder: Path, limit: str) -> int:
    """Run the script with an agent and a Slurm that are stand-ins, send SIGTERM, and return its exit code."""
    agent = program(folder / "periplus", AGENT)
    program(folder / "squeue", f"#!/bin/sh\necho {limit}\n")
    program(folder / "scontrol", '#!/bin/sh\necho "$@" >"$FOLDER/scontrol-words"\n')
    (folder / "periplus.d").mkdir()
    (folder / "config" / "periplus").mkdir(parents=True)
    (folder / "config" / "periplus" / "join-token").write_text("the token\n")
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "FOLDER": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "PERIPLUS_COORDINATOR": "coordinator:7070",
        "PERIPLUS_REGION": "hpc",
        "PERIPLUS_PROGRAM": str(agent),
        "PERIPLUS_DIRECTORY": str(folder / "periplus.d"),
        "PERIPLUS_ADVERTISE": "node:7072",
        "SLURM_JOB_ID": "17",
    }
    with subprocess.Popen(["bash", SCRIPT], env=environment, stdout=subprocess.DEVNULL) as running:
        until_s = time.monotonic() + 30
        while not (folder / "started").exists() and time.monotonic() < until_s:
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        return running.wait(timeout=30)


@pytest.mark.parametrize(("left_s", "again"), [(119, True), (3600, False)])
def test_the_agent_is_stopped_and_the_job_queued_again_if_its_time_is_over(
    tmp_path: Path, left_s: int, again: bool
) -> None:
    limit = datetime.now() + timedelta(seconds=left_s)
    code = stopped(tmp_path, f"{limit:%Y-%m-%dT%H:%M:%S}")
    assert code == 3
    assert (tmp_path / "stopped").exists()
    assert (tmp_path / "token").read_text() == "the token\n"
    assert check_command(shlex.split((tmp_path / "words").read_text()))["advertise"] == "node:7072"
    assert (tmp_path / "scontrol-words").exists() is again
    if again:
        assert (tmp_path / "scontrol-words").read_text() == "requeue 17\n"


@pytest.mark.parametrize("limit", ["", "Unknown"])
def test_a_job_whose_limit_slurm_does_not_say_is_not_queued_again(tmp_path: Path, limit: str) -> None:
    assert stopped(tmp_path, limit) == 3
    assert not (tmp_path / "scontrol-words").exists()


def test_slurm_is_asked_for_a_signal_and_to_queue_again() -> None:
    options = re.findall(r"^#SBATCH (\S+)$", SCRIPT.read_text(), re.MULTILINE)
    assert {"--signal=B:TERM@120", "--requeue", "--nodes=1", "--ntasks-per-node=1"} <= set(options)


@pytest.mark.parametrize("script", [SCRIPT, DEPLOY / "spot-notice.sh"], ids=lambda path: str(path.name))
def test_shellcheck_finds_nothing(script: Path) -> None:
    output_of(["bash", "-n", script])
    assert output_of([tool("shellcheck"), script]) == ""
