"""One kind of accelerator: its datasheet, and which part of it real programs get.

Rates are those of dense half-precision matrix multiplication (bf16 where the card has it, else fp16). A CPU is a device
too: one *device* is then the cores that one worker process has.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What is left of the datasheet; data, fitted to published profiles (`planner/data/efficiency.csv`)."""

    matmul_fraction: float
    """Of the peak rate, for matrices large enough to fill the device."""
    saturation_tokens: float
    """Rows of a matrix product at which half of that fraction is reached: n rows reach n / (n + saturation_tokens)."""
    memory_fraction: float
    """Of the memory's bandwidth, streaming weights or caches."""
    link_fraction: float
    """Of the link inside a machine, for large collectives of two devices."""
    layer_overhead_s: float
    """Fixed time of one transformer layer's forward pass: launches, normalisations, what is not modelled."""
    collective_latency_s: float
    """Fixed time of one collective inside a machine."""
    attention_fraction: float = 0.5
    """Of the peak rate, in fused attention over long sequences."""
    attention_saturation_tokens: float = 600.0
    """Length of the sequences at which half of that fraction is reached."""
    attention_overhead_s: float = 10e-6
    """Fixed time of one attention kernel beside what `layer_overhead_s` has for every kernel."""
    link_sharing: float = 0.0
    """How the rate of n devices compares with that of two: (2 / n) ** link_sharing. 1 and more where all share one bus;
    below 0 behind a switch or in a mesh, where a ring of more devices uses more links at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """Datasheet facts of one accelerator, and its efficiency."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    matmul_flop_per_s: float
    link_bytes_per_s: float
    """Of one device, one direction, to the others of its machine (NVLink, else PCIe)."""
    efficiency: Efficiency
    is_cpu: bool = False
