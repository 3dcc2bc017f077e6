"""The modules are formatted and consistent, let nothing in by default, and write user data that cloud-init can read."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes.deploy_tools import DEPLOY, output_of, tool

FOLDER = DEPLOY / "terraform"
TEMPLATE = FOLDER / "cloud-init.yaml.tftpl"
CLOUDS = ["aws", "gcp", "azure"]

VALUES: dict[str, str | bool] = {
    "cloud": "aws",
    "region": "aws:us-east-1",
    "coordinator": "c:7070",
    "advertise": "a:7072",
    "join_token": "the-token",
    "repository": "https://example.org/periplus.git",
    "revision": "v0.1.0",
    "spot": True,
    "disk": "/dev/disk/by-id/data",
}


@cache
def parsed(file: Path) -> Any:
    return json.loads(output_of([tool("hcl2tojson"), file]))


def names(blocks: list[dict[str, Any]]) -> set[str]:
    return {name.strip('"') for block in blocks for name in block}


def text_of(cloud: str) -> str:
    return (FOLDER / cloud / "main.tf").read_text()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_module_uses_each_variable_that_it_declares_and_no_other(cloud: str) -> None:
    declared = names(parsed(FOLDER / cloud / "variables.tf")["variable"])
    assert set(re.findall(r"\bvar\.(\w+)", text_of(cloud))) == declared


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_module_uses_resources_that_it_declares(cloud: str) -> None:
    body = parsed(FOLDER / cloud / "main.tf")
    declared = {
        f"{kind}.{name}".replace('"', "")
        for block in body["resource"]
        for kind, named in block.items()
        for name in named
        if not kind.startswith("__")
    }
    used = set(re.findall(r"(?<!data\.)\b((?:aws|google|azurerm)_\w+\.\w+)\.\w+", text_of(cloud)))
    assert len(declared) >= 4
    assert used <= declared


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_join_token_is_sensitive_and_no_network_may_dial_in_by_default(cloud: str) -> None:
    text = (FOLDER / cloud / "variables.tf").read_text()
    blocks = dict(re.findall(r'variable "(\w+)" \{\n(.*?)\n\}', text, re.DOTALL))
    assert "sensitive   = true" in blocks["join_token"]
    assert "default     = []" in blocks["peer_cidrs"]
    assert "default" not in blocks["join_token"]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_module_fills_in_each_value_of_the_template(cloud: str) -> None:
    given = re.search(r"cloud-init\.yaml\.tftpl\", \{\n(.*?)\n\s*\}\)", text_of(cloud), re.DOTALL)
    assert given is not None
    assert set(re.findall(r"^\s*(\w+)\s*=", given[1], re.MULTILINE)) == set(VALUES)
    assert set(re.findall(r"\$\{(\w+)\}", TEMPLATE.read_text())) == set(VALUES)


def test_terraform_finds_the_format_right() -> None:
    output_of([tool("terraform"), "fmt", "-check", "-recursive", FOLDER])


def test_terraform_renders_user_data_that_set_up_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terraform = tool("terraform")
    monkeypatch.setenv("CHECKPOINT_DISABLE", "1")  # else it asks for newer versions of itself
    (tmp_path / "main.tf").write_text(
        f"locals {{\n  values = jsondecode({json.dumps(json.dumps(VALUES))})\n}}\n"
        f'output "text" {{\n  value = templatefile("{TEMPLATE}", local.values)\n}}\n'
    )
    output_of([terraform, "apply", "-auto-approve", "-input=false"], folder=tmp_path)
    text = json.loads(output_of([terraform, "output", "-json"], folder=tmp_path))["text"]["value"]
    assert text.startswith("#cloud-config\n")
    files = {each["path"]: each["content"] for each in yaml.safe_load(text)["write_files"]}
    assert "PERIPLUS_JOIN_TOKEN=the-token\n" in files["/etc/periplus/agent.env"]
    assert "spot-notice.sh aws && systemctl stop periplus-agent" in files["/etc/systemd/system/periplus-spot.service"]
    script = tmp_path / "install.sh"
    script.write_text(files["/opt/install-periplus.sh"])
    assert output_of([tool("shellcheck"), script]) == ""


def test_the_environment_has_what_the_unit_asks_for() -> None:
    asked = set(re.findall(r"\$\{(PERIPLUS_\w+)\}", (DEPLOY / "systemd" / "periplus-agent.service").read_text()))
    given = set(re.findall(r"^\s+(PERIPLUS_\w+)=", TEMPLATE.read_text(), re.MULTILINE))
    assert asked | {"PERIPLUS_JOIN_TOKEN"} == given
