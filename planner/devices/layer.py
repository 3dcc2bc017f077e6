"""Seconds of one transformer layer, of the output head and of the optimizer, on `tensor` devices of one machine.

The model is a roofline (Williams et al., CACM 2009). Matrix products take the larger of their arithmetic, at the rate
that so many rows reach, and their bytes at the memory's rate. Attention, the elementwise kernels between products and a
fixed time of each layer are added. Collectives are not included (`collective`).

`Kernels` describes what a program does in addition to matrix products; by default its kernels are fused and in half
precision. Tokens, sequences and contexts may be floats or arrays, all of the same kind in one call.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from planner.problem.architecture import Architecture
from planner.problem.hardware import GpuType

Q = TypeVar("Q", float, npt.NDArray[np.float64])
"""A number or an array; all quantities of one call are of the same kind."""
BYTES = 2
"""Bytes of one half-precision element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Kernels with which a program runs a layer.

    A *pass* reads or writes each element of a tensor once, at the memory's rate.
    """

    element_bytes: int = BYTES
    """Bytes of one element of weights and activations."""
    flop_per_s: float | None = None
    """Peak rate of matrix products in this precision. None stands for the rate of the device type."""
    matmul_fraction: float | None = None
    """Fraction of that peak. None stands for the fraction of the device type."""
    hidden_passes: float = 16.0
    """Passes over the hidden states in one layer's forward pass: normalisations, rotary embedding, residual additions.
    Source: those kernels take 13 to 20 passes in Vidur's profiles (A100, H100, A40), at the rate at which weights
    stream."""
    width_passes: float = 4.0
    """Passes over tensors as wide as the inside of the MLP: activation function and product. Source: 3 to 4.4 in
    Vidur's profiles."""
    score_passes: float = 0.0
    """Passes over the attention scores. 0 stands for fused attention: the scores are never in memory, and masked parts
    are skipped."""
    score_passes_backward: float = 0.0
    """Passes over the attention scores in the backward pass."""
    logit_passes: float = 0.0
    """Passes over the logits in the head's forward pass and the loss."""
    cache_reads: float = 1.0
    """Number of times that a decoding step reads each cached key and value."""
    matmul_fraction_backward: float | None = None
    """Fraction of the peak in products for gradients, whose operands are transposed. None stands for that of the
    forward pass."""
    host_s: float = 0.0
    """Seconds that the host needs to launch the kernels of one layer. A layer takes at least that long. 0 if the
    program replays graphs or the host is never the limit."""


FUSED = Kernels()
"""Fused kernels in half precision. The cost model and the simulator use them."""
BACKWARD_ATTENTION = 3.0
"""Time of fused attention's backward pass relative to its forward pass. Source: Dao, arXiv 2307.08691, section 4.1: 2.5
times the arithmetic, at rates 1.2 times lower on an A100."""
CACHE_PASSES = 2.0
"""Passes over the keys and values of a prompt: they are written to the caches and read again."""
UPDATE_PASSES = 1.75
"""Bytes that Adam moves per byte of its state. A parameter has 16 bytes of state: bf16 weight and gradient, float32
weight and two moments. All but the 2 of the weight are read and all but the 2 of the gradient are written: 28 bytes.
With float32 alone there are 4 x 4 bytes, of which the gradient is only read: again 28."""


def _larger(a: Q, b: Q) -> Q:
    return np.maximum(a, b) if isinstance(a, np.ndarray) else max(a, b)


def matmul_s(gpu: GpuType, *, flop: Q, moved_bytes: Q, rows: Q, kernels: Kernels = FUSED) -> Q:
    """Return the seconds of matrix products with `rows` rows that read and write `moved_bytes`.

    The result is the larger of arithmetic and memory time (the roofline).
    """
    fit = gpu.efficiency
    fraction = fit.matmul_fraction if kernels.matmul_fraction is None else kernels.matmul_fraction
    rate = (kernels.flop_per_s or gpu.matmul_flop_per_s) * fraction
    # With few rows the arithmetic units are not filled: n rows reach n / (n + saturation) of the rate.
    return _larger(
        flop * (1 + fit.saturation_tokens / rows) / rate,
        moved_bytes / (gpu.memory_bytes_per_s * fit.memory_fraction),
    )


