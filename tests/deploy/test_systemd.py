"""The units are correct for systemd, run commands of ours, and keep the rights that sandboxed rewards need."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.processes.deploy_tools import DEPLOY, check_command, output_of, tool

UNITS = {path.stem: path for path in (DEPLOY / "systemd").glob("*.service")}
PROGRAM = "/opt/periplus/.venv/bin/periplus"

VALUES = {
    "${PERIPLUS_REGION}": "us",
    "${PERIPLUS_COORDINATOR}": "c:7070",
    "${PERIPLUS_LISTEN}": "0.0.0.0:7072",
    "${PERIPLUS_ADVERTISE}": "a:7072",
}


def settings(name: str) -> dict[str, str]:
    lines = UNITS[name].read_text().replace("\\\n", " ").splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Za-z]+=", line))


def installed(name: str, folder: Path) -> Path:
    """Write a unit whose program exists on this machine."""
    file = folder / UNITS[name].name
    file.write_text(UNITS[name].read_text().replace(PROGRAM, "/bin/true"))
    return file


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    assert output_of([tool("systemd-analyze"), "verify", installed(name, tmp_path)]) == ""


@pytest.mark.parametrize(("name", "most"), [("periplus-coordinator", 20), ("periplus-agent", 60)])
def test_a_unit_is_exposed_little(name: str, most: int, tmp_path: Path) -> None:
    """`most` is ten times the highest exposure that passes, where 10.0 is a unit without any setting."""
    words = [tool("systemd-analyze"), "security", "--offline=yes", f"--threshold={most}"]
    output_of([*words, installed(name, tmp_path)])


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_runs_a_command_of_ours(name: str) -> None:
    program, *words = [VALUES.get(word, word) for word in shlex.split(settings(name)["ExecStart"])]
    assert program == PROGRAM
    check_command(words)


def test_the_agent_keeps_what_sandboxed_rewards_and_gpus_need() -> None:
    found = settings("periplus-agent")
    namespaces = {"RestrictNamespaces", "SystemCallFilter", "ProtectKernelModules", "ProtectProc", "ProcSubset"}
    devices = {"PrivateDevices", "ProtectClock"}
    assert (namespaces | devices) & set(found) == set()
    assert found["KillMode"] == "process"
