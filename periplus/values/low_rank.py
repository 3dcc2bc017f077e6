"""Low-rank adapters (LoRA) in a published state: their names, and the exact arithmetic that merges them into the base.

The state of a job with adapters holds the base weight `X.weight` of each adapted layer and its two adapters:
`X.lora_A.weight`, [rank, columns], and `X.lora_B.weight`, [rows, rank]. The layer computes with

    M = float32(W), then M = M + (scale * B[:, k]) A[k, :] for k = 0 .. rank - 1; merged = bfloat16(M)

element by element. Each product and each sum is rounded to float32, to nearest with ties to even, and so is the result
to bfloat16. So the merged weight is a function of the three tensors alone, bit for bit, on any machine. A matrix
product would not be, because libraries sum in different orders.

Source: Hu et al. 2021 (arXiv:2106.09685), with scale = alpha / rank. Deviation: the result is rounded to bfloat16.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from periplus.values.weight_state import Tensor, WeightState

WEIGHT = ".weight"
ADAPTER_A = ".lora_A.weight"
ADAPTER_B = ".lora_B.weight"

BLOCK_ELEMENTS = 1 << 18
"""Elements of a weight that are merged at a time: 1 MiB in float32, which stays in a cache. Chosen
by hand."""

Words = npt.NDArray[np.uint16]
"""bfloat16 values as 16-bit words, flat and row-major."""


def is_adapter(name: str) -> bool:
    """Return whether a tensor of a published state is an adapter."""
    return name.endswith((ADAPTER_A, ADAPTER_B))


def adapted_weight(name: str) -> str:
    """Return the name of the weight that an adapter belongs to."""
    return name.removesuffix(ADAPTER_A).removesuffix(ADAPTER_B) + WEIGHT


def adapters_of(weight: str) -> tuple[str, str]:
    """Return the names of the two adapters of a weight."""
    layer = weight.removesuffix(WEIGHT)
    return layer + ADAPTER_A, layer + ADAPTER_B


def adapted_weights(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the weights that have adapters among `names`, sorted."""
    return tuple(sorted({adapted_weight(name) for name in names if is_adapter(name)}))


def merged_state(state: WeightState, scale: float) -> dict[str, Tensor]:
    """Return a state without adapters, in which they are merged. Tensors that have none are shared with `state`.

    Raises: ValueError or KeyError as `merged` does.
    """
    adapted = set(adapted_weights(state))
    return {
        name: merged(state, name, scale) if name in adapted else tensor
        for name, tensor in state.items()
        if not is_adapter(name)
    }


def merged(state: WeightState, weight: str, scale: float) -> Tensor:
    """Return one weight with its adapters merged.

    Raises: KeyError if the weight or an adapter is missing; ValueError if dtypes or shapes do not fit.
    """
    base, (a, b) = state[weight], (state[name] for name in adapters_of(weight))
    if {base.dtype, a.dtype, b.dtype} != {"BF16"} or not {len(base.shape), len(a.shape), len(b.shape)} == {2}:
        raise ValueError(f"{weight} and its adapters are not three BF16 matrices")
    if (b.shape[0], a.shape[1]) != base.shape or a.shape[0] != b.shape[1]:
        raise ValueError(f"the adapters {a.shape} and {b.shape} do not fit {weight} of the shape {base.shape}")
    base_RC, a_KC, b_RK = (tensor.data.view(np.uint16).reshape(tensor.shape) for tensor in (base, a, b))
    words = merged_words(base_RC, a_KC, b_RK, scale)
    return Tensor("BF16", base.shape, words.reshape(-1))


def merged_words(base_RC: Words, a_KC: Words, b_RK: Words, scale: float) -> Words:
    """Return the merged weight as bfloat16 words. *Shapes*: R rows, C columns, K rank; returns R x C."""
    a_f32_KC, b_f32_RK = _widened(a_KC), _widened(b_RK) * np.float32(scale)
    found_RC = np.empty(base_RC.shape, np.uint16)
    num_rows = max(1, BLOCK_ELEMENTS // max(1, base_RC.shape[1]))
    for start in range(0, base_RC.shape[0], num_rows):
        rows = slice(start, start + num_rows)
        sum_BC = _widened(base_RC[rows])
        product_BC = np.empty_like(sum_BC)
        for a_C, b_B in zip(a_f32_KC, b_f32_RK[rows].T, strict=True):
            # Two operations with a result in memory each, so that no product is fused with its sum.
            np.multiply(b_B[:, None], a_C[None, :], out=product_BC)
            np.add(sum_BC, product_BC, out=sum_BC)
        found_RC[rows] = rounded_bits(sum_BC.view(np.uint32))
    return found_RC


def rounded_bits(bits: npt.NDArray[np.uint32]) -> Words:
    """Return float32 values, given as their bits, rounded to bfloat16 (to nearest, ties to even, as torch does)."""
    # Add just below half of the part that is cut off, and one more if the kept part is odd: ties go to even.
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    # Adding could turn a NaN into an infinity: every NaN becomes the canonical one.
    rounded[(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)] = 0x7FC0
    return rounded


def changed_words(before: Tensor, after: Tensor) -> tuple[npt.NDArray[np.int64], Words]:
    """Return the positions in which two bfloat16 tensors differ, ascending, and the words of the second one there."""
    old, new = before.data.view(np.uint16), after.data.view(np.uint16)
    positions = np.flatnonzero(old != new)
    return positions, new[positions]


def _widened(words: Words) -> npt.NDArray[np.float32]:
    return np.left_shift(words, 16, dtype=np.uint32).view(np.float32)
