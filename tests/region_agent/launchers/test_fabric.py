"""The network between nodes is measured once a node, a failure leaves its figure out, and real nodes of Ray answer."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from periplus import clock
from periplus.errors import Unreachable
from periplus.values.machine import Inventory
from region_agent.config import AgentConfig, LauncherName
from region_agent.control.accelerators import Accelerators
from region_agent.launchers import fabric
from region_agent.launchers.cluster import Cluster
from region_agent.launchers.fabric import ALL_REDUCE, RegionFabric
from region_agent.launchers.ray_cluster import RayCluster
from region_agent.launchers.region_machines import RegionMachines, has_other_figures
from tests.region_agent.launchers.test_local import ROOT, wait_for
from tests.support.processes.clusters import ray_nodes

LOOPBACK = "127.0.0.1:0"


class ClusterHere:
    """A cluster whose nodes are all this machine. `prefix` comes before each command line of a node."""

    own = "n0"

    def __init__(self, *prefix: str) -> None:
        self.prefix = prefix
        self.up: tuple[str, ...] = ("n0", "n1")

    def nodes(self) -> tuple[str, ...]:
        return self.up

    def words(self, node: str, settings: Mapping[str, str]) -> tuple[str, ...]:
        return (*self.prefix, f"NODE={node}")

    def close(self, *, leaves_tasks: bool) -> None:
        pass


class Answers(RegionFabric):
    """A fabric with an answer for each node, and for the all-reduce; it notes what is asked."""

    def __init__(self, streams: Mapping[str, float], all_reduce: float = 0.0) -> None:
        super().__init__(ClusterHere("env"), LOOPBACK)
        self.streams, self.all_reduce, self.asked = streams, all_reduce, list[str]()

    def _result(self, first: Any, others: Callable[[str], Any], limit_s: float) -> dict[str, Any]:
        nodes = [word.removeprefix("NODE=") for words in others("1") for word in words if word.startswith("NODE=")]
        if ALL_REDUCE in first:
            self.asked.append("+".join(nodes))
            if not self.all_reduce:
                raise Unreachable("no torch")
            return {"bytes_per_s": self.all_reduce}
        self.asked += nodes
        if not (rate := self.streams[nodes[0]]):
            raise OSError("no route")
        return {"bytes_per_s": rate, "round_trip_s": 1 / rate, "address": "10.0.0.1"}


def test_a_node_is_measured_when_it_comes_and_forgotten_when_it_is_gone() -> None:
    made = Answers({"n1": 100.0, "n2": 50.0}, 70.0)
    assert made.measure(("n0", "n1"))
    assert (made.bytes_per_s, made.latency_s) == (70.0, 0.005)
    assert not made.measure(("n0", "n1"))
    assert made.measure(("n0", "n1", "n2"))
    assert (made.bytes_per_s, made.latency_s) == (70.0, 0.01)
    assert made.asked == ["n1", "n1", "n2", "n1+n2"]
    assert made.measure(("n0", "n1"))
    assert made.latency_s == 0.005
    assert made.measure(("n0",))
    assert (made.bytes_per_s, made.latency_s) == (0.0, 0.0)


def test_without_an_all_reduce_the_slowest_connection_counts(caplog: pytest.LogCaptureFixture) -> None:
    made = Answers({"n1": 100.0, "n2": 50.0})
    made.measure(("n0", "n1", "n2"))
    assert made.bytes_per_s == 50.0
    assert caplog.text.count("all_reduce_unknown") == 1


def test_a_node_that_cannot_be_reached_is_said_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    made = Answers({"n1": 0.0, "n2": 50.0}, 70.0)
    for _ in range(2):
        made.measure(("n0", "n1", "n2"))
    assert made.asked == ["n1", "n2", "n2"]
    assert caplog.text.count("node_fabric_unknown") == 1
    assert (made.bytes_per_s, made.latency_s) == (70.0, 0.01)


def test_a_node_that_could_not_be_reached_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    made, now_s = Answers({"n1": 0.0, "n2": 50.0}, 70.0), 100.0
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)
    made.measure(("n0", "n1", "n2"))
    made.streams = {"n1": 100.0, "n2": 50.0}
    now_s += fabric.RETRY_S
    assert not made.measure(("n0", "n1", "n2"))
    now_s += 1.0
    made.measure(("n0", "n1", "n2"))
    assert made.asked == ["n1", "n2", "n2", "n1", "n2+n1"]


def test_a_node_that_does_not_answer_has_no_figure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fabric, "PAIR_S", 1.0)
    made = RegionFabric(ClusterHere("false"), LOOPBACK)
    assert not made.measure(("n0", "n1"))
    assert "node_fabric_unknown" in caplog.text
    assert made._running == []


def test_an_agent_that_stops_waits_for_no_measurement(caplog: pytest.LogCaptureFixture) -> None:
    made = RegionFabric(ClusterHere("env"), LOOPBACK)
    made.stop()
    began_s = time.monotonic()
    made.measure(("n0", "n1"))
    assert time.monotonic() - began_s < 1.0
    assert "unknown" not in caplog.text, "it was cut short, and nothing is wrong with the network"


def machines(tmp_path: Path, cluster: Cluster, devices_file: Path | None = None) -> RegionMachines:
    config = AgentConfig(
        region="eu",
        coordinator=LOOPBACK,
        listen=LOOPBACK,
        advertise="",
        work_dir=tmp_path,
        state_dir=tmp_path,
        wan="",
        launcher=LauncherName.RAY,
        num_cores=2,
        memory_bytes=1 << 30,
        worker_threads=1,
        stop_grace_s=1.0,
        devices_file=devices_file,
    )
    return RegionMachines(config, (), Accelerators(), cluster)


@pytest.mark.clusters
@pytest.mark.processes
def test_two_nodes_of_ray_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ray_nodes(tmp_path) as nodes:
        for name, text in {**nodes.variables, "PYTHONPATH": str(ROOT)}.items():
            monkeypatch.setenv(name, text)
        cluster = RayCluster(nodes.address, "eu")
        try:
            wait_for(lambda: len(cluster.nodes()) == 2)
            made = machines(tmp_path, cluster)
            # On a busy machine a node may miss a look or two.
            wait_for(lambda: len(made.read(0.0).machines) == 2)
            before = made.read(0.0)
            assert before.fabric_bytes_per_s == 0.0
            assert made._fabric is not None
            assert made._fabric.measure(cluster.nodes())
            now = made.read(0.0)
            sys.stdout.write(f"{now.fabric_bytes_per_s:.3g} B/s, {now.fabric_latency_s:.3g} s\n")
            assert has_other_figures(before, now)
            assert 1e6 < now.fabric_bytes_per_s < 1e12
            assert 0 < now.fabric_latency_s < 0.1
            assert made._fabric._all_reduce_bytes_per_s == now.fabric_bytes_per_s, "gloo has answered"
            assert not made._fabric.measure(cluster.nodes())
        finally:
            cluster.close(leaves_tasks=False)


def up(offered: Inventory) -> list[str]:
    return [each.name for each in offered.usable]


def test_a_node_is_offered_while_it_is_held_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    entry = "- {num_cores: 2, memory_gib: 1, name: n1, devices: [{kind: cpu, cores: [0]}]}"
    path.write_text(f"schema: periplus.devices/1\nmachines:\n- devices: [{{kind: cpu, cores: [0]}}]\n{entry}\n")
    cluster = ClusterHere("env", f"PYTHONPATH={ROOT}")
    made = machines(tmp_path, cluster, devices_file=path)
    assert up(made.read(0.0)) == ["n0", "n1"]
    cluster.up = ("n1",)
    offered = made.read(0.0)
    assert (offered.own.name, up(offered)) == ("n0", ["n1"]), "others use the agent's own"
    assert not made.lose(())
    assert made.lose({"n1"})
    assert up(made.read(0.0, asks=False)) == []
    cluster.prefix = ("false",)
    assert up(made.read(0.0)) == [], "it does not answer"
    cluster.prefix = ("env", f"PYTHONPATH={ROOT}")
    assert up(made.read(0.0, asks=False)) == []
    assert up(made.read(0.0)) == ["n1"]
