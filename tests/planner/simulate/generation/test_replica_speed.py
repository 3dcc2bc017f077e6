"""A replica's speeds are composed of the functions of `planner.devices`."""

import pytest

from planner.devices import collective, layer
from planner.devices.catalogue import architecture, gpu_types
from planner.problem.lengths import lognormal
from planner.problem.workload import Task, Workload
from planner.simulate.generation.replica_speed import Speed, cache_tokens
from planner.simulate.settings import SETTINGS

ARCH = architecture("Qwen3-4B")
GPU = gpu_types()["A100-80GB-SXM"]
WORKLOAD = Workload(
    algorithm="grpo",
    models={Task.GENERATION: ARCH, Task.ACTOR_TRAINING: ARCH},
    eta=1,
    prompts_per_step=4,
    group_size=4,
    prompt_tokens=lognormal(median_tokens=100, sigma=0.6, cap_tokens=1024),
    completion_tokens=lognormal(median_tokens=300, sigma=1.0, cap_tokens=2048),
)


@pytest.mark.parametrize("sequences", [1, 7, 64, 256])
@pytest.mark.parametrize("context", [100.0, 700.0, 2000.0])
def test_a_decoding_step_is_linear_in_the_context(sequences: int, context: float) -> None:
    fixed, slope = Speed(WORKLOAD, GPU, 2).decode(sequences)
    one = layer.decode_s(GPU, ARCH, tensor=2, sequences=float(sequences), context=context)
    one += 2 * collective.machine_all_reduce_s(GPU, payload_bytes=2 * sequences * ARCH.hidden_size, num=2)
    whole = ARCH.num_layers * one + layer.head_s(GPU, ARCH, tensor=2, tokens=float(sequences))
    assert fixed + slope * context == pytest.approx(whole, rel=1e-6)


def test_prompts_that_ride_along_cost_less_than_alone_and_more_the_longer_they_are() -> None:
    speed = Speed(WORKLOAD, GPU, 1)
    alone, along = speed.prefill_s(0, 512), speed.prefill_s(64, 512)
    assert 0 < along < alone
    costs = [speed.prefill_s(64, tokens) for tokens in range(64, 3 * SETTINGS.chunk_tokens, 64)]
    assert costs == sorted(costs)


def test_caches_have_what_the_resident_weights_leave() -> None:
    weights = 2.0 * ARCH.num_params
    tokens = cache_tokens(WORKLOAD, GPU, 1, weights)
    left = 0.9 * GPU.memory_bytes - 2**30 - weights
    assert tokens == int(left / (2 * 2 * ARCH.num_layers * ARCH.num_kv_heads * ARCH.head_dim))
    assert cache_tokens(WORKLOAD, GPU, 1, GPU.memory_bytes) == 0
