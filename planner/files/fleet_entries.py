"""Keys of a fleet file (`periplus.fleet/1`), with their types, ranges and meanings.

The docstrings become the descriptions of `periplus/schemas/fleet.schema.json`. Each model checks its own keys only.
Rules that involve several entries, such as unique names, are checked in `planner.files.fleet_file`.
"""

from pydantic import Field

from periplus.config.loading import Config
from planner.problem.ranges import (
    MAX_MACHINES_ENTRIES,
    MAX_REGIONS,
    DeviceBytesPerS,
    FlopPerS,
    Fraction,
    LatencyS,
    MemoryBytes,
    Name,
    NameOrNone,
    RoundTripS,
    Usd,
    WanBytesPerS,
)


class EfficiencyEntry(Config):
    """Fractions of an accelerator's datasheet rates that real programs reach, and fixed times of its kernels."""

    matmul_fraction: Fraction
    """Fraction of the peak rate that products of matrices reach if they are large enough to fill the device."""
    saturation_tokens: float = Field(ge=0, le=1e6)
    """Number of rows of a matrix product at which half of matmul_fraction is reached."""
    memory_fraction: Fraction
    """Fraction of the memory bandwidth that is reached."""
    link_fraction: Fraction
    """Fraction of the rate of the link inside a machine that large collectives of two devices reach."""
    layer_overhead_s: LatencyS
    """Fixed seconds of one layer's forward pass, whatever the sizes of its matrices."""
    collective_latency_s: LatencyS
    """Fixed seconds of one collective inside a machine, however few bytes it moves."""
    attention_fraction: Fraction = 0.5
    """Fraction of the peak rate that fused attention reaches over long sequences."""
    attention_saturation_tokens: float = Field(default=600.0, ge=0, le=1e6)
    """Sequence length in tokens at which half of attention_fraction is reached."""
    attention_overhead_s: LatencyS = 10e-6
    """Fixed seconds of one attention kernel, in addition to layer_overhead_s."""
    link_sharing: float = Field(default=0.0, ge=-4, le=4)
    """Exponent s of the link's rate in a collective of n devices, relative to two devices: (2 / n) ** s. It is 1 if all
    devices share one bus, and 0 or less if they are behind a switch."""


class GpuTypeEntry(Config):
    """An accelerator type that the packaged table lacks, or whose packaged values this file replaces."""

    name: Name
    """Name by which `gpu` of machines refers to this type."""
    memory_bytes: MemoryBytes
    """Bytes of one device's memory that programs can use."""
    memory_bytes_per_s: DeviceBytesPerS
    """Bandwidth of the device's memory."""
    matmul_flop_per_s: FlopPerS
    """Peak rate of dense matrix products in half precision: bf16 if the card has it, otherwise fp16."""
    link_bytes_per_s: DeviceBytesPerS
    """Rate of one device, in one direction, to the other devices of its machine."""
    efficiency: EfficiencyEntry | None = None
    """Efficiency of this type. null stands for the default efficiency of types that were never measured."""
    is_cpu: bool = False
    """Whether one device of this type is the cores of one worker process."""


class MachinesEntry(Config):
    """A number of equal machines of one region."""

    gpu: Name
    """Accelerator type: any name of a packaged accelerator, a name of `gpu_types`, or cpu."""
    gpus_per_machine: int = Field(ge=1, le=1024)
    """Number of accelerators in each machine."""
    num_machines: int = Field(ge=1, le=1_000_000)
    """Number of machines."""
    usd_per_gpu_hour: Usd | None = None
    """Rent of one accelerator in dollars per hour. null if it is unknown: objectives in dollars then cannot use these
    machines."""
    is_spot: bool = False
    """Whether the provider may take these machines away at short notice."""
    network_bytes_per_s: DeviceBytesPerS | None = None
    """Rate of one device to other machines, in one direction. It never exceeds the region's fabric_bytes_per_s, for
    which null stands."""
    fabric: NameOrNone = ""
    """Name of the network that connects these machines. Machines of one region with the same name reach each other at
    the region's full fabric rate."""


class RegionEntry(Config):
    """A site whose machines share a fast network."""

    name: Name
    """Name that links and plans use, such as aws:us-east-1."""
    machines: tuple[MachinesEntry, ...] = Field(default=(), max_length=MAX_MACHINES_ENTRIES)
    """Machines of the region. If the list is empty, worker processes run on the cores of the region's host."""
    fabric_bytes_per_s: DeviceBytesPerS | None = None
    """Rate of one device, in one direction, to other machines of the region. Required if the region has more than one
    machine."""
    fabric_latency_s: LatencyS = 20e-6
    """One-way latency between two machines of the region."""
    cross_fabric_bytes_per_s: DeviceBytesPerS | None = None
    """Rate of one device to machines of another `fabric`. null if it is the same as within one fabric."""
    wan_up_bytes_per_s: WanBytesPerS | None = None
    """Cap on all traffic that leaves the region's gateway at the same time. null if only the links limit it."""
    wan_down_bytes_per_s: WanBytesPerS | None = None
    """Cap on all traffic that enters the region's gateway at the same time. null if only the links limit it."""
    is_public: bool = True
    """Whether other regions can dial this region's gateway."""
    num_cores: int = Field(default=0, ge=0, le=1_000_000)
    """Number of cores of the host on which the region's processes run; 0 if it is unknown. A job needs this number, or
    machines whose gpu is cpu."""
    memory_bytes: int = Field(default=0, ge=0, le=10**15)
    """Memory of the host on which the region's processes run; 0 if it is not a limit."""
    engines: tuple[Name, ...] | None = Field(default=None, max_length=64)
    """Names of the inference engines that the region's host has, as in a job's engine.name. null if they are not
    known, and not a limit."""
    allows_own_code: bool | None = None
    """Whether jobs may run reward functions of their users' own in the region. null if it is not known, and not a
    limit."""


class LinkEntry(Config):
    """Measured link from one region's gateway to another's, in one direction. Exactly one of bytes_per_s and
    throughput_bits_per_s is given."""

    src_region: Name
    """Region that sends."""
    dst_region: Name
    """Region that receives."""
    rtt_s: RoundTripS
    """Round-trip time."""
    bytes_per_s: WanBytesPerS | None = None
    """Throughput in bytes per second: the tenth percentile if there are several samples."""
    throughput_bits_per_s: float | None = Field(default=None, ge=8, le=8e13)
    """Throughput in bits per second, in place of bytes_per_s."""
    bytes_per_s_p50: WanBytesPerS | None = None
    """Median throughput in bytes per second, if there are several samples."""
    age_s: float | None = Field(default=None, ge=0, le=1e10)
    """Seconds since the last measurement. null if they are unknown."""
    num_samples: int = Field(default=1, ge=1, le=10**9)
    """Number of samples that the throughput was computed from."""
    usd_per_gbyte: Usd = 0.0
    """Egress price of this link in dollars per 10^9 bytes."""


class FleetFile(Config):
    """The regions that a plan may use, their machines, and the measured links between them."""

    gpu_types: tuple[GpuTypeEntry, ...] = Field(default=(), max_length=MAX_MACHINES_ENTRIES)
    """Accelerator types that this file defines."""
    regions: tuple[RegionEntry, ...] = Field(min_length=1, max_length=MAX_REGIONS)
    """All regions. Each name appears once."""
    links: tuple[LinkEntry, ...] = Field(default=(), max_length=MAX_REGIONS**2)
    """Directed links between regions. Pairs that were not measured are left out."""