def dense_s(gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, kernels: Kernels = FUSED) -> Q:
    """Return the seconds of one layer's forward pass over `tokens` tokens, without attention.

    It includes matrix products, elementwise kernels and the fixed time of a layer.
    """
    # Each device has 1 / tensor of all matrices. Inputs and results as wide as the hidden state are whole on each
    # device.
    params = arch.matmul_params_per_layer / tensor
    read = _read_params(arch, tokens) / tensor
    heads = arch.head_dim * (2 * arch.num_heads + 2 * arch.num_kv_heads)
    wide = arch.num_mlp_matrices * arch.mlp_width
    activations = tokens * (4 * arch.hidden_size + (heads + wide) / tensor)
    linear = matmul_s(
        gpu,
        flop=2 * params * tokens,
        moved_bytes=kernels.element_bytes * (read + activations),
        rows=tokens,
        kernels=kernels,
    )
    return linear + _elementwise_s(gpu, arch, tensor, tokens, kernels) + gpu.efficiency.layer_overhead_s


def _read_params(arch: Architecture, tokens: Q) -> Q:
    """Return the entries of one layer's matrices that are read for `tokens` tokens.

    An expert is read if any token is sent to it. Tokens are taken to be sent to experts at random.
    """
    if arch.num_experts == 1:
        return 0 * tokens + arch.matmul_params_per_layer
    missed: Q = np.power(1 - arch.experts_per_token / arch.num_experts, tokens)
    return arch.shared_matmul_params_per_layer + arch.num_experts * (1 - missed) * arch.mlp_params


def prefill_attention_s(
    gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, sequence: Q, kernels: Kernels = FUSED
) -> Q:
    """Return the seconds of attention among `tokens` new tokens in sequences of length `sequence`."""
    fit = gpu.efficiency
    width = arch.num_heads * arch.head_dim / tensor
    if kernels.score_passes:
        return _eager_attention_s(gpu, arch, tensor, tokens, sequence, kernels, backward=False)
    rate = gpu.matmul_flop_per_s * fit.attention_fraction
    flop = 2 * width * tokens * (sequence + fit.attention_saturation_tokens)  # causal attention: half of 4 w t s
    # Key and value heads cannot be split over more devices than there are heads; beyond that they are copied.
    caches = arch.num_kv_heads * arch.head_dim / min(tensor, arch.num_kv_heads)
    moved = BYTES * CACHE_PASSES * 2 * caches * tokens
    return flop / rate + moved / (gpu.memory_bytes_per_s * fit.memory_fraction) + fit.attention_overhead_s


def decode_attention_s(
    gpu: GpuType, arch: Architecture, *, tensor: int, sequences: Q, context: Q, kernels: Kernels = FUSED
) -> Q:
    """Return the seconds of attention of one new token in each of `sequences` to `context` cached tokens.

    The kernel is limited by reading the caches from memory.
    """
    fit = gpu.efficiency
    width = 2 * arch.num_kv_heads * arch.head_dim / min(tensor, arch.num_kv_heads)
    rate = gpu.memory_bytes_per_s * fit.memory_fraction / kernels.cache_reads
    return BYTES * width * sequences * context / rate + fit.attention_overhead_s


def forward_s(gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, sequence: Q, kernels: Kernels = FUSED) -> Q:
    """Return the seconds of one layer over `tokens` new tokens in sequences of length `sequence`.

    Prefill, scoring and the forward pass of training all use it.
    """
    attention = prefill_attention_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=sequence, kernels=kernels)
    whole = dense_s(gpu, arch, tensor=tensor, tokens=tokens, kernels=kernels) + attention
    return _larger(whole, 0 * tokens + kernels.host_s) if kernels.host_s else whole


