"""One step of training, term by term, computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.answer.placement import Layout, Sharding
from planner.cost.tasks import layer_cuts, training
from planner.cost.tasks.training import (
    MeshTime,
    PoolConnection,
    PoolTrainingTerms,
    mesh_times,
    pool_training_terms,
    stage_s,
)
from planner.devices import layer
from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.workload import Task, Workload
from tests.support.cases.examples import examples
from tests.support.planner.cost import GPU, MODEL, fleet, machines, region, workload

TRAIN = Task.ACTOR_TRAINING
OF = workload()
IN_FLOAT32 = replace(OF, gradient_bytes_per_param=4.0)
SAMPLES = 64


def at(per_machine: int = 8, num: int = 4) -> DeviceClass:
    (found,) = classes_of(fleet(region("x", machines(per_machine=per_machine, num=num))))
    return found


def one(layout: Layout, units: int, *, of: Workload = OF, on: DeviceClass | None = None) -> PoolTrainingTerms:
    return pool_training_terms(of, TRAIN, on or at(), layer_cuts.of_layout(layout, units))


def alone(layout: Layout, units: int, *, of: Workload = OF, on: DeviceClass | None = None) -> MeshTime:
    return mesh_times(of, [one(layout, units, of=of, on=on)], []).at(0)


def test_one_device_does_everything_one_micro_batch_after_the_other() -> None:
    layout = Layout(tensor=1, micro_batch=2)
    times = alone(layout, 1)
    assert times.compute_s == pytest.approx(SAMPLES / 2 * stage_s(OF, TRAIN, at(), layout, 1))
    assert times.bubble_s == 0
    assert times.reduce_s == 0


def test_a_stage_is_forward_and_backward_of_its_layers_and_the_head() -> None:
    tokens = OF.tokens_per_sample
    layers = layer.forward_s(GPU, MODEL, tensor=1, tokens=tokens, sequence=OF.tokens_around_a_token)
    layers += layer.backward_s(GPU, MODEL, tensor=1, tokens=tokens, sequence=OF.tokens_around_a_token)
    head = 3 * layer.head_s(GPU, MODEL, tensor=1, tokens=tokens)
    assert stage_s(OF, TRAIN, at(), Layout(tensor=1), 1) == pytest.approx(6 * layers + head)
    forward = layer.forward_s(GPU, MODEL, tensor=1, tokens=tokens, sequence=OF.tokens_around_a_token)
    again = stage_s(OF, TRAIN, at(), Layout(tensor=1, recompute=True), 1)
    assert again == pytest.approx(6 * (layers + forward) + head)


def test_where_stages_do_not_divide_the_layers_the_last_has_fewer_and_the_head() -> None:
    of = replace(OF, models=dict.fromkeys(OF.models, replace(MODEL, num_layers=7, vocab_size=8)))
    even, odd = (stage_s(of, TRAIN, at(), Layout(tensor=1, pipeline=p), 1) for p in (1, 2))
    hop_s = 2 * 2 * of.tokens_per_sample * MODEL.hidden_size / (200e9 * 0.5)
    assert odd - hop_s == pytest.approx(even * 4 / 7, rel=1e-3)


def test_a_pipeline_fills_once_an_update() -> None:
    layout = Layout(tensor=1, pipeline=4)
    times = alone(layout, 4)
    assert times.bubble_s == pytest.approx(3 * stage_s(OF, TRAIN, at(), layout, 1))
    twice = alone(layout, 4, of=replace(OF, minibatches_per_step=2))
    assert twice.bubble_s == pytest.approx(2 * times.bubble_s)
    assert twice.compute_s == pytest.approx(times.compute_s)


def test_epochs_repeat_everything() -> None:
    once = alone(Layout(tensor=1, pipeline=2), 4)
    thrice = alone(Layout(tensor=1, pipeline=2), 4, of=replace(OF, epochs_per_step=3))
    assert thrice.total_s == pytest.approx(3 * once.total_s)


def test_gradients_go_around_the_machine_or_over_the_fabric() -> None:
    gradients = 2 * MODEL.num_params
    near, far = alone(Layout(tensor=1), 8), alone(Layout(tensor=1), 32)
    norms_head = MODEL.hidden_size * 2  # the last norm is in no stage's count
    assert near.reduce_s == pytest.approx(2 * 7 / 8 * (gradients - norms_head) / 100e9, rel=1e-3)
    assert far.reduce_s == pytest.approx(2 * 31 / 32 * (gradients - norms_head) / 10e9, rel=1e-3)
    wide = alone(Layout(tensor=1), 32, of=IN_FLOAT32)
    assert wide.reduce_s == pytest.approx(2 * far.reduce_s, rel=1e-3)
    assert training.crossing_bytes(IN_FLOAT32, TRAIN) == 2 * training.crossing_bytes(OF, TRAIN)


def test_a_sharded_optimizer_is_updated_in_parts_and_reduces_as_much() -> None:
    whole, parts = alone(Layout(tensor=1), 8), alone(Layout(tensor=1, sharding=Sharding.OPTIMIZER), 8)
    assert parts.update_s == pytest.approx(whole.update_s / 8)
    assert parts.reduce_s == whole.reduce_s


def test_full_sharding_gathers_each_micro_batch_instead_of_reducing() -> None:
    full = alone(Layout(tensor=1, sharding=Sharding.FULL), 32)
    gather_s = 3 * 31 / 32 * 2 * MODEL.num_params / 10e9
    assert full.reduce_s == 0
    assert full.compute_s == pytest.approx(SAMPLES / 32 * gather_s, rel=1e-3)
    wide = alone(Layout(tensor=1, sharding=Sharding.FULL), 32, of=IN_FLOAT32)  # 2 + 2 + 4 bytes in place of 6
    assert wide.compute_s == pytest.approx(full.compute_s * 8 / 6, rel=1e-3)


def test_copies_gather_in_their_machines_and_reduce_their_shards_over_the_fabric() -> None:
    copies = alone(Layout(tensor=1, sharding=Sharding.FULL, copies=4), 32)
    gather_s = 3 * 7 / 8 * 2 * MODEL.num_params / 100e9
    stage = stage_s(OF, TRAIN, at(), Layout(tensor=1), 1)
    assert copies.compute_s == pytest.approx(SAMPLES / 32 * max(stage, gather_s), rel=1e-3)
    assert copies.reduce_s == pytest.approx(2 * 3 / 4 * 2 * MODEL.num_params / 10e9, rel=1e-3)
    assert copies.update_s == pytest.approx(alone(Layout(tensor=1), 1).update_s / 8)
    # With one device a machine each device has a whole copy.
    lone = alone(Layout(tensor=1, sharding=Sharding.FULL, copies=4), 4, on=at(per_machine=1))
    assert lone == alone(Layout(tensor=1), 4, on=at(per_machine=1))


FULL, NONE = (Sharding.FULL, 1), (Sharding.NONE, 1)


@pytest.mark.parametrize(
    ("data", "machine_units", "fsdp", "expected"),
    [
        (1, 8, "full", [NONE]),
        (8, 8, "auto", [FULL, NONE]),
        (8, 8, "hybrid", [FULL]),
        (16, 8, "auto", [FULL, NONE, (Sharding.FULL, 2)]),
        (16, 8, "full", [FULL]),
        (16, 8, "hybrid", [(Sharding.FULL, 2)]),
        (16, 8, "none", [NONE]),
        (12, 8, "hybrid", [FULL]),
    ],
)
def test_processes_divide_what_they_train_as_the_runtime_can(
    data: int, machine_units: int, fsdp: str, expected: list[tuple[Sharding, int]]
) -> None:
    assert layer_cuts.shardings(1, data, machine_units, fsdp) == expected


def test_adapters_need_no_gradients_of_the_weights_and_hardly_any_traffic() -> None:
    adapters = replace(OF, lora_rank=8)
    whole, few = alone(Layout(tensor=1), 8), alone(Layout(tensor=1), 8, of=adapters)
    assert few.compute_s == pytest.approx(whole.compute_s * 2 / 3, rel=0.05)
    assert few.reduce_s < whole.reduce_s / 20


def test_two_pools_share_samples_in_proportion_to_their_speed() -> None:
    fast, slow = one(Layout(tensor=1), 4), one(Layout(tensor=1, micro_batch=4), 1)
    edge = PoolConnection(bytes_per_s=1e9, latency_s=0.0, is_shared=False)
    times = mesh_times(OF, [fast, slow], [edge]).at(0)
    speed = float(fast.samples_per_s[0] + slow.samples_per_s[0])
    assert times.compute_s == pytest.approx(SAMPLES / speed)
    assert times.reduce_s == pytest.approx(2 * 4 / 5 * float(fast.payload_bytes[0]) / 1e9)


def test_all_rings_share_a_link_between_regions() -> None:
    pair = [one(Layout(tensor=2), 2), one(Layout(tensor=1), 1)]
    apart, shared = (
        mesh_times(OF, pair, [PoolConnection(bytes_per_s=1e9, latency_s=0.0, is_shared=is_shared)]).at(0)
        for is_shared in (False, True)
    )
    assert shared.reduce_s == pytest.approx(2 * apart.reduce_s)


def test_a_pool_that_is_given_less_than_a_micro_batch_still_takes_a_slot() -> None:
    of = replace(OF, prompts_per_step=1, group_size=1)
    layout = Layout(tensor=1, micro_batch=8)
    assert alone(layout, 4, of=of).compute_s == pytest.approx(stage_s(of, TRAIN, at(), layout, 1))


NUMBERS = ("stage_s", "bubble_s", "payload_bytes", "update_s", "data", "flows", "ring_latency_s")
RATES = ("samples_per_s", "ring_bytes_per_s")


@settings(max_examples=examples(60))
@given(st.sampled_from([*NUMBERS, *RATES]), st.floats(1, 3), st.integers(0, 11), st.integers(0, 11), st.booleans())
def test_a_mesh_is_never_faster_for_a_block_that_is_worse(
    name: str, factor: float, i: int, j: int, is_shared: bool
) -> None:
    rows = layer_cuts.enumerated(tensor=1, most_units=8, most_layers=6, max_pipeline=8, max_data=8)
    rows = rows.take(rows.sharding != layer_cuts.FULL)
    every = pool_training_terms(OF, TRAIN, at(), rows)
    a, b = every.take(np.array([i * 7 % len(rows.data)])), every.take(np.array([j * 11 % len(rows.data)]))
    worse = replace(a, **{name: getattr(a, name) * (factor if name in NUMBERS else 1 / factor)})
    edge = PoolConnection(bytes_per_s=2e9, latency_s=1e-3, is_shared=is_shared)
    before, after = (mesh_times(OF, [each, b], [edge]).at(0).total_s for each in (a, worse))
    assert after >= before * (1 - 1e-12)


def test_gradients_that_cross_are_twice_the_models_halves() -> None:
    assert training.crossing_bytes(OF, TRAIN) == pytest.approx(2 * 2 * MODEL.num_params)
