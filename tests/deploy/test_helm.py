"""The chart renders with the real Helm, and its manifests fit the schemas of Kubernetes."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes.deploy_tools import DEPLOY, check_command, output_of, tool

CHART = DEPLOY / "helm" / "periplus"
EXAMPLE = CHART / "values-example.yaml"
OLDEST = "1.27"
"""Oldest version of Kubernetes that the chart allows: the first one in which gRPC probes are stable."""

Manifest = dict[str, Any]


def rendered(*options: str | Path) -> list[Manifest]:
    text = output_of([tool("helm"), "template", "r", CHART, "--namespace", "ns", *options])
    return [each for each in yaml.safe_load_all(text) if each]


def named(manifests: Sequence[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def containers(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["containers"][0]
        for each in manifests
        if each["kind"] == "StatefulSet"
    }


def refusal(*options: str) -> str:
    words: list[str | Path] = [tool("helm"), "template", "r", CHART, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("options", [[], ["--values", str(EXAMPLE)]], ids=["defaults", "example"])
def test_helm_lint_is_content(options: Sequence[str]) -> None:
    output_of([tool("helm"), "lint", "--strict", CHART, *options])


@pytest.mark.parametrize("version", [OLDEST, "1.34"])
def test_manifests_fit_the_schemas_of_kubernetes(version: str, tmp_path: Path) -> None:
    manifests = rendered("--values", EXAMPLE)
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    output_of([tool("kubernetes-validate"), "--strict", "-k", version, file])
    assert len(manifests) == 9


def test_every_container_runs_a_command_of_ours() -> None:
    found = containers(rendered("--values", EXAMPLE))
    assert sorted(found) == ["r-periplus-agent-cores", "r-periplus-agent-us-east", "r-periplus-coordinator"]
    for container in found.values():
        check_command(container["args"])
    assert check_command(found["r-periplus-agent-cores"]["args"])["coordinator"] == "r-periplus-coordinator.ns.svc:7070"


def test_an_agent_gets_its_gpus_and_its_token_from_a_secret() -> None:
    manifests = rendered("--values", EXAMPLE)
    found = containers(manifests)
    assert found["r-periplus-agent-us-east"]["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert "nvidia.com/gpu" not in found["r-periplus-agent-cores"]["resources"]["limits"]
    sources = {name: each["env"][0] for name, each in found.items() if "agent" in name}
    assert {each["name"] for each in sources.values()} == {"PERIPLUS_JOIN_TOKEN"}
    secrets = {name: each["valueFrom"]["secretKeyRef"]["name"] for name, each in sources.items()}
    assert secrets["r-periplus-agent-us-east"] == "periplus-join-us-east"
    assert named(manifests, "Secret", secrets["r-periplus-agent-cores"])["stringData"] == {"token": "TOKEN"}


def test_a_value_of_an_entry_replaces_the_default_even_if_it_is_zero() -> None:
    entries = [{"name": "a", "gpus": 0, "joinToken": {"value": "x"}}, {"name": "b", "joinToken": {"value": "y"}}]
    found = containers(rendered("--set", "agentDefaults.gpus=4", "--set-json", f"agents={json.dumps(entries)}"))
    limits = [found[f"r-periplus-agent-{name}"]["resources"]["limits"].get("nvidia.com/gpu") for name in "ab"]
    assert limits == [None, 4]


def test_containers_have_no_rights_and_no_access_to_the_cluster() -> None:
    for each in rendered("--values", EXAMPLE):
        if each["kind"] == "StatefulSet":
            pod = each["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True
            context = pod["containers"][0]["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False


def test_probes_are_a_value() -> None:
    by_default = containers(rendered())["r-periplus-coordinator"]
    assert by_default["livenessProbe"]["grpc"] == {"port": 7079}
    tcp = containers(rendered("--set", "probes.kind=tcp"))["r-periplus-coordinator"]
    assert tcp["readinessProbe"]["tcpSocket"] == {"port": 7070}
    assert "health_listen" not in check_command(tcp["args"])
    for container in containers(rendered("--values", EXAMPLE, "--set", "probes.port=7071")).values():
        assert container["readinessProbe"]["grpc"] == {"port": 7071}
        assert check_command(container["args"])["health_listen"] == "0.0.0.0:7071"
    without = containers(rendered("--set", "probes.enabled=false"))["r-periplus-coordinator"]
    assert not [key for key in without if key.endswith("Probe")]


def test_only_agents_and_named_networks_reach_the_coordinator() -> None:
    policy = named(rendered("--values", EXAMPLE), "NetworkPolicy", "r-periplus-coordinator")["spec"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": "grpc"}]
    assert [next(iter(peer)) for peer in rule["from"]] == ["podSelector", "ipBlock"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "coordinator.enabled=false"], "coordinator.address is needed"),
        (["--set", "agents[0].name=a"], "a needs joinToken"),
        (["--set", "agents[0].name=a,agents[0].gpu=1"], "gpu"),
    ],
)
def test_values_that_cannot_work_are_refused(options: Sequence[str], words: str) -> None:
    assert words in refusal(*options)
