"""Formulas of the benchmark of adapters, against their definitions."""

import numpy as np
import pytest
import torch

from bench.engine_cases.lora.crossing import blocks_unchanged, rounded
from bench.engine_cases.lora.our_faults import flipped, verdict
from bench.engine_cases.lora.served_update import fidelity
from bench.engine_cases.lora.vllm_server import same
from rollout_worker.weights.host_copy import HostCopy
from rollout_worker.weights.incoming import WeightMismatch


def test_float32_is_rounded_as_torch_rounds_it() -> None:
    values = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    values[:2] = (1.00390625, 1.01171875)  # halfway between two bfloat16 values: to the even one
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(rounded(values), expected)


def test_a_block_that_the_storage_has_counts_wherever_it_stood() -> None:
    before, after = b"aaaabbbbcccc", b"bbbbxxxxaaaacccd"
    assert blocks_unchanged(before, after, block_bytes=4) == 0.5
    assert blocks_unchanged(before, before, block_bytes=4) == 1.0


def test_one_bit_differs_after_a_flip() -> None:
    data = bytes(range(16))
    for bit in range(8 * len(data)):
        changed = flipped(data, bit)
        assert sum((a ^ b).bit_count() for a, b in zip(data, changed, strict=True)) == 1
        assert flipped(changed, bit) == data


def test_what_is_not_proven_is_found() -> None:
    mismatch = WeightMismatch(policy=None, digest=b"", why="")  # type: ignore[arg-type]
    assert verdict(mismatch, HostCopy(), {}) == "found"
    assert verdict(None, HostCopy(), {}) == "found"


@pytest.mark.parametrize(("factor", "kept", "error"), [(1.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.5, 0.5)])
def test_a_served_part_of_the_update_is_kept_in_part(factor: float, kept: float, error: float) -> None:
    update = np.random.default_rng(0).normal(size=(7, 5))
    assert fidelity(factor * update, update) == pytest.approx({"kept": kept, "error": error})


def test_noise_across_the_update_is_error_and_not_lost_update() -> None:
    update, noise = np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]])
    assert fidelity(update + noise, update) == pytest.approx({"kept": 1.0, "error": 2.0})


def test_log_probabilities_that_are_not_numbers_agree_with_nothing() -> None:
    assert same([-1.0, -2.0], [-1.0, -2.00001])
    assert not same([-1.0, -2.0], [-1.0, -2.1])
    assert not same([-1.0, -2.0], [-1.0, float("nan")])
