"""Predicted seconds of a series, by the functions of `planner.devices` that the cost model and the simulator call.

The functions are called with arrays, one entry per row. Only what belongs to the profiled programs is added here: their
precision (float32, TF32), eager kernels and measured links.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from bench.planner_cases.calibration.observations import FloatArray, MeasuredTerm, Numerics, Series
from planner.devices import collective, layer
from planner.devices.layer import Kernels
from planner.problem.architecture import Architecture
from planner.problem.hardware import Efficiency, GpuType

EAGER_ROTARY_PASSES = 32.0
"""Passes over the hidden states in Sailor's `llama_model.py` beyond those of its other models, counted in the source:
rotary embedding of queries and keys in ten passes each, copies of all three, two normalisations in seven passes rather
than two."""
KERNELS_PER_LAYER = 9
"""Number of kernels whose fixed times make up a layer's overhead: four products, two normalisations, rotary embedding,
activation, cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Properties of the measured programs, rather than of a device: passes of their kernels over memory."""

    eager_hidden_passes: float = 14.0
    score_passes: float = 6.0
    score_passes_backward: float = 14.0
    logit_passes: float = 6.0
    logit_passes_backward: float = 4.0
    host_s: float = 1e-3
    """Seconds that the host needs to launch the kernels of one layer."""
    grouped_cache_reads: float = 0.2
    """Extra reads of caches per further query head of a group, in paged attention before kernels for grouped
    queries."""
    pair_fraction: float = 0.5
    """Fraction of a one-way transfer's rate that a ring of two devices reaches on a shared bus."""
    ring_fraction: float = 0.9
    """The same fraction in longer rings. They have twice as many flows as the measurement, but only two of them cross
    between the halves of the machine, where all measured flows did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFit:
    """Fitted parameters of one device type."""

    efficiency: Efficiency
    tensor32_fraction: float = 0.6
    """Fraction of the TF32 peak."""
    tensor32_fraction_backward: float = 0.6
    """Fraction of the TF32 peak in products for gradients, whose operands are transposed. TF32 is slower with these."""
    float32_fraction: float = 0.9
    """Fraction of the peak without tensor cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peak rates of float32 products. `GpuType` does not have them, because the runtime trains in half precision."""

    tensor32_flop_per_s: float
    float32_flop_per_s: float


PEAKS = {
    "A100-40GB-SXM": Peaks(tensor32_flop_per_s=156e12, float32_flop_per_s=19.5e12),
    "A100-80GB-SXM": Peaks(tensor32_flop_per_s=156e12, float32_flop_per_s=19.5e12),
    "GH200-96GB": Peaks(tensor32_flop_per_s=494.5e12, float32_flop_per_s=67e12),
    "V100-SXM2-16GB": Peaks(tensor32_flop_per_s=15.7e12, float32_flop_per_s=15.7e12),
    "RTX-2080-Ti": Peaks(tensor32_flop_per_s=13.45e12, float32_flop_per_s=13.45e12),
    "RTX-3090": Peaks(tensor32_flop_per_s=35.6e12, float32_flop_per_s=35.6e12),
    "Titan-RTX": Peaks(tensor32_flop_per_s=16.3e12, float32_flop_per_s=16.3e12),
}
"""Peak rates of the types that were profiled in float32. Source: the vendor's datasheets, dense. For a card without
TF32 both are its float32 rate."""


def predicted_s(series: Series, gpu: GpuType, fit: DeviceFit, program: Program) -> FloatArray:
    """Return the predicted seconds of each row of a series, `[num_rows]`."""
    device = _fitted(gpu, fit.efficiency)
    of = series.columns
    match series.term:
        case MeasuredTerm.MATMUL:
            return _matmul_s(series, device)
        case MeasuredTerm.PREFILL_ATTENTION | MeasuredTerm.DECODE_ATTENTION:
            return _attention_s(series, device)
        case MeasuredTerm.COLLECTIVE:
            # A gather or a scatter moves half of what a reduction does.
            share = 1.0 if series.variant == "all_reduce" else 0.5
            return collective.machine_all_reduce_s(device, payload_bytes=share * of["payload_bytes"], num=series.tensor)
        case MeasuredTerm.UPDATE:
            return np.array([layer.update_s(device, params=p, bytes_per_param=16.0) for p in of["params"]])
        case _:
            if series.link_bytes_per_s is not None:
                # Machines on a shared bus have measured links, which replace the nominal ones.
                fraction = program.pair_fraction if series.tensor == 2 else program.ring_fraction
                device = _linked(device, series.link_bytes_per_s, fraction)
            return _layer_s(series, _arch(series), device, _kernels(series, gpu, fit, program), program)


def _layer_s(series: Series, arch: Architecture, gpu: GpuType, kernels: Kernels, program: Program) -> FloatArray:
    tokens, tensor = series.columns["tokens"], series.tensor
    if series.term is MeasuredTerm.DENSE_LAYER:
        return layer.dense_s(gpu, arch, tensor=tensor, tokens=tokens, kernels=kernels)
    if series.term is MeasuredTerm.HEAD:
        return _head_s(series, arch, gpu, kernels, program)
    length = series.columns["sequence"]
    # Tensor parallelism sums the hidden states twice in a layer: after attention and after the MLP.
    payload = kernels.element_bytes * tokens * arch.hidden_size
    reduce = 2 * collective.machine_all_reduce_s(gpu, payload_bytes=payload, num=tensor)
    match series.term:
        case MeasuredTerm.DECODE_LAYER:
            return reduce + layer.decode_s(gpu, arch, tensor=tensor, sequences=tokens, context=length, kernels=kernels)
        case MeasuredTerm.TRAIN_BACKWARD:
            return reduce + layer.backward_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=length, kernels=kernels)
        case _:
            return reduce + layer.forward_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=length, kernels=kernels)


def _attention_s(series: Series, gpu: GpuType) -> FloatArray:
    """Return the seconds of one attention kernel, with its share of a layer's fixed time."""
    arch, tensor, of = _arch(series), series.tensor, series.columns
    fixed = gpu.efficiency.layer_overhead_s / KERNELS_PER_LAYER
    if series.term is MeasuredTerm.PREFILL_ATTENTION:
        return fixed + layer.prefill_attention_s(gpu, arch, tensor=tensor, tokens=of["tokens"], sequence=of["sequence"])
    return fixed + layer.decode_attention_s(gpu, arch, tensor=tensor, sequences=of["tokens"], context=of["sequence"])


