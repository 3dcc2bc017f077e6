"""The Dockerfile passes the linter, and its targets run as a user without rights and hold no secret."""

import re
from pathlib import Path

import pytest

from tests.support.processes.deploy_tools import DEPLOY, ROOT, check_command, output_of, tool

DOCKERFILE = DEPLOY / "images" / "Dockerfile"


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage, with continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        words = line.split()
        if words[:1] == ["FROM"]:
            found[words[-1]] = []
        elif words and found:
            found[list(found)[-1]].append(line.strip())
    return found


def test_hadolint_finds_nothing() -> None:
    assert output_of([tool("hadolint"), DOCKERFILE]) == ""


@pytest.mark.parametrize("target", ["coordinator", "agent"])
def test_a_target_runs_as_a_user_without_rights(target: str) -> None:
    assert "USER 10001:10001" in stages()[target]


def test_no_instruction_names_a_secret() -> None:
    lines = [line for instructions in stages().values() for line in instructions]
    assert lines
    assert not [line for line in lines if re.search(r"(?i)token|password|secret", line)]


def test_the_default_command_of_the_coordinator_is_one_of_ours() -> None:
    (command,) = [line for line in stages()["coordinator"] if line.startswith("CMD ")]
    check_command(re.findall(r'"([^"]+)"', command))


def test_every_package_of_the_wheel_is_sent_to_the_build() -> None:
    sent = {line[1:] for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split() if line[0] == "!"}
    assert all((ROOT / Path(name)).exists() for name in sent)
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= sent
    assert {"pyproject.toml", "constraints.txt", "constraints-vllm.txt", "examples/spelling.yaml"} <= sent
