"""A job's processes on accelerators: what is planned, what a plan by hand may say, and how slow emulated ones are."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from periplus.errors import ConfigError
from periplus.values.machine import Device, DeviceFamily
from planner.answer.outcome import BudgetExhausted, Found, Infeasible
from planner.devices.catalogue import architecture, gpu_types, type_of
from planner.files.capabilities import load_capabilities
from planner.jobs.spare_workers import BUSY_SHARE
from planner.plan import Plan, PlanOutcome, TaskKind
from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet, Machines, Region
from planner.problem.workload import Task
from planner.solve import Thinking, plan_job
from tests.support.planner.hosts import mesh, tiny_job

QWEN = architecture("Qwen3-0.6B")
SLOWER_L4 = type_of(Device(index=0, kind=DeviceFamily.EMULATED, model="L4", slowdown=400.0))
SLOW_L4 = type_of(Device(index=0, kind=DeviceFamily.EMULATED, model="L4", slowdown=100.0))
FLEET = {"a": {"L4": 3, "H100-SXM": 1}, "b": {"L4": 2}}


def fleet(machines: Mapping[str, Mapping[str, int]] = FLEET, usd: float | None = None) -> Fleet:
    regions = [
        Region(
            name=name,
            machines=tuple(
                Machines(gpu=gpu, gpus_per_machine=number, num_machines=1, usd_per_gpu_hour=usd)
                for gpu, number in owned.items()
            ),
            fabric_bytes_per_s=1e9,
            num_cores=16,
            memory_bytes=64 << 30,
            engines=("torch",) if name == "a" else ("torch", "vllm"),
        )
        for name, owned in machines.items()
    ]
    return replace(mesh(regions), gpu_types={**gpu_types(), SLOW_L4.name: SLOW_L4, SLOWER_L4.name: SLOWER_L4})


def planned(on: Fleet, by_hand: Plan | None = None, shape: Architecture | None = QWEN, **changes: Any) -> PlanOutcome:
    return plan_job(
        on,
        tiny_job(**{"model": {"path": "SomeBody/SomeModel"}} | changes),
        architecture=shape,
        model_bytes=1_200_000_000,
        capabilities=load_capabilities(),
        thinking=Thinking(budget_s=20.0, now_s=time.monotonic),
        by_hand=by_hand,
    )


def hand_made(*rows: Mapping[str, object], trainer_region: str = "a") -> Plan:
    tree = {"schema": "periplus.plan/1", "method": "by hand", "trainer_region": trainer_region}
    return Plan.from_tree(tree | {"assignments": list(rows)}, "plan")


def row(task: str, region: str, device: str = "L4", number: int = 1, **more: object) -> dict[str, object]:
    return {"task": task, "region": region, "device": device, "num_workers": number} | more


def test_unlike_accelerators_are_planned_by_type_and_number() -> None:
    found = planned(fleet())
    assert isinstance(found, Found)
    trainer, *workers = found.best.assignments
    assert (trainer.task, trainer.device, trainer.data) == (TaskKind.TRAINER, "H100-SXM", 1), "the fastest trains"
    used = {(each.region, each.device): each.num_workers for each in workers}
    assert used
    assert all(number <= FLEET[region][device] for (region, device), number in used.items())
    assert sum(each.share or 0 for each in workers) == pytest.approx(1.0)


def test_a_fixed_number_of_workers_takes_any_accelerators_of_a_region() -> None:
    found = planned(fleet(), plan={"workers_per_region": 3})
    assert isinstance(found, Found)
    assert {each.device for each in found.best.assignments if each.region == "a"} == {""}
    unlike = fleet({"a": {SLOW_L4.name: 2, "L4": 2}, "b": {"L4": 2}})
    with pytest.raises(ConfigError, match="unlike emulated devices"):
        planned(unlike, plan={"workers_per_region": 3}, regions={"trainer": "a", "rollout": ["a"]})


def test_a_plan_of_least_cost_gives_each_process_a_device_of_its_own() -> None:
    found = planned(fleet(usd=2.0), plan={"objective": "cost"})
    assert isinstance(found, Found)
    assert [(each.task, each.num_workers) for each in found.best.assignments] == [("trainer", 1), ("rollout", 1)]
    assert found.best.evaluation is not None
    assert found.best.evaluation.usd_per_hour == pytest.approx(4.0, rel=0.01)


TINY: dict[str, Any] = {
    "shape": architecture("builtin:qwen3-tiny"),
    "model": {"path": "builtin:qwen3-tiny"},
    "algorithm": {"group_size": 8},
    "sampling": {"max_new_tokens": 48, "prompt_tokens": 8},
    "train": {"groups_per_step": 32, "devices": 4},
    "staleness": 8,
    "regions": {"min": 2},
}


@pytest.mark.parametrize(("number", "num_workers"), [(4, 4), (6, 5)])
def test_generation_on_free_accelerators_has_a_reserve(number: int, num_workers: int) -> None:
    """Three slow workers would do, if generation were as fast as is predicted."""
    found = planned(fleet({"a": {SLOW_L4.name: 4}, "b": {SLOWER_L4.name: number}}), **TINY)
    assert isinstance(found, Found)
    assert found.best.evaluation is not None
    rows = {(each.task, each.region): each for each in found.best.assignments}
    assert rows[TaskKind.TRAINER, "a"].data == 3
    assert rows[TaskKind.ROLLOUT, "b"].num_workers == num_workers
    busy_s, step_s = dict(found.best.evaluation.task_s)[Task.GENERATION], found.best.evaluation.step_s
    assert (busy_s <= BUSY_SHARE * step_s) == (num_workers < number)


@pytest.mark.parametrize(("memory_gib", "num_workers"), [(64, 5), (2, 3), (1, 1)])
def test_a_host_has_memory_for_each_of_its_workers(memory_gib: int, num_workers: int) -> None:
    """A worker takes a little more than half a GiB."""
    on = fleet({"a": {SLOW_L4.name: 4}, "b": {SLOWER_L4.name: 6}})
    on = replace(on, regions=(on.regions[0], replace(on.regions[1], memory_bytes=memory_gib << 30)))
    found = planned(on, **TINY)
    assert isinstance(found, Found)
    (workers,) = (each for each in found.best.assignments if each.region == "b")
    assert workers.num_workers == num_workers
    assert workers.memory_bytes * num_workers <= memory_gib << 30
    assert found.best.evaluation is not None
    assert found.best.bound is None or found.best.bound <= found.best.evaluation.step_s * (1 + 1e-6)


def test_a_model_is_divided_over_as_many_devices_as_it_needs() -> None:
    # 16 GB of weights on devices of 16 GB.
    on, shape = fleet({"a": {"B200-SXM": 1}, "b": {"T4": 4}}), architecture("Qwen3-8B")
    found = planned(on, shape=shape, engine={"name": "vllm"})
    assert isinstance(found, Found)
    (rollouts,) = (each for each in found.best.assignments if each.task is TaskKind.ROLLOUT)
    assert (rollouts.device, rollouts.tensor) == ("T4", 2)
    assert rollouts.num_workers in (1, 2)
    fixed = planned(on, shape=shape, engine={"name": "vllm", "tensor_parallel": 2})
    assert isinstance(fixed, Found)
    assert [each.tensor for each in fixed.best.assignments] == [1, 2]
    # One device does not hold it, and neither engine may divide it: torch cannot, and a fused projection has no parts.
    for impossible in (
        planned(on, shape=shape, engine={"name": "vllm", "tensor_parallel": 1}),
        planned(on, shape=replace(shape, is_fused=True), engine={"name": "vllm"}),
        planned(on, shape=shape, regions={"rollout": ["b"]}),
    ):
        assert isinstance(impossible, Infeasible | BudgetExhausted)
        assert getattr(impossible, "best", None) is None


def test_a_plan_by_hand_is_completed() -> None:
    found = planned(fleet(), hand_made(row("trainer", "a"), row("rollout", "b", engine="vllm"), row("rollout", "a")))
    assert isinstance(found, Found)
    assert [each.engine for each in found.best.assignments] == ["", "vllm", "torch"]
    trainer, *workers = found.best.assignments
    assert trainer.memory_bytes > 10 * 1_200_000_000
    assert {each.memory_bytes for each in workers} == {(512 << 20) + 6 * 1_200_000_000}
    stated = planned(fleet(), hand_made(row("trainer", "a", memory_bytes=7), row("rollout", "a")))
    assert isinstance(stated, Found)
    assert stated.best.assignments[0].memory_bytes == 7


def test_a_plan_by_hand_has_the_rents_of_the_fleet() -> None:
    by_hand = hand_made(row("trainer", "a", "H100-SXM"), row("rollout", "a", number=2), row("rollout", "b", ""))
    found = planned(fleet(usd=0.5), by_hand)
    assert isinstance(found, Found)
    assert [each.usd_per_hour for each in found.best.assignments] == [0.5, 1.0, None]
    own = hand_made(row("trainer", "a", usd_per_hour=9.0), row("rollout", "b"))
    found = planned(fleet(usd=0.5), own)
    assert isinstance(found, Found)
    assert [each.usd_per_hour for each in found.best.assignments] == [9.0, 0.5], "what the plan says stays"


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([row("trainer", "a")], "one trainer and at least one rollout worker"),
        ([row("trainer", "a"), row("trainer", "a"), row("rollout", "a")], "one trainer"),
        ([row("trainer", "a"), row("rollout", "a", number=0)], "at least one rollout worker"),
        ([row("trainer", "a"), row("rollout", "b", "", number=10**12)], "at most 65,536"),
        ([row("trainer", "b"), row("rollout", "a")], "but its trainer_region is a"),
        ([row("trainer", "a"), row("rollout", "zz")], "uses the region zz, and the fleet has a, b"),
        ([row("trainer", "a", "H100-SXM", data=2), row("rollout", "a")], "uses 2 H100-SXM in a, which has 1"),
        ([row("trainer", "a"), row("rollout", "a", number=3)], "uses 4 L4 in a, which has 3"),
        ([row("trainer", "a", data=8), row("rollout", "a")], "trainers with tensor 1 and data up to 4"),
        (
            [row("trainer", "a"), row("rollout", "b", engine="vllm", tensor=4)],
            "the runtime executes 1, 2",
        ),
        ([row("trainer", "a"), row("rollout", "a", engine="vllm")], "has the engine vllm, and a has torch"),
        ([row("trainer", "a", devices=[0, 1]), row("rollout", "a")], "names 2 devices, but has 1"),
        ([row("trainer", "a"), row("rollout", "b", by_turns=True)], "only rollout workers in the trainer's region"),
        ([row("trainer", "a"), row("rollout", "a", number=2, by_turns=True)], "1 devices by turns take 2"),
    ],
)
def test_a_plan_by_hand_that_cannot_run_is_refused_by_name(rows: list[Mapping[str, object]], what: str) -> None:
    found = planned(fleet(), hand_made(*rows))
    assert isinstance(found, Infeasible)
    assert what in found.conflict


def test_an_emulated_device_has_the_pace_of_its_model_times_its_slowdown() -> None:
    on = fleet({"a": {SLOW_L4.name: 3}, "b": {"L4": 2}})
    rows = row("trainer", "a", SLOW_L4.name, data=2), row("rollout", "a", SLOW_L4.name), row("rollout", "b")
    found = planned(on, hand_made(*rows), train={"devices": 2})
    assert isinstance(found, Found)
    trainer, slow, real = found.best.assignments
    assert real.pace is None
    assert slow.pace is not None
    assert trainer.pace is not None
    # Qwen3-0.6B on an L4 (242 TFLOP/s, 300 GB/s): it reads 1.2 GB of weights in 4 ms for each step of a batch.
    assert 0.002 < slow.pace.decode_s < 0.2
    assert slow.pace.prefill_s < slow.pace.decode_s
    assert trainer.pace.training_s > 0
    with pytest.raises(ConfigError, match="only be emulated for a model whose"):
        planned(on, hand_made(*rows), shape=None)


def test_workers_by_turns_need_no_devices_of_their_own_and_no_rent() -> None:
    rows = row("trainer", "a", data=3), row("rollout", "a", number=3, by_turns=True)
    found = planned(fleet(usd=0.5), hand_made(*rows))
    assert isinstance(found, Found)
    assert [each.usd_per_hour for each in found.best.assignments] == [1.5, 0.0]


@pytest.mark.parametrize(("staleness", "device", "takes_turns"), [(0, SLOW_L4.name, True), (0, "L4", False)])
def test_synchronous_jobs_generate_with_the_trainers_devices(staleness: int, device: str, takes_turns: bool) -> None:
    found = planned(fleet({"a": {device: 2}}), staleness=staleness, train={"devices": 2})
    assert isinstance(found, Found), found
    _, workers = found.best.assignments
    assert workers.by_turns is takes_turns
