"""Seconds of layers: closed forms, equal results for arrays and floats, and monotonicity."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.devices import layer
from planner.devices.layer import Kernels
from planner.problem.architecture import Architecture
from planner.problem.hardware import Efficiency, GpuType

PLAIN = Efficiency(
    matmul_fraction=0.5,
    saturation_tokens=0.0,
    memory_fraction=0.5,
    link_fraction=0.5,
    layer_overhead_s=1e-5,
    collective_latency_s=1e-5,
    attention_fraction=0.25,
    attention_saturation_tokens=0.0,
    attention_overhead_s=2e-5,
)
GPU = GpuType(
    name="made-up",
    memory_bytes=80 << 30,
    memory_bytes_per_s=2e12,
    matmul_flop_per_s=4e14,
    link_bytes_per_s=3e11,
    efficiency=PLAIN,
)
ARCH = Architecture(
    name="made-up",
    hidden_size=1000,
    num_layers=10,
    num_heads=10,
    num_kv_heads=2,
    head_dim=100,
    intermediate_size=4000,
    vocab_size=50000,
    tied_embeddings=False,
)
NOTHING_BETWEEN = Kernels(hidden_passes=0.0, width_passes=0.0)
MATRICES = 1000 * 100 * 24 + 3 * 1000 * 4000


def test_few_rows_cost_the_time_of_reading_the_matrices() -> None:
    activations = 4 * 1000 + 100 * 24 + 3 * 4000
    expected = 2 * (MATRICES + activations) / 1e12 + 1e-5
    assert layer.dense_s(GPU, ARCH, tensor=1, tokens=1.0, kernels=NOTHING_BETWEEN) == pytest.approx(expected)


def test_many_rows_cost_their_arithmetic() -> None:
    expected = 2 * MATRICES * 8192 / 2e14 + 1e-5
    assert layer.dense_s(GPU, ARCH, tensor=1, tokens=8192.0, kernels=NOTHING_BETWEEN) == pytest.approx(expected)


def test_as_many_rows_as_saturation_halve_the_rate() -> None:
    full = layer.matmul_s(GPU, flop=1e12, moved_bytes=0.0, rows=64.0)
    fit = replace(PLAIN, saturation_tokens=64.0)
    assert layer.matmul_s(replace(GPU, efficiency=fit), flop=1e12, moved_bytes=0.0, rows=64.0) == pytest.approx(
        2 * full
    )


def test_passes_between_products_go_at_the_rate_of_memory() -> None:
    plain = layer.dense_s(GPU, ARCH, tensor=2, tokens=100.0, kernels=NOTHING_BETWEEN)
    passes = Kernels(hidden_passes=3.0, width_passes=4.0)
    more = layer.dense_s(GPU, ARCH, tensor=2, tokens=100.0, kernels=passes)
    assert more - plain == pytest.approx(2 * 100 * (3 * 1000 + 4 * 4000 / 2) / 1e12)


def test_fused_attention_does_half_the_square_and_writes_its_caches() -> None:
    expected = 2 * 1000 * 4096 * 2048 / 1e14 + 2 * 2 * 2 * 200 * 4096 / 1e12 + 2e-5
    found = layer.prefill_attention_s(GPU, ARCH, tensor=1, tokens=4096.0, sequence=2048.0)
    assert found == pytest.approx(expected)


def test_a_decoding_step_reads_each_cached_token_once() -> None:
    expected = 2 * 2 * 200 * 32 * 700 / 1e12 + 2e-5
    assert layer.decode_attention_s(GPU, ARCH, tensor=1, sequences=32.0, context=700.0) == pytest.approx(expected)


def test_caches_are_not_split_below_one_head() -> None:
    two = layer.decode_attention_s(GPU, ARCH, tensor=2, sequences=32.0, context=700.0)
    eight = layer.decode_attention_s(GPU, ARCH, tensor=8, sequences=32.0, context=700.0)
    assert two == eight


def test_backward_is_twice_the_matrices_and_thrice_the_attention() -> None:
    dense = layer.dense_s(GPU, ARCH, tensor=1, tokens=4096.0)
    attention = layer.prefill_attention_s(GPU, ARCH, tensor=1, tokens=4096.0, sequence=2048.0)
    found = layer.backward_s(GPU, ARCH, tensor=1, tokens=4096.0, sequence=2048.0)
    assert found == pytest.approx(2 * dense + 3 * attention)


def test_float32_takes_its_own_peak_and_twice_the_bytes() -> None:
    float32 = Kernels(element_bytes=4, flop_per_s=2e13, matmul_fraction=1.0, hidden_passes=0.0, width_passes=0.0)
    assert layer.dense_s(GPU, ARCH, tensor=1, tokens=8192.0, kernels=float32) == pytest.approx(
        2 * MATRICES * 8192 / 2e13 + 1e-5
    )
    activations = 4 * 1000 + 100 * 24 + 3 * 4000
    assert layer.dense_s(GPU, ARCH, tensor=1, tokens=1.0, kernels=float32) == pytest.approx(
        4 * (MATRICES + activations) / 1e12 + 1e-5
    )


def test_eager_attention_does_the_whole_square_and_passes_over_it() -> None:
    eager = Kernels(element_bytes=4, score_passes=6.0, score_passes_backward=20.0, matmul_fraction=0.5)
    scores = 2048 * 2048 * 10
    found = layer.prefill_attention_s(GPU, ARCH, tensor=1, tokens=2048.0, sequence=2048.0, kernels=eager)
    assert found == pytest.approx(2 * 2 * 100 * scores / 2e14 + 4 * 6 * scores / 1e12)
    both = layer.backward_s(GPU, ARCH, tensor=1, tokens=2048.0, sequence=2048.0, kernels=eager)
    dense = layer.dense_s(GPU, ARCH, tensor=1, tokens=2048.0, kernels=eager)
    assert both == pytest.approx(2 * dense + 4 * 2 * 100 * scores / 2e14 + 4 * 20 * scores / 1e12)


def test_a_layer_takes_no_less_than_its_host_needs_to_launch_it() -> None:
    slow_host = Kernels(host_s=1.0)
    assert layer.forward_s(GPU, ARCH, tensor=1, tokens=10.0, sequence=10.0, kernels=slow_host) == 1.0


def test_the_head_costs_its_product_and_passes_over_logits() -> None:
    plain = layer.head_s(GPU, ARCH, tensor=2, tokens=4096.0)
    assert plain == pytest.approx(2 * 50000 * 1000 / 2 * 4096 / 2e14)
    passes = layer.head_s(GPU, ARCH, tensor=2, tokens=4096.0, kernels=Kernels(logit_passes=5.0))
    assert passes - plain == pytest.approx(2 * 5 * 4096 * 25000 / 1e12)


def test_adam_moves_28_bytes_a_parameter_with_16_of_state() -> None:
    assert layer.update_s(GPU, params=1e9, bytes_per_param=16.0) == pytest.approx(28e9 / 1e12)


def test_arrays_are_many_floats() -> None:
    tokens = np.array([1.0, 7.0, 64.0, 513.0, 20000.0])
    lengths = np.array([3.0, 7.0, 90.0, 200.0, 4000.0])
    pairs = list(zip(tokens.tolist(), lengths.tolist(), strict=True))
    np.testing.assert_allclose(
        layer.forward_s(GPU, ARCH, tensor=2, tokens=tokens, sequence=lengths),
        [layer.forward_s(GPU, ARCH, tensor=2, tokens=t, sequence=s) for t, s in pairs],
    )
    np.testing.assert_allclose(
        layer.decode_s(GPU, ARCH, tensor=2, sequences=tokens, context=lengths),
        [layer.decode_s(GPU, ARCH, tensor=2, sequences=t, context=s) for t, s in pairs],
    )
    np.testing.assert_allclose(
        layer.head_s(GPU, ARCH, tensor=2, tokens=tokens),
        [layer.head_s(GPU, ARCH, tensor=2, tokens=t) for t in tokens.tolist()],
    )


SIZES = st.floats(min_value=1.0, max_value=1e5)
LENGTHS = st.floats(min_value=0.0, max_value=1e5)


@given(sequences=SIZES, more=SIZES, context=LENGTHS, longer=LENGTHS)
def test_more_sequences_and_longer_ones_take_no_less(
    sequences: float, more: float, context: float, longer: float
) -> None:
    before = layer.decode_s(GPU, ARCH, tensor=1, sequences=sequences, context=context)
    after = layer.decode_s(GPU, ARCH, tensor=1, sequences=sequences + more, context=context + longer)
    assert after >= before


@given(sequences=SIZES, context=LENGTHS, longer=LENGTHS)
def test_a_step_is_affine_in_the_context(sequences: float, context: float, longer: float) -> None:
    def at(length: float) -> float:
        return layer.decode_s(GPU, ARCH, tensor=1, sequences=sequences, context=length)

    assert at(context) + at(context + 2 * longer) == pytest.approx(2 * at(context + longer))


@given(tokens=SIZES, sequence=LENGTHS, power=st.integers(min_value=0, max_value=2))
def test_more_devices_take_no_longer_collectives_apart(tokens: float, sequence: float, power: int) -> None:
    few = layer.forward_s(GPU, ARCH, tensor=2**power, tokens=tokens, sequence=sequence)
    many = layer.forward_s(GPU, ARCH, tensor=2 ** (power + 1), tokens=tokens, sequence=sequence)
    assert many <= few