def backward_s(gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, sequence: Q, kernels: Kernels = FUSED) -> Q:
    """Return the seconds of the gradients of one layer's inputs and weights.

    Dense parts take twice the forward pass; attention has a factor of its own.
    """
    if kernels.matmul_fraction_backward is not None:
        kernels = replace(kernels, matmul_fraction=kernels.matmul_fraction_backward)
    dense = 2 * dense_s(gpu, arch, tensor=tensor, tokens=tokens, kernels=kernels)
    if kernels.score_passes:
        whole = dense + _eager_attention_s(gpu, arch, tensor, tokens, sequence, kernels, backward=True)
        return _larger(whole, 0 * tokens + kernels.host_s)
    forward = prefill_attention_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=sequence, kernels=kernels)
    return dense + BACKWARD_ATTENTION * forward


def decode_s(gpu: GpuType, arch: Architecture, *, tensor: int, sequences: Q, context: Q, kernels: Kernels = FUSED) -> Q:
    """Return the seconds of one layer in one decoding step.

    Each of `sequences` gets one new token and has `context` tokens on average. Weights are read once per step. The
    result is linear in `context`.
    """
    attention = decode_attention_s(gpu, arch, tensor=tensor, sequences=sequences, context=context, kernels=kernels)
    return dense_s(gpu, arch, tensor=tensor, tokens=sequences, kernels=kernels) + attention


def head_s(gpu: GpuType, arch: Architecture, *, tensor: int, tokens: Q, kernels: Kernels = FUSED) -> Q:
    """Return the seconds of the output head's forward pass over `tokens` rows."""
    params = arch.embedding_params / tensor
    logits = tokens * (arch.vocab_size / tensor)
    linear = matmul_s(
        gpu,
        flop=2 * params * tokens,
        moved_bytes=kernels.element_bytes * (params + logits),
        rows=tokens,
        kernels=kernels,
    )
    # The loss reads and writes the logits several times. The host may be slower than all of it.
    rate = gpu.memory_bytes_per_s * gpu.efficiency.memory_fraction
    whole = linear + kernels.element_bytes * kernels.logit_passes * logits / rate
    return _larger(whole, 0 * tokens + kernels.host_s) if kernels.host_s else whole


def update_s(gpu: GpuType, *, params: float, bytes_per_param: float) -> float:
    """Return the seconds of one pass of a fused Adam over `params` resident parameters.

    Each parameter has `bytes_per_param` bytes of state.
    """
    return UPDATE_PASSES * params * bytes_per_param / (gpu.memory_bytes_per_s * gpu.efficiency.memory_fraction)


def _elementwise_s(gpu: GpuType, arch: Architecture, tensor: int, tokens: Q, kernels: Kernels) -> Q:
    """Return the seconds of a layer's elementwise kernels, which stream tensors through memory."""
    width = kernels.hidden_passes * arch.hidden_size + kernels.width_passes * arch.mlp_width / tensor
    return tokens * (kernels.element_bytes * width / (gpu.memory_bytes_per_s * gpu.efficiency.memory_fraction))


def _eager_attention_s(
    gpu: GpuType, arch: Architecture, tensor: int, tokens: Q, sequence: Q, kernels: Kernels, *, backward: bool
) -> Q:
    """Return the seconds of attention that keeps its scores in memory.

    It makes two products with the whole square of scores forward, four backward, and a number of passes over the
    square.
    """
    # Products with the square of scores, each with two operations per element of a head.
    times, passes = (4, kernels.score_passes_backward) if backward else (2, kernels.score_passes)
    scores = tokens * sequence * (arch.num_heads / tensor)
    flop = times * 2 * arch.head_dim * scores
    fraction = gpu.efficiency.matmul_fraction if kernels.matmul_fraction is None else kernels.matmul_fraction
    arithmetic = flop / ((kernels.flop_per_s or gpu.matmul_flop_per_s) * fraction)
    rate = gpu.memory_bytes_per_s * gpu.efficiency.memory_fraction
    return arithmetic + kernels.element_bytes * passes * scores / rate
