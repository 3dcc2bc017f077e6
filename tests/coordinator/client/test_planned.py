"""What is shown of a plan after its job was submitted: its processes, its dollars and the frontier."""

import time
from dataclasses import replace

import pytest

from coordinator.client.fleet_file import fleet_tree
from coordinator.client.planned import frontier_words, plan_words, run_words
from periplus.errors import ConfigError
from periplus.net.convert import inventory_to_pb
from periplus.pb.v1 import control_pb2
from periplus.values.machine import Device, DeviceFamily
from planner.answer.outcome import Found
from planner.files.capabilities import load_capabilities
from planner.files.fleet_file import fleet_of
from planner.files.hub_checkpoint import visible_architecture
from planner.solve import Thinking, plan_job
from tests.support.coordinator.machines import inventory, machine
from tests.support.planner.hosts import tiny_job

JOB = tiny_job(model={"path": "builtin:qwen3-tiny"})


def fleet(h100_usd: float, l4_usd: float) -> control_pb2.Fleet:
    """A region with four fast accelerators and four slow ones, at these rents."""
    fast = Device(index=0, kind=DeviceFamily.CUDA, model="H100-SXM", memory_bytes=81559 << 20, usd_per_hour=h100_usd)
    slow = Device(index=4, kind=DeviceFamily.CUDA, model="L4", memory_bytes=23034 << 20, usd_per_hour=l4_usd)
    devices = [replace(each, index=each.index + i) for each in (fast, slow) for i in range(4)]
    own = replace(machine(), devices=tuple(devices), memory_bytes=256 << 30)
    return control_pb2.Fleet(regions=[control_pb2.Region(name="eu", inventory=inventory_to_pb(inventory(own)))])


def planned(on: control_pb2.Fleet) -> control_pb2.Job:
    found = plan_job(
        fleet_of(fleet_tree(on, 0.0)[0], "fleet"),
        JOB,
        architecture=visible_architecture(JOB.model.path),
        model_bytes=None,
        capabilities=load_capabilities(),
        thinking=Thinking(budget_s=60.0, now_s=time.monotonic),
    )
    assert isinstance(found, Found)
    return control_pb2.Job(job_id="j", job_json=JOB.to_json(), plan_json=replace(found.best, question=None).to_json())


def test_the_place_of_the_run_directory_follows_a_plan() -> None:
    trainer = control_pb2.JobProcess(role=control_pb2.ROLE_TRAINER, region="eu", machine="n1")
    job, nodes = control_pb2.Job(processes=[trainer]), [machine("n0"), machine("n1")]
    for machines, where in ((nodes, "storage that its machines share"), (nodes[1:], "n1")):
        region = control_pb2.Region(name="eu", inventory=inventory_to_pb(inventory(*machines)))
        words = run_words(job, control_pb2.Fleet(regions=[control_pb2.Region(name="us"), region]))
        assert words == f"the run directory: below the work directory of eu's agent, on {where}"
    assert run_words(control_pb2.Job(), control_pb2.Fleet()) == ""


def test_processes_dollars_and_frontier_follow_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.client.planned.FRONTIER_BUDGET_S", 60.0)  # a busy machine may take longer
    on = fleet(h100_usd=2.5, l4_usd=0.5)
    job = planned(on)
    processes, _, dollars = plan_words(job).rpartition("\n")
    assert processes.splitlines()[0].split() == ["TASK", "REGION", "DEVICE", "ENGINE", "TENSOR", "DATA", "COUNT", "$/H"]
    assert dollars.startswith("dollars: rent ")
    heading, fastest, *_, cheapest, caption, hint = frontier_words(job, on).splitlines()
    assert hint.startswith("cheaper or faster: periplus job cancel j,")
    assert heading.split()[:2] == ["FRONTIER", "S/STEP"]
    assert "H100-SXM" in fastest
    assert caption == "(of plans whose devices all have a price)"
    assert "H100-SXM" not in cheapest, "the cheapest plan uses the cheap devices alone"


def test_a_frontier_that_cannot_be_found_does_not_fail_the_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    on = fleet(h100_usd=2.5, l4_usd=0.5)
    job = planned(on)

    def damaged(path: str) -> None:
        raise ConfigError(f"{path}: config.json is damaged")

    monkeypatch.setattr("coordinator.client.planned.visible_architecture", damaged)
    assert frontier_words(job, on) == "no frontier: builtin:qwen3-tiny: config.json is damaged"
    monkeypatch.setattr("coordinator.client.planned.visible_architecture", lambda path: None)
    assert frontier_words(job, on) == ""


def test_without_prices_or_a_plan_there_is_no_frontier() -> None:
    free = fleet(h100_usd=0.0, l4_usd=0.0)
    assert frontier_words(planned(free), free) == ""
    assert frontier_words(control_pb2.Job(job_id="j"), control_pb2.Fleet()) == ""
    assert plan_words(control_pb2.Job(job_id="j")) == ""
