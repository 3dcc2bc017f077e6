"""bf16 by its bits, as torch has it."""

import numpy as np
import torch

from bench.weight_deltas.states import bits, density, rounded, widened
from periplus.values.weight_state import Tensor


def test_rounding_is_torchs() -> None:
    values = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    values[:8] = [0.0, -0.0, 1.00390625, 1.01171875, -1.00390625, 1e-40, 3e38, 65504.0]  # ties, subnormal
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(rounded(values), expected)


def test_widening_keeps_the_values() -> None:
    state = {"w": Tensor("BF16", (4,), np.array([0x3F80, 0x8000, 0x0001, 0xFF80], np.uint16))}
    wide = widened(state)["w"]
    assert wide.dtype == "F32"
    assert wide.data.view(np.float32).tolist() == [1.0, -0.0, float(np.float32(2.0**-133)), float("-inf")]


def test_density_counts_bits_that_differ() -> None:
    base = {"w": Tensor("BF16", (4,), np.zeros(4, np.uint16)), "v": Tensor("BF16", (4,), np.zeros(4, np.uint16))}
    new = base | {"w": Tensor("BF16", (4,), np.array([0, 0x8000, 0, 0], np.uint16))}
    assert density(base, new) == 1 / 8
    assert bits(new["w"]).tolist() == [0, 0x8000, 0, 0]
