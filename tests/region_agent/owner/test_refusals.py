"""What a policy refuses, and with which words."""

from dataclasses import replace
from typing import Any

import pytest

from periplus.values.machine import Device, DeviceFamily, EngineVersion, Inventory, Machine
from periplus.values.task import FailureCause, Role, TaskState
from region_agent.control.reconcile import LocalTask, report_unstarted
from region_agent.owner.egress import DayOfEgress
from region_agent.owner.policy_file import AgentPolicy, SecretSource
from region_agent.owner.refusals import OwnerRefusal, offered_by_owner, refusal

TASK = LocalTask(
    task_id="j/rollout-us-0",
    job_id="j",
    role=Role.ROLLOUT,
    job_json="{}",
    trainer_region="eu",
    trainer_gateway="eu:1",
    fork=4,
    resume_from="",
    plan_json="{}",
    stopping=False,
    authority_key="ab" * 32,
    job_secret="5e",
    output_dir="runs",
    max_restarts=3,
    engine="torch",
    devices=(0, 1),
    operator="ann",
    has_own_code=True,
    secrets=(("HF_TOKEN", "hub"),),
)
TODAY = DayOfEgress("2026-11-27", 3_000_000_000)
HUB = {"hub": SecretSource(env="HUB")}


def refused(task: LocalTask = TASK, **policy: Any) -> OwnerRefusal | None:
    return refusal(AgentPolicy(**{"secrets": HUB, **policy}), "/etc/policy.yaml", task, TODAY)


@pytest.mark.parametrize(
    ("policy", "words", "cause"),
    [
        ({"operators": ("bob",)}, ["operator ann", "operators", "is bob"], FailureCause.OWNER),
        ({"operators": ()}, ["operators", "is none"], FailureCause.OWNER),
        ({"devices": (0, 2)}, ["device 1,", "devices", "is 0, 2"], FailureCause.DEVICE),
        ({"engines": ("vllm",)}, ["engine torch", "engines", "is vllm"], FailureCause.ENGINE),
        ({"own_code": False}, ["own_code", "is false"], FailureCause.OWNER),
        ({"secrets": {"wandb": SecretSource(env="W")}}, ["no secret hub", "secrets", "is wandb"], FailureCause.OWNER),
        (
            {"egress_gb_per_day": 2.5},
            ["3 GB today", "2026-11-28 00:00 UTC", "egress_gb_per_day", "is 2.5"],
            FailureCause.OWNER,
        ),
    ],
)
def test_a_refusal_names_key_file_and_value(policy: dict[str, Any], words: list[str], cause: FailureCause) -> None:
    found = refused(**policy)
    assert found is not None
    assert all(word in found.why for word in ["j/rollout-us-0", "/etc/policy.yaml", *words]), found.why
    assert found.cause is cause
    assert cause.is_misplaced


def test_what_is_allowed_is_not_refused() -> None:
    assert refused() is None
    assert (
        refused(operators=("bob", "ann"), devices=(0, 1), engines=("torch",), own_code=True, egress_gb_per_day=3.000001)
        is None
    )


def test_engines_and_code_concern_rollout_workers_alone() -> None:
    assert refused(replace(TASK, role=Role.TRAINER), engines=("vllm",), own_code=False) is None


def test_a_fleet_without_identities_has_no_operator_to_allow() -> None:
    found = refused(replace(TASK, operator=""), operators=("ann",))
    assert found is not None
    assert "the fleet has no identities" in found.why


def test_a_refused_task_has_failed_once_it_has_ended() -> None:
    found = OwnerRefusal("no")
    stopped = report_unstarted(TASK)
    assert found.unstarted(TASK) == replace(stopped, state=TaskState.FAILED, message="no", cause=FailureCause.OWNER)
    assert found.reported(stopped) == found.unstarted(TASK)
    running = replace(stopped, state=TaskState.RUNNING)
    assert found.reported(running) == replace(running, message="no")
    succeeded = replace(stopped, state=TaskState.SUCCEEDED)
    assert found.reported(succeeded) == succeeded


def test_the_agent_tells_only_of_what_jobs_may_use() -> None:
    devices = tuple(Device(index=index, kind=DeviceFamily.CUDA) for index in range(3))
    engines = tuple(EngineVersion(name=name, version="1") for name in ("torch", "vllm"))
    own = Machine(name="m", num_cores=4, memory_bytes=1, devices=devices, engines=engines)
    other = replace(own, name="n")
    found = Inventory(machines=(own, other), allows_own_code=True)
    assert offered_by_owner(AgentPolicy(), found) == found
    told = offered_by_owner(AgentPolicy(devices=(2, 7), engines=("vllm",), own_code=False), found)
    assert [each.index for each in told.own.devices] == [2]
    assert [each.name for each in told.own.engines] == ["vllm"]
    assert not told.allows_own_code
    assert told.machines[1] == other
    assert not offered_by_owner(AgentPolicy(), replace(found, allows_own_code=False)).allows_own_code
