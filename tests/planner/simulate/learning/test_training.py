"""Training steps of a mesh: closed forms for equal lengths, and the cost of unequal lengths."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer.placement import Layout, Pool, Sharding
from planner.devices import collective, layer
from planner.devices.catalogue import architecture, gpu_types
from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.fleet import Fleet, Machines, Region
from planner.problem.lengths import constant, lognormal
from planner.problem.workload import Task, Workload
from planner.simulate.learning.training import PoolPipelines, SimulatedMesh

GPU = gpu_types()["A100-80GB-SXM"]
ARCH = architecture("Qwen3-4B")
MACHINES = Machines(gpu=GPU.name, gpus_per_machine=8, num_machines=4)
REGION = Region(name="here", machines=(MACHINES,), fabric_bytes_per_s=5e9)
AT: DeviceClass = classes_of(Fleet(regions=(REGION,), links=(), gpu_types={GPU.name: GPU}))[0]
WORKLOAD = Workload(
    algorithm="grpo",
    models=dict.fromkeys((Task.GENERATION, Task.ACTOR_TRAINING), ARCH),
    eta=0,
    prompts_per_step=8,
    group_size=8,
    prompt_tokens=constant(100),
    completion_tokens=lognormal(median_tokens=300, sigma=1, cap_tokens=1200),
)


def mesh(*, unit: int, data: int, of: Workload = WORKLOAD, **kinds: object) -> SimulatedMesh:
    layout = Layout(tensor=unit, **kinds)  # type: ignore[arg-type]
    pool = Pool(
        device_class=AT.key,
        unit_gpus=unit,
        num_units=data * layout.pipeline,
        layouts=((Task.ACTOR_TRAINING, layout),),
    )
    return SimulatedMesh(of, [PoolPipelines(of, Task.ACTOR_TRAINING, AT, pool)], list)


def test_equal_samples_on_one_device_take_their_slots_and_the_update() -> None:
    forward = layer.forward_s(GPU, ARCH, tensor=1, tokens=1000.0, sequence=500.0)
    backward = layer.backward_s(GPU, ARCH, tensor=1, tokens=1000.0, sequence=500.0)
    head = 3 * layer.head_s(GPU, ARCH, tensor=1, tokens=1000.0)
    update = layer.update_s(GPU, params=ARCH.num_params, bytes_per_param=16)
    expected = 8 * (ARCH.num_layers * (2 * forward + backward) + head) + update
    assert mesh(unit=1, data=1, micro_batch=2, recompute=True).seconds([500] * 16) == pytest.approx(expected, rel=5e-3)


def test_a_pipeline_fills_once() -> None:
    whole = mesh(unit=1, data=1, pipeline=4).seconds([500] * 16) - mesh(unit=1, data=1, pipeline=4).seconds([500] * 8)
    eight = mesh(unit=1, data=1, pipeline=4).seconds([500] * 8)
    update = mesh(unit=1, data=1, pipeline=4)._ends_s
    fill = eight - whole - update
    assert 0.5 * 3 / 8 * whole < fill < 3 / 8 * whole


def test_two_replicas_halve_the_slots_and_reduce_their_gradients() -> None:
    one, two = mesh(unit=8, data=1), mesh(unit=8, data=2)
    payload = 2 * ARCH.num_params / 8
    ring = collective.all_reduce_s(payload_bytes=payload, num=2, bytes_per_s=5e9, latency_s=20e-6)
    slots = one.seconds([500] * 16) - one._ends_s
    assert two.seconds([500] * 16) == pytest.approx(slots / 2 + one._ends_s + ring, rel=1e-3)


def test_sharded_state_makes_the_update_shorter_and_nothing_else() -> None:
    plain, sharded = mesh(unit=8, data=4), mesh(unit=8, data=4, sharding=Sharding.OPTIMIZER)
    update = layer.update_s(GPU, params=ARCH.num_params / 8, bytes_per_param=16)
    assert plain.seconds([500] * 8) - sharded.seconds([500] * 8) == pytest.approx(update * 3 / 4, rel=1e-3)


def test_copies_on_machines_gather_inside_them_and_reduce_their_shards_between_them() -> None:
    full, copies = (mesh(unit=1, data=32, sharding=Sharding.FULL, copies=num) for num in (1, 4))
    ring = collective.all_reduce_s(payload_bytes=2.0 * ARCH.num_params, num=4, bytes_per_s=5e9, latency_s=20e-6)
    update = layer.update_s(GPU, params=ARCH.num_params / 8, bytes_per_param=16)
    assert copies._ends_s == pytest.approx(ring + update, rel=1e-3)
    gathers = 3 * 31 / 32 * 2 * ARCH.num_params / 5e9
    assert full.seconds([500] * 32) == pytest.approx(gathers + full._ends_s, rel=1e-2)
    assert copies.seconds([500] * 32) < full.seconds([500] * 32)


def test_gradients_in_float32_take_twice_as_long_between_copies_and_a_third_more_with_gathers() -> None:
    of = replace(WORKLOAD, gradient_bytes_per_param=4.0)
    for kinds, more_bytes in (({"copies": 4}, 2 * 3 / 4 * 2 / 8 * 8), ({}, 31 / 32 * 2)):
        full, wide = (mesh(unit=1, data=32, of=it, sharding=Sharding.FULL, **kinds) for it in (WORKLOAD, of))
        more_s = wide.seconds([500] * 32) - full.seconds([500] * 32)
        assert more_s == pytest.approx(more_bytes * ARCH.num_params / 5e9, rel=0.05)


@given(st.lists(st.integers(50, 1300), min_size=8, max_size=40))
def test_a_longer_batch_takes_no_less(tokens: list[int]) -> None:
    """But for how well whole samples are dealt to two pipelines: longest first is at worst 7/6 of the best (Graham,
    1969)."""
    one = mesh(unit=2, data=2, pipeline=2, micro_batch=2)
    assert one.seconds([num + 50 for num in tokens]) >= 6 / 7 * one.seconds(tokens)


def test_micro_batches_are_balanced_and_what_cannot_be_costs_its_fill() -> None:
    one = mesh(unit=1, data=1, pipeline=6, micro_batch=4)
    assert one.seconds([100, 300, 700, 900] * 12) == pytest.approx(one.seconds([500] * 48), rel=1e-6)
    lone = [1300, *[490] * 47]
    assert one.seconds([500] * 48) < one.seconds(lone) < 1.3 * one.seconds([500] * 48)
