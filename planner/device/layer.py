"""Seconds of one transformer layer, head and optimizer on `tensor` devices of one machine, collectives apart.

A roofline (Williams et al., CACM 2009): matrix products take the larger of arithmetic at the rate that so many rows
reach and of their bytes at the memory's rate; attention and the elementwise kernels between them add to that, and a
fixed time of each layer. What a program does besides matrix products is a `Kernels`: fused half-precision kernels
unless a caller says otherwise. Tokens, sequences and contexts may be floats or arrays, all of one kind a call.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from planner.question.architecture import Architecture
from planner.question.hardware import GpuType

Q = TypeVar("Q", float, npt.NDArray[np.float64])
BYTES = 2
"""Of one half-precision element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """How a program runs a layer. A *pass* reads or writes each element of a tensor once, at the memory's rate."""

    element_bytes: int = BYTES
    flop_per_s: float | None = None
    """Peak rate of matrix products in this precision; None: the type's own."""
    matmul_fraction: float | None = None
    """Of that peak; None: the type's own."""
    hidden_passes: float = 16.0
    """Over the hidden states, in one layer's forward pass: normalisations, rotary embedding, residual additions.
    Source: those kernels in Vidur's profiles (A100, H100, A40), 13 to 20 at the rate that weights stream at."""
    width_passes: float = 4.0
    """Over what is as wide as the MLP's inside: activation function and product. Source: the same, 3 to 4.4."""
    score_passes: float = 0.0
    """Over the attention scores; 0: fused, the scores are never in memory, and what causality masks is skipped."""
    score_passes_backward: float = 0.0
    logit_passes: float = 0.0
    """Over the logits, in the head's forward pass and loss."""
    logit_passes_backward: float = 0.0
    cache_reads: float = 1.0
    """How often a decoding step reads each cached key and value."""
    matmul_fraction_backward: float | None = None
    """Of the peak, in products for gradients, whose operands are transposed; None: as forward."""
    host_s: float = 0.0
    """What the host takes to launch one layer's kernels: a layer takes no less. 0: graphs, or it never binds."""


FUSED = Kernels()
BACKWARD_ATTENTION = 3.0
"""Of fused attention's forward time. Source: Dao, arXiv 2307.08691, section 4.1: 2.5 times the arithmetic, at 1.2 times
lower rates on an A100."""
CACHE_PASSES = 2.0
"""Over a prompt's keys and values: they are written to the caches and read again."""
UPDATE_PASSES = 1.75
"""Bytes that Adam moves for each byte of its state: of 16 bytes a parameter (bf16 weight and gradient, float32 weight
and two moments) all but the weight's 2 are read and all but the gradient's 2 are written: 28. In float32 alone 4 x 4
bytes, of which the gradient is read only: again 28."""


def _larger(a: Q, b: Q) -> Q:
    return np.maximum(a, b) if isinstance(a, np.ndarray) else max(a, b)


def matmul_s(gpu: GpuType, *, flop: Q, moved_bytes: Q, rows: Q, kernels: Kernels = FUSED) -> Q:
    """Of matrix products with `rows` rows that read and write `moved_bytes`."""
    fit = gpu.efficiency
    fraction = fit.matmul_fraction if kernels.matmul_fraction is None else kernels.matmul_fraction
    rate = (kernels.flop_per_s or gpu.matmul_flop_per_s) * fraction
    return _larger(
        flop * (1 + fit.saturation_tokens / rows) / rate,
        moved_bytes / (gpu.memory_bytes_per_s * fit.memory_fraction),
    )


def dense_s(gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, kernels: Kernels = FUSED) -> Q:
    """One layer's forward pass over `tokens` tokens without attention: matrices, elementwise kernels, fixed time."""
    params = arch.matmul_params_per_layer / tensor
    heads = arch.head_dim * (2 * arch.num_heads + 2 * arch.num_kv_heads)
    wide = arch.num_mlp_matrices * arch.intermediate_size
    activations = tokens * (4 * arch.hidden_size + (heads + wide) / tensor)
    linear = matmul_s(
        gpu, flop=2 * params * tokens, moved_bytes=kernels.element_bytes * (params + activations), rows=tokens,
        kernels=kernels,
    )  # fmt: skip
    return linear + _elementwise_s(gpu, arch, tensor, tokens, kernels) + gpu.efficiency.layer_overhead_s


def prefill_attention_s(
    gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, sequence: Q, kernels: Kernels = FUSED
) -> Q:
    """Attention of `tokens` new tokens of sequences `sequence` long, among themselves."""
    fit = gpu.efficiency
    width = arch.num_heads * arch.head_dim / tensor
    if kernels.score_passes:
        return _eager_attention_s(gpu, arch, tensor, tokens, sequence, kernels, backward=False)
    rate = gpu.matmul_flop_per_s * fit.attention_fraction
    flop = 2 * width * tokens * (sequence + fit.attention_saturation_tokens)  # causal: half of 4 w t s
    caches = arch.num_kv_heads * arch.head_dim / min(tensor, arch.num_kv_heads)
    moved = BYTES * CACHE_PASSES * 2 * caches * tokens
    return flop / rate + moved / (gpu.memory_bytes_per_s * fit.memory_fraction) + fit.attention_overhead_s


