"""One accelerator type: its datasheet, and the fraction of the datasheet that programs reach.

Rates are those of dense matrix multiplication in half precision (bf16 where the card has it, otherwise fp16). A CPU is
a type too: one *device* is then the set of cores that one worker process has. Efficiencies of packaged types are fitted
to published profiles (`planner/data/README.md` says how).

Fields are keys of a fleet file, whose schema has their docstrings.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from planner.problem.ranges import DeviceBytesPerS, FlopPerS, Fraction, LatencyS, MemoryBytes, Name

SaturationTokens = Annotated[float, Field(ge=0, le=1e6)]
"""Number of tokens at which half of a rate is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Fractions of an accelerator's datasheet rates that real programs reach, and fixed times of its kernels."""

    matmul_fraction: Fraction
    """Fraction of the peak rate that products of matrices reach if they are large enough to fill the device."""
    saturation_tokens: SaturationTokens
    """Number of rows of a matrix product at which half of matmul_fraction is reached. A product of n rows reaches n /
    (n + saturation_tokens) of it."""
    memory_fraction: Fraction
    """Fraction of the memory bandwidth that is reached when weights or caches are streamed."""
    link_fraction: Fraction
    """Fraction of the rate of the link inside a machine that large collectives of two devices reach."""
    layer_overhead_s: LatencyS
    """Fixed seconds of one layer's forward pass, whatever the sizes of its matrices: kernel launches, normalisations,
    and what is not modelled."""
    collective_latency_s: LatencyS
    """Fixed seconds of one collective inside a machine, however few bytes it moves."""
    attention_fraction: Fraction = 0.5
    """Fraction of the peak rate that fused attention reaches over long sequences."""
    attention_saturation_tokens: SaturationTokens = 600.0
    """Sequence length in tokens at which half of attention_fraction is reached."""
    attention_overhead_s: LatencyS = 10e-6
    """Fixed seconds of one attention kernel, in addition to the share of layer_overhead_s that every kernel has."""
    link_sharing: Annotated[float, Field(ge=-4, le=4)] = 0.0
    """Exponent s of the link's rate in a collective of n devices, relative to two devices: (2 / n) ** s. It is 1 or
    more if all devices share one bus. It is below 0 behind a switch or in a mesh, where a ring of more devices uses
    more links at the same time."""


DEFAULT_EFFICIENCY = Efficiency(
    matmul_fraction=0.6,
    saturation_tokens=128.0,
    memory_fraction=0.8,
    link_fraction=0.7,
    layer_overhead_s=20e-6,
    collective_latency_s=20e-6,
)
"""Efficiency of types that were never measured. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """An accelerator type: its datasheet, and the part of it that programs reach."""

    name: Name
    """Name by which `gpu` of machines refers to this type."""
    memory_bytes: MemoryBytes
    """Bytes of one device's memory that programs can use."""
    memory_bytes_per_s: DeviceBytesPerS
    """Bandwidth of the device's memory."""
    matmul_flop_per_s: FlopPerS
    """Peak rate of dense matrix products in half precision: bf16 if the card has it, otherwise fp16."""
    link_bytes_per_s: DeviceBytesPerS
    """Rate of one device, in one direction, to the other devices of its machine (NVLink if present, otherwise PCIe)."""
    efficiency: Efficiency = DEFAULT_EFFICIENCY
    """Efficiency of this type. If it is left out, the type has that of types that were never measured."""
    is_cpu: bool = False
    """Whether one device of this type is the cores of one worker process."""
