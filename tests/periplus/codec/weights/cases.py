"""States for the tests of the weight codec, the same on every machine: no generator whose stream may change."""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import Tensor, WeightState
from tests.support.cases.strategies import states, tensors

_MULTIPLIER = 0x9E3779B97F4A7C15


def noise(count: int, seed: int) -> npt.NDArray[np.uint64]:
    """Return well-mixed words (splitmix64)."""
    words = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(_MULTIPLIER)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def weights(count: int, seed: int) -> npt.NDArray[np.float32]:
    """Return bell-shaped numbers of standard deviation 0.02: sums of twelve uniform ones."""
    words = noise(12 * count, seed).reshape(12, count) >> np.uint64(40)
    return np.asarray((words.sum(axis=0).astype(np.float64) / 2.0**24 - 6.0) * 0.02, np.float32)


def rounded(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.unsignedinteger]:
    """Return the values as the bits of a dtype; BF16 by truncation."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(np.float16).view(np.uint16) if dtype == "F16" else values.view(np.uint32)


def step(
    update: float, *, count: int = 4000, num_tensors: int = 3, dtype: str = "BF16"
) -> tuple[WeightState, WeightState]:
    """Return weights before and after an update of about that size: the larger it is, the more bits change."""
    base: dict[str, Tensor] = {}
    new: dict[str, Tensor] = {}
    for index in range(num_tensors):
        name = f"model.layers.{index}.mlp.weight"
        values = weights(count, 2 * index)
        moved = values + weights(count, 2 * index + 1) * np.float32(update * (index + 1) / 0.02)
        base[name] = Tensor(dtype, (count,), rounded(values, dtype))
        new[name] = Tensor(dtype, (count,), rounded(moved.astype(np.float32), dtype))
    norm = Tensor("F32", (7,), rounded(weights(7, 99), "F32"))
    return base | {"model.norm.weight": norm}, new | {"model.norm.weight": norm}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[WeightState, WeightState]:
    """Draw two states: tensors stay, change in a few bits or throughout, are retyped, reshaped, removed or added."""
    base = draw(states())
    new: dict[str, Tensor] = dict(draw(states()))
    for name, tensor in base.items():
        how = draw(st.sampled_from(["stays", "nudged", "redrawn", "flat", "removed", "other"]))
        if how == "stays":
            new[name] = tensor
        elif how in ("nudged", "redrawn"):
            data = tensor.data.copy()
            chosen = slice(None, None, 1 if how == "redrawn" else 3)
            data[chosen] = data[chosen] ^ np.uint8(draw(st.integers(0, 255)))
            new[name] = Tensor(tensor.dtype, tensor.shape, data)
        elif how == "flat":
            new[name] = Tensor(tensor.dtype, (tensor.num_elements,), tensor.data)
        elif how == "other":
            new[name] = draw(tensors())
    return base, new


def special(dtype: str) -> npt.NDArray[np.uint8]:
    """Return zeros of both signs, infinities, NaNs with payloads, and the smallest and largest numbers."""
    width = ELEMENT_BYTES[dtype]
    mantissa = {"BF16": 7, "F16": 10, "F32": 23}[dtype]
    sign, infinity = 1 << (8 * width - 1), ((1 << (8 * width - 1 - mantissa)) - 1) << mantissa
    half = [0, 1, (1 << mantissa) - 1, 1 << mantissa, infinity - 1, infinity, infinity + 1, sign - 1]
    return np.array([*half, *(sign | bits for bits in half)], f"<u{width}").view(np.uint8)