def _matmul_s(series: Series, gpu: GpuType) -> FloatArray:
    m, n, k = (series.columns[key] for key in ("m", "n", "k"))
    moved = layer.BYTES * (m * n + n * k + m * k)
    product = layer.matmul_s(gpu, flop=2 * m * n * k, moved_bytes=moved, rows=m)
    return product + gpu.efficiency.layer_overhead_s / KERNELS_PER_LAYER


def _head_s(series: Series, arch: Architecture, gpu: GpuType, kernels: Kernels, program: Program) -> FloatArray:
    """Return the seconds of the output head and the loss.

    The backward pass has twice the arithmetic and sums the gradients of the hidden states over devices.
    """
    tokens = series.columns["tokens"]
    if series.variant == "forward":
        return layer.head_s(gpu, arch, tensor=series.tensor, tokens=tokens, kernels=kernels)
    fraction = kernels.matmul_fraction_backward or kernels.matmul_fraction
    # The result is doubled below, so the passes over the logits are halved here.
    passes = replace(kernels, logit_passes=program.logit_passes_backward / 2, matmul_fraction=fraction, host_s=0.0)
    payload = kernels.element_bytes * tokens * arch.hidden_size
    reduce = collective.machine_all_reduce_s(gpu, payload_bytes=payload, num=series.tensor)
    return reduce + 2 * layer.head_s(gpu, arch, tensor=series.tensor, tokens=tokens, kernels=passes)


def _arch(series: Series) -> Architecture:
    assert series.arch is not None
    return series.arch


@lru_cache(maxsize=256)
def _fitted(gpu: GpuType, efficiency: Efficiency) -> GpuType:
    return replace(gpu, efficiency=efficiency)


@lru_cache(maxsize=256)
def _linked(gpu: GpuType, bytes_per_s: float, fraction: float) -> GpuType:
    """Return the type with a measured link in place of the nominal one."""
    efficiency = replace(gpu.efficiency, link_fraction=fraction, link_sharing=0.0)
    return replace(gpu, link_bytes_per_s=bytes_per_s, efficiency=efficiency)


def _kernels(series: Series, gpu: GpuType, fit: DeviceFit, program: Program) -> Kernels:
    """Return how the profiled program runs a layer: eager float32 kernels for Sailor, fused kernels for the others."""
    arch = _arch(series)
    if series.numerics is Numerics.HALF:
        # Kernels for grouped queries read a cached key more than once, the more query heads share it.
        reads = 1 + program.grouped_cache_reads * (arch.num_heads / arch.num_kv_heads - 1)
        return Kernels(cache_reads=reads)
    peaks = PEAKS[gpu.name]
    tensor32 = series.numerics is Numerics.TENSOR32
    # The LLAMA program: rotary embeddings add passes over hidden states, and the gate one over the width of the MLP.
    gated = arch.num_mlp_matrices == 3
    return Kernels(
        element_bytes=4,
        flop_per_s=peaks.tensor32_flop_per_s if tensor32 else peaks.float32_flop_per_s,
        matmul_fraction=fit.tensor32_fraction if tensor32 else fit.float32_fraction,
        matmul_fraction_backward=fit.tensor32_fraction_backward if tensor32 else None,
        hidden_passes=program.eager_hidden_passes + (EAGER_ROTARY_PASSES if gated else 0.0),
        width_passes=5.0 if gated else 2.0,
        score_passes=program.score_passes,
        score_passes_backward=program.score_passes_backward,
        logit_passes=program.logit_passes,
        host_s=program.host_s,
    )
