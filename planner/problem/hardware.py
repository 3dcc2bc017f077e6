"""One accelerator type: its datasheet, and the fraction of the datasheet that programs reach.

Rates are those of dense matrix multiplication in half precision (bf16 where the card has it, otherwise fp16). A CPU is
a type too: one *device* is then the set of cores that one worker process has. Efficiencies of packaged types are fitted
to published profiles (`planner/data/README.md` says how).

Fields are keys of a fleet file, whose schema has their docstrings.
"""

from dataclasses import dataclass, fields, replace
from typing import Annotated

from pydantic import Field

from periplus.values.machine import DeviceFamily
from planner.problem.ranges import DeviceBytesPerS, FlopPerS, Fraction, LatencyS, MemoryBytes, Name

SaturationTokens = Annotated[float, Field(ge=0, le=1e6)]
"""Number of tokens at which half of a rate is reached."""


EMULATED = "emulated-"
"""Beginning of the names of emulated types: cores stand in for the accelerator that is named after it."""


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
    sample_overhead_s: LatencyS = 0.0
    """Seconds that each sample takes beside the model's passes: a rollout worker for lease, reward and frame, a trainer
    for its intake."""
    step_overhead_s: LatencyS = 0.0
    """Seconds of a training step beside the passes and the optimizer: digests, audit, snapshot of the weights."""
    version_overhead_s: LatencyS = 0.0
    """Seconds to encode a version at the trainer, and to decode and prove it at a worker."""
    busy_cores: Annotated[float, Field(ge=0, le=10_000)] = 1.0
    """Cores of its host that a process keeps busy while it computes, for processes on cores."""

    def with_fixed_times(self, by: float) -> "Efficiency":
        """Return the efficiency with all fixed seconds `by` times as long."""
        return replace(self, **{name: getattr(self, name) * by for name in _FIXED})

    def slowed(self, by: float) -> "Efficiency":
        """Return the efficiency of programs that take `by` times as long for everything."""
        return replace(self.with_fixed_times(by), **{name: getattr(self, name) / by for name in _FRACTIONS})


_FRACTIONS = tuple(each.name for each in fields(Efficiency) if each.name.endswith("_fraction"))
_FIXED = tuple(each.name for each in fields(Efficiency) if each.name.endswith("_s"))


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
    training: Efficiency | None = None
    """Efficiency of training and scoring, if it was measured apart from generation. None stands for `efficiency`."""
    source: Annotated[str, Field(max_length=500)] = ""
    """From which measurement the efficiency is, and of when. Empty for a packaged one."""

    @property
    def family(self) -> DeviceFamily:
        """Kind of devices that are of this type."""
        if self.is_cpu:
            return DeviceFamily.CPU
        return DeviceFamily.EMULATED if self.name.startswith(EMULATED) else DeviceFamily.CUDA

    @property
    def for_training(self) -> "GpuType":
        """The type with the efficiency that training and scoring have on it."""
        return self if self.training is None else replace(self, efficiency=self.training, training=None)

    def slowed(self, by: float, name: str) -> "GpuType":
        """Return a type of that name which takes `by` times as long for everything."""
        return replace(
            self,
            name=name,
            memory_bytes_per_s=self.memory_bytes_per_s / by,
            matmul_flop_per_s=self.matmul_flop_per_s / by,
            link_bytes_per_s=self.link_bytes_per_s / by,
            efficiency=self.efficiency.with_fixed_times(by),
            training=None if self.training is None else self.training.with_fixed_times(by),
        )
