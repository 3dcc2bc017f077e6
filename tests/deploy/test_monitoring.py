"""The files for Prometheus and Grafana: their metrics exist, and Prometheus accepts them and what is exported."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from coordinator.app import serving
from coordinator.config import CoordinatorConfig
from periplus.net import rpc
from periplus.process.exported_metrics import EXPORTED_METRICS
from periplus.process.metrics_endpoint import ExportedSamples
from tests.support.coordinator.loopback import DEADLINE_S, FakeAgent
from tests.support.processes.scrape import scraped

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
NAME = re.compile(r"\bperiplus_[a-z0-9_]+")
EXTERNAL = {"up", "process_resident_memory_bytes"}
"""Metrics of Prometheus and of prometheus_client that the files use."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


def rules() -> list[dict[str, Any]]:
    tree = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    return [rule for group in tree["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    """Return the expressions of the dashboard, its variables included."""
    board = json.loads((MONITORING / "dashboard.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [each["definition"] for each in board["templating"]["list"] if "definition" in each]


def promtool(*words: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *words], input=given, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def test_each_metric_of_an_alert_is_exported() -> None:
    assert len(rules()) >= 7
    for rule in rules():
        used = set(NAME.findall(rule["expr"]))
        assert used or rule["expr"].startswith("up{"), rule["alert"]
        assert used <= EXPORTED_METRICS.keys(), rule["alert"]


def test_each_metric_of_the_dashboard_is_exported() -> None:
    used = {name for query in queries() for name in NAME.findall(query)}
    assert len(used) >= 8
    assert used <= EXPORTED_METRICS.keys()


@pytest.mark.parametrize("query", [*queries(), *(rule["expr"] for rule in rules())])
def test_a_query_uses_labels_that_its_metrics_have(query: str) -> None:
    for name, selectors in re.findall(r"\b(periplus_[a-z0-9_]+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)[!=]~?", selectors)) <= set(EXPORTED_METRICS[name].labels)


def test_a_panel_of_the_dashboard_names_labels_that_exist() -> None:
    board = json.loads((MONITORING / "dashboard.json").read_text())
    assert len(board["panels"]) >= 8
    for panel in board["panels"]:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            names = set(re.findall(r"\b(?:periplus|process)_[a-z0-9_]+", target["expr"]))
            known = {"job", "instance"}.union(*(EXPORTED_METRICS[n].labels for n in names - EXTERNAL))
            assert named <= known, panel["title"]


@needs_prometheus
def test_prometheus_accepts_its_configuration_and_the_alerts() -> None:
    done = promtool("check", "config", MONITORING / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout
    assert promtool("check", "rules", MONITORING / "alerts.yml").returncode == 0


@needs_prometheus
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    for file in (MONITORING / "alerts.yml", Path(__file__).with_name("alerts_tests.yml")):
        shutil.copy(file, tmp_path)
    done = promtool("test", "rules", tmp_path / "alerts_tests.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    found = [query.replace("$job_id", ".*") for query in queries() if not query.startswith("label_values")]
    group = {"name": "dashboard", "rules": [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(found)]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}))
    done = promtool("check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_prometheus_finds_no_fault_with_any_name_of_the_registry() -> None:
    registry, metrics = CollectorRegistry(), tuple(EXPORTED_METRICS.values())
    samples = [metric.of(1, **dict.fromkeys(metric.labels, "x")) for metric in metrics]
    registry.register(ExportedSamples(metrics, lambda: samples))
    text = generate_latest(registry).decode()
    assert text.count("# TYPE") == len(metrics)
    done = promtool("check", "metrics", given=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def with_two_regions(metrics: str, address: str) -> str:
    """Scrape a coordinator after two agents have joined and measured the links between them."""
    async with FakeAgent(address, "eu") as eu, FakeAgent(address, "us", "other") as us:
        obeying = [asyncio.create_task(each.until(lambda: False)) for each in (eu, us)]
        try:
            while True:
                text = await asyncio.to_thread(scraped, metrics)
                if text.count("periplus_link_rtt_seconds{") == 2:
                    return text
                await asyncio.sleep(0.05)
        finally:
            for each in obeying:
                each.cancel()
            await asyncio.gather(*obeying, return_exceptions=True)


@needs_prometheus
def test_prometheus_finds_no_fault_with_what_a_coordinator_exports() -> None:
    async def scene() -> str:
        server = rpc.server()
        address = rpc.bind(server, "127.0.0.1:0")
        config = CoordinatorConfig(listen=address, metrics_listen="127.0.0.1:0")
        async with asyncio.timeout(DEADLINE_S), serving(config, server) as others:
            return await with_two_regions(others["metrics"], address)

    text = asyncio.run(scene())
    done = promtool("check", "metrics", given=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def prometheus(folder: Path, metrics: str) -> Iterator[str]:
    """Run Prometheus with the files of this repository, but for the targets and the interval; yield its address."""
    tree = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    tree["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    tree["scrape_configs"] = tree["scrape_configs"][:1]
    tree["scrape_configs"][0]["static_configs"] = [{"targets": [metrics]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(tree))
    shutil.copy(MONITORING / "alerts.yml", folder)
    address = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["prometheus", *words, f"--web.listen-address={address}"], stderr=log, stdout=log)
    try:
        yield address
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def answer(address: str, query: str) -> list[dict[str, Any]]:
    """Return what Prometheus finds for a query; nothing while it starts."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            found: list[dict[str, Any]] = json.load(response)["data"]["result"]
            return found
    except OSError:
        return []


@pytest.mark.slow
@pytest.mark.processes
@needs_prometheus
def test_a_real_prometheus_scrapes_a_coordinator(tmp_path: Path) -> None:
    def seen(metrics: str) -> list[dict[str, Any]]:
        with prometheus(tmp_path, metrics) as address:
            end_s = time.monotonic() + DEADLINE_S / 2
            while time.monotonic() < end_s:
                found = answer(address, 'up{job="periplus-coordinator"} == 1 and on () periplus_region_connected == 1')
                if found:
                    return found
                time.sleep(0.2)
        raise AssertionError((tmp_path / "log").read_text())

    async def scene() -> list[dict[str, Any]]:
        server = rpc.server()
        address = rpc.bind(server, "127.0.0.1:0")
        config = CoordinatorConfig(listen=address, metrics_listen="127.0.0.1:0")
        async with serving(config, server) as others, FakeAgent(address, "eu"):
            return await asyncio.to_thread(seen, others["metrics"])

    (found,) = asyncio.run(scene())
    assert found["metric"]["job"] == "periplus-coordinator"
    assert found["value"][1] == "1"
