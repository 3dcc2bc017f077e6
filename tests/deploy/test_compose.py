"""The compose file is accepted by Docker Compose, and its commands by ours."""

import re
from typing import Any

import click
import pytest
import yaml

from tests.support.processes.deploy_tools import DEPLOY, check_command, output_of, tool

COMPOSE = DEPLOY / "compose" / "compose.yaml"


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    return {name: each for name, each in services().items() if each["image"].startswith("periplus-")}


def test_docker_compose_accepts_the_file() -> None:
    output_of([tool("docker-compose"), "--file", COMPOSE, "config", "--quiet"])


def test_prometheus_accepts_its_settings() -> None:
    output_of([tool("promtool"), "check", "config", COMPOSE.with_name("prometheus.yaml")])


def test_every_command_is_one_of_ours() -> None:
    found = {name: check_command(each["command"]) for name, each in ours().items()}
    assert set(found) == {"coordinator", "us-east", "eu-west", "ap-south"}
    agents = {name: each for name, each in found.items() if name != "coordinator"}
    assert {each["region"] for each in agents.values()} == set(agents)
    assert all(each["advertise"] == f"{name}:7072" for name, each in agents.items())


def test_what_is_kept_lies_on_a_volume_of_the_service() -> None:
    for name, each in ours().items():
        assert each["volumes"] == [f"{name}:/var/lib/periplus"]
        assert str(check_command(each["command"])["state_dir"]).startswith("/var/lib/periplus/")


def test_join_tokens_come_from_outside_and_each_agent_has_its_own() -> None:
    tokens = [each["environment"]["PERIPLUS_JOIN_TOKEN"] for name, each in ours().items() if name != "coordinator"]
    assert all(re.fullmatch(r"\$\{JOIN_TOKEN_[A-Z_]+:-\}", token) for token in tokens)
    assert len(set(tokens)) == 3


def test_ports_are_open_on_the_loopback_address_alone_and_images_have_versions() -> None:
    for each in services().values():
        assert all(port.startswith("127.0.0.1:") for port in each.get("ports", []))
        assert re.search(r":v?\d", each["image"])


def test_files_that_services_mount_exist() -> None:
    mounted = re.findall(r"\"(\./[^:]+):", COMPOSE.read_text())
    assert len(mounted) == 3
    assert all((COMPOSE.parent / name).is_file() for name in mounted)


@pytest.mark.parametrize(
    "words",
    [
        ["agent", "run", "--region", "a", "--no-such-option", "1"],
        ["agent", "run", "--region"],
        ["agent", "run", "--region", "a", "--listen", "7072"],
        ["coordinator", "run", "word"],
    ],
    ids=["unknown option", "no value", "no address", "a word too many"],
)
def test_a_command_that_is_not_ours_would_be_found(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        check_command(words)
