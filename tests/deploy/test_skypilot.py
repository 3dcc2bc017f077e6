"""SkyPilot accepts the task of an agent, and the task runs a command of ours."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy import DEPLOY, check_command, output_of, tool

TASK = DEPLOY / "skypilot" / "agent.yaml"
PYTHON_VARIABLE = "SKY_PYTHON"
"""Interpreter of an environment with SkyPilot, which wants versions of its own."""

PARSE = """
import json, sys, sky, yaml
task = sky.Task.from_yaml_config(yaml.safe_load(open(sys.argv[1])), secrets_overrides=[("PERIPLUS_JOIN_TOKEN", "x")])
print(json.dumps([[str(each.cloud), each.use_spot, each.ports] for each in task.resources]))
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


def test_the_task_runs_an_agent() -> None:
    text = (
        task()["run"]
        .replace("\\\n", " ")
        .replace('${PERIPLUS_REPLICA_STORE:+--replica-store "$PERIPLUS_REPLICA_STORE"}', "")
    )
    (line,) = [line for line in text.splitlines() if "agent run" in line]
    values = {
        "$PERIPLUS_REGION": "sky",
        "$PERIPLUS_COORDINATOR": "c:7070",
        "${PERIPLUS_ADVERTISE:-$address:7072}": "a:1",
    }
    words = [values.get(word, word) for word in shlex.split(line.rstrip("& "))]
    assert check_command(words[1:])["state_dir"] == "~/periplus/state"


@pytest.mark.parametrize("part", ["setup", "run"])
def test_shellcheck_finds_nothing(part: str) -> None:
    done = subprocess.run(
        [tool("shellcheck"), "--shell=bash", "-"], input=task()[part], text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_notice_and_a_signal_both_drain_the_agent() -> None:
    run = task()["run"]
    assert re.search(r"^trap drain TERM INT$", run, re.MULTILINE)
    assert "bash deploy/spot-notice.sh && drain" in run
