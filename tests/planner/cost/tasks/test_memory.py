"""Bytes on one device, computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer.placement import Layout, Sharding
from planner.cost.tasks import layer_cuts, memory
from planner.problem.workload import Task, WeightTransfer
from tests.support.planner.cost import GPU, MODEL, workload

OF = workload((*(Task.GENERATION, Task.REWARD), *(Task.REFERENCE, Task.ACTOR_TRAINING)))
PARAMS = MODEL.num_params - MODEL.hidden_size  # the last norm is not counted
TRAIN = Task.ACTOR_TRAINING


def test_a_model_that_serves_has_two_bytes_a_parameter_over_its_tensor_parallel_devices() -> None:
    assert memory.resident_bytes(OF, Task.GENERATION, Layout(tensor=1), 1) == 2 * PARAMS
    assert memory.resident_bytes(OF, Task.GENERATION, Layout(tensor=4), 1) == 2 * PARAMS / 4


def test_a_reward_model_has_no_output_head() -> None:
    assert memory.resident_bytes(OF, Task.REWARD, Layout(tensor=1), 1) == 2 * (PARAMS - MODEL.embedding_params)


@pytest.mark.parametrize(
    ("sharding", "bytes_per_param"), [(Sharding.NONE, 16), (Sharding.OPTIMIZER, 4 + 12 / 4), (Sharding.FULL, 16 / 4)]
)
def test_sharding_spreads_what_it_names_over_the_replicas(sharding: Sharding, bytes_per_param: float) -> None:
    found = memory.resident_bytes(OF, TRAIN, Layout(tensor=1, sharding=sharding), 4)
    assert found == pytest.approx(bytes_per_param * PARAMS)


def test_each_copy_is_spread_over_its_own_replicas() -> None:
    found = memory.resident_bytes(OF, TRAIN, Layout(tensor=1, sharding=Sharding.FULL, copies=2), 8)
    assert found == pytest.approx(16 / 4 * PARAMS)


def test_deltas_cost_the_trainer_a_copy_and_hosts_a_base() -> None:
    deltas = replace(OF, weights=WeightTransfer(bytes_per_param=0.1, is_delta=True))
    assert memory.resident_bytes(deltas, TRAIN, Layout(tensor=1), 1) == pytest.approx(18 * PARAMS)
    assert memory.host_bytes(OF) == 2 * MODEL.num_params
    assert memory.host_bytes(deltas) == pytest.approx(2.1 * MODEL.num_params)


def test_with_adapters_hosts_hold_the_weights_once_and_versions_of_the_adapters() -> None:
    adapters = replace(OF, lora_rank=8)
    trained = memory.trained_fraction(adapters, MODEL) * MODEL.num_params
    assert memory.host_bytes(adapters) == pytest.approx(2 * MODEL.num_params + 2 * trained)
    both = replace(adapters, weights=WeightTransfer(bytes_per_param=0.1, is_delta=True))
    assert memory.host_bytes(both) == pytest.approx(2 * MODEL.num_params + 2.1 * trained)


def test_adapters_alone_have_gradients_and_optimizer_state() -> None:
    adapters = replace(OF, lora_rank=8)
    fraction = memory.trained_fraction(adapters, MODEL)
    assert 0 < fraction < 0.05
    found = memory.resident_bytes(adapters, TRAIN, Layout(tensor=1), 1)
    assert found == pytest.approx((2 + 16 * fraction) * PARAMS)


def test_a_pipelines_stage_holds_its_layers_and_one_end() -> None:
    found = float(memory.stage_params(MODEL, TRAIN, tensor=1, pipeline=np.array([3]))[0])
    assert found == 2 * MODEL.params_per_layer + MODEL.embedding_params


def test_a_device_keeps_a_tenth_and_a_gibibyte_for_itself() -> None:
    assert memory.usable_bytes(GPU) == 0.9 * 80e9 - 2**30
    assert memory.usable_bytes(replace(GPU, is_cpu=True)) == 0.9 * 80e9


@given(st.sampled_from(layer_cuts.TENSOR), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 4)), st.booleans())
def test_training_needs_no_more_with_recomputation_and_no_less_with_larger_micro_batches(
    tensor: int, pipeline: int, micro_batch: int, again: bool
) -> None:
    layout = Layout(tensor=tensor, pipeline=pipeline, micro_batch=micro_batch, recompute=again)
    here = memory.transient_bytes(OF, TRAIN, layout)
    assert memory.transient_bytes(OF, TRAIN, replace(layout, micro_batch=2 * micro_batch)) >= here
    assert memory.resident_bytes(OF, TRAIN, replace(layout, sharding=Sharding.OPTIMIZER), 8) <= memory.resident_bytes(
        OF, TRAIN, layout, 8
    )