def decode_attention_s(
    gpu: GpuType, arch: Architecture, *, tensor: int, sequences: Q, context: Q, kernels: Kernels = FUSED
) -> Q:
    """Attention of one new token of each of `sequences` to `context` cached ones."""
    fit = gpu.efficiency
    width = 2 * arch.num_kv_heads * arch.head_dim / min(tensor, arch.num_kv_heads)
    rate = gpu.memory_bytes_per_s * fit.memory_fraction / kernels.cache_reads
    return BYTES * width * sequences * context / rate + fit.attention_overhead_s


def forward_s(gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, sequence: Q, kernels: Kernels = FUSED) -> Q:
    """One layer over `tokens` new tokens of sequences `sequence` long (prefill, scoring, training's forward)."""
    attention = prefill_attention_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=sequence, kernels=kernels)
    whole = dense_s(gpu, arch, tensor=tensor, tokens=tokens, kernels=kernels) + attention
    return _larger(whole, 0 * tokens + kernels.host_s) if kernels.host_s else whole


def backward_s(gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, sequence: Q, kernels: Kernels = FUSED) -> Q:
    """Gradients of inputs and weights of one layer: twice the forward's, and attention's own."""
    if kernels.matmul_fraction_backward is not None:
        kernels = replace(kernels, matmul_fraction=kernels.matmul_fraction_backward)
    dense = 2 * dense_s(gpu, arch, tensor=tensor, tokens=tokens, kernels=kernels)
    if kernels.score_passes:
        whole = dense + _eager_attention_s(gpu, arch, tensor, tokens, sequence, kernels, backward=True)
        return _larger(whole, 0 * tokens + kernels.host_s)
    forward = prefill_attention_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=sequence, kernels=kernels)
    return dense + BACKWARD_ATTENTION * forward


def decode_s(gpu: GpuType, arch: Architecture, *, tensor: int, sequences: Q, context: Q, kernels: Kernels = FUSED) -> Q:
    """One layer of one decoding step: one new token for each of `sequences`, which have `context` tokens on average.

    Weights are read once a step. Linear in `context`.
    """
    attention = decode_attention_s(gpu, arch, tensor=tensor, sequences=sequences, context=context, kernels=kernels)
    return dense_s(gpu, arch, tensor=tensor, tokens=sequences, kernels=kernels) + attention


def head_s(gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, kernels: Kernels = FUSED) -> Q:
    """The output head over `tokens` rows, forward."""
    params = arch.embedding_params / tensor
    logits = tokens * (arch.vocab_size / tensor)
    linear = matmul_s(
        gpu, flop=2 * params * tokens, moved_bytes=kernels.element_bytes * (params + logits), rows=tokens,
        kernels=kernels,
    )  # fmt: skip
    rate = gpu.memory_bytes_per_s * gpu.efficiency.memory_fraction
    whole = linear + kernels.element_bytes * kernels.logit_passes * logits / rate
    return _larger(whole, 0 * tokens + kernels.host_s) if kernels.host_s else whole


def update_s(gpu: GpuType, *, params: float, bytes_per_param: float) -> float:
    """The optimizer's pass over `params` resident parameters with so many bytes of state each (fused Adam)."""
    return UPDATE_PASSES * params * bytes_per_param / (gpu.memory_bytes_per_s * gpu.efficiency.memory_fraction)


def _elementwise_s(gpu: GpuType, arch: Architecture, tensor: int, tokens: Q, kernels: Kernels) -> Q:
    width = kernels.hidden_passes * arch.hidden_size + kernels.width_passes * arch.intermediate_size / tensor
    return tokens * (kernels.element_bytes * width / (gpu.memory_bytes_per_s * gpu.efficiency.memory_fraction))


def _eager_attention_s(
    gpu: GpuType, arch: Architecture, tensor: int, tokens: Q, sequence: Q, kernels: Kernels, *, backward: bool
) -> Q:
    """Two products with the whole square of scores forward, four backward, and passes over the square."""
    times, passes = (4, kernels.score_passes_backward) if backward else (2, kernels.score_passes)
    scores = tokens * sequence * (arch.num_heads / tensor)
    flop = times * 2 * arch.head_dim * scores
    fraction = gpu.efficiency.matmul_fraction if kernels.matmul_fraction is None else kernels.matmul_fraction
    arithmetic = flop / ((kernels.flop_per_s or gpu.matmul_flop_per_s) * fraction)
    rate = gpu.memory_bytes_per_s * gpu.efficiency.memory_fraction
    return arithmetic + kernels.element_bytes * passes * scores / rate
