"""Small operations on states of bf16 tensors, by their bits."""

import numpy as np
import numpy.typing as npt

from periplus.values.weight_state import Tensor, WeightState

Bits = npt.NDArray[np.uint16]


def bits(tensor: Tensor) -> Bits:
    """Of a tensor of two-byte elements."""
    view: Bits = tensor.data.view(np.uint16)
    return view


def widened(state: WeightState) -> dict[str, Tensor]:
    """The same values in float32."""
    return {name: Tensor("F32", tensor.shape, (bits(tensor).astype(np.uint32) << 16)) for name, tensor in state.items()}


def rounded(values: npt.NDArray[np.float32]) -> Bits:
    """Finite float32 values to bf16, to nearest, ties to even."""
    raw = values.view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


def density(base: WeightState, new: WeightState) -> float:
    """Share of elements whose bits differ."""
    changed = sum(int(np.count_nonzero(bits(base[name]) != bits(tensor))) for name, tensor in new.items())
    return changed / sum(tensor.num_elements for tensor in new.values())
