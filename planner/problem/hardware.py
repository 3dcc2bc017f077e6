"""One accelerator type: its datasheet, and the fraction of the datasheet that programs reach.

Rates are those of dense matrix multiplication in half precision (bf16 where the card has it, otherwise fp16). A CPU is
a type too: one *device* is then the set of cores that one worker process has.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Fractions of the datasheet that programs reach, and fixed times of their kernels.

    The values are fitted to published profiles (`planner/data/README.md` says how).
    """

    matmul_fraction: float
    """Fraction of the peak rate in products of matrices that are large enough to fill the device."""
    saturation_tokens: float
    """Number of rows of a matrix product at which half of `matmul_fraction` is reached. A product of n rows reaches n /
    (n + saturation_tokens) of it."""
    memory_fraction: float
    """Fraction of the memory bandwidth when weights or caches are streamed."""
    link_fraction: float
    """Fraction of the link inside a machine, in large collectives of two devices."""
    layer_overhead_s: float
    """Fixed seconds of one transformer layer's forward pass: kernel launches, normalisations, and what is not
    modelled."""
    collective_latency_s: float
    """Fixed seconds of one collective inside a machine."""
    attention_fraction: float = 0.5
    """Fraction of the peak rate in fused attention over long sequences."""
    attention_saturation_tokens: float = 600.0
    """Sequence length at which half of `attention_fraction` is reached."""
    attention_overhead_s: float = 10e-6
    """Fixed seconds of one attention kernel, in addition to the share of `layer_overhead_s` that every kernel has."""
    link_sharing: float = 0.0
    """Exponent of the rate of n devices relative to two: (2 / n) ** link_sharing. It is 1 or more if all devices
    share one bus. It is below 0 behind a switch or in a mesh, where a ring of more devices uses more links at the
    same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """Datasheet of one accelerator type, with its efficiency."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    matmul_flop_per_s: float
    """Peak rate of dense matrix products in half precision."""
    link_bytes_per_s: float
    """Rate of one device, in one direction, to the other devices of its machine (NVLink if present, otherwise PCIe)."""
    efficiency: Efficiency
    is_cpu: bool = False
    """Whether a device of this type is cores of a host."""
