"""SkyPilot accepts the task of an agent, and the task runs a command of ours."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes.deploy_tools import DEPLOY, check_command, output_of, tool

TASK = DEPLOY / "skypilot" / "agent.yaml"
PYTHON_VARIABLE = "SKY_PYTHON"
"""Interpreter of an environment with SkyPilot, which wants versions of its own."""

PARSE = """
import json, sys, sky, yaml
task = sky.Task.from_yaml_config(yaml.safe_load(open(sys.argv[1])), secrets_overrides=[("PERIPLUS_JOIN_TOKEN", "x")])
print(json.dumps([[str(each.cloud), each.use_spot, each.ports] for each in task.resources]))
"""

AGENT = """#!/bin/sh
echo "$@" >~/words
trap 'exit 3' TERM
touch ~/started
while :; do sleep 0.05; done
"""


def task() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(TASK.read_text())
    return found


@pytest.mark.slow  # SkyPilot takes seconds to import
def test_skypilot_accepts_the_task(tmp_path: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE) or (sys.executable if find_spec("sky") else None)
    if python is None:
        pytest.skip(f"SkyPilot is not installed; {PYTHON_VARIABLE} may name an interpreter that has it")
    printed = output_of([python, "-c", PARSE, TASK], environment={"HOME": str(tmp_path)})
    resources = json.loads(printed.splitlines()[-1])
    assert {cloud.lower() for cloud, _, _ in resources} == {"aws", "gcp", "azure"}
    assert all(is_spot and ports == ["7072"] for _, is_spot, ports in resources)


def test_the_join_token_is_a_secret_that_the_launch_must_give() -> None:
    assert task()["secrets"] == {"PERIPLUS_JOIN_TOKEN": None}
    assert "TOKEN" not in task()["run"]


@pytest.mark.parametrize("part", ["setup", "run"])
def test_shellcheck_finds_nothing(part: str) -> None:
    done = subprocess.run(
        [tool("shellcheck"), "--shell=bash", "-"], input=task()[part], text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_signal_drains_the_agent(tmp_path: Path) -> None:
    agent = tmp_path / "periplus-venv" / "bin" / "periplus"
    agent.parent.mkdir(parents=True)
    agent.write_text(AGENT)
    agent.chmod(0o755)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
        "PERIPLUS_REGION": "sky",
        "PERIPLUS_COORDINATOR": "c:7070",
    }
    # In a folder without the script that asks the cloud, so that no cloud is asked.
    with subprocess.Popen(
        ["bash", "-c", task()["run"]], env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL
    ) as running:
        until_s = time.monotonic() + 30
        while not (tmp_path / "started").exists() and time.monotonic() < until_s:
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=30) == 3
    assert check_command(shlex.split((tmp_path / "words").read_text()))["advertise"] == "10.0.0.5:7072"


def test_a_notice_of_the_cloud_is_waited_for() -> None:
    assert "deploy/spot-notice.sh" in task()["run"]
    assert task()["workdir"] == "."
