"""The keys of a fleet file. What no single key can say is checked in `planner.files.fleet_file`."""

from pydantic import Field

from periplus.config.loading import Config
from planner.files.ranges import (
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
    """Which part of its datasheet real programs get of an accelerator."""

    matmul_fraction: Fraction
    """Share of the peak rate that is reached for matrices large enough to fill the device."""
    saturation_tokens: float = Field(ge=0, le=1e6)
    """Rows of a matrix product at which half of that fraction is reached."""
    memory_fraction: Fraction
    """Share of the memory's bandwidth that is reached."""
    link_fraction: Fraction
    """Share of the link inside a machine that is reached, for large collectives."""
    layer_overhead_s: LatencyS
    """Seconds of one layer's forward pass that no size explains."""
    collective_latency_s: LatencyS
    """Seconds of one collective inside a machine, however small."""
    attention_fraction: Fraction = 0.5
    """Share of the peak rate that is reached in fused attention over long sequences."""
    attention_saturation_tokens: float = Field(default=600.0, ge=0, le=1e6)
    """Length of the sequences at which half of that fraction is reached."""
    attention_overhead_s: LatencyS = 10e-6
    """Seconds of one attention kernel beside layer_overhead_s."""
    link_sharing: float = Field(default=0.0, ge=-4, le=4)
    """n devices have a (2 / n) ** link_sharing of two devices' rate: 1 where all share one bus, 0 or less behind a
    switch."""


class GpuTypeEntry(Config):
    """An accelerator that the packaged table lacks, or has otherwise."""

    name: Name
    """What `gpu` of machines says."""
    memory_bytes: MemoryBytes
    """Memory of one device that its programs can use."""
    memory_bytes_per_s: DeviceBytesPerS
    """Bandwidth of that memory."""
    matmul_flop_per_s: FlopPerS
    """Dense half-precision rate: bf16 where the card has it, else fp16."""
    link_bytes_per_s: DeviceBytesPerS
    """Rate of one device, in one direction, to the others of its machine."""
    efficiency: EfficiencyEntry | None = None
    """null: that of a card nobody measured."""
    is_cpu: bool = False
    """Whether it is the cores of a worker process."""


class MachinesEntry(Config):
    """So many equal machines."""

    gpu: Name
    """A packaged accelerator by any of its names, one of `gpu_types`, or cpu."""
    gpus_per_machine: int = Field(ge=1, le=1024)
    """Accelerators in each."""
    num_machines: int = Field(ge=1, le=1_000_000)
    """How many of them."""
    usd_per_gpu_hour: Usd | None = None
    """null: nobody said, and no objective in dollars can use them."""
    is_spot: bool = False
    """Whether they may be taken away at short notice."""
    network_bytes_per_s: DeviceBytesPerS | None = None
    """Rate of one device to other machines; null: the region's fabric_bytes_per_s, above which it never is."""
    fabric: NameOrNone = ""
    """Machines of one region with the same name here reach each other at the region's full rate."""


class RegionEntry(Config):
    """A place whose machines share a fast network."""

    name: Name
    """Such as aws:us-east-1; links and plans use it."""
    machines: tuple[MachinesEntry, ...] = Field(default=(), max_length=MAX_MACHINES_ENTRIES)
    """None: worker processes run on the region's cores."""
    fabric_bytes_per_s: DeviceBytesPerS | None = None
    """Between its machines, of one device, one direction. Needed where there is more than one machine."""
    fabric_latency_s: LatencyS = 20e-6
    """One way between two of its machines."""
    cross_fabric_bytes_per_s: DeviceBytesPerS | None = None
    """Between machines of different `fabric`; null: as within one."""
    wan_up_bytes_per_s: WanBytesPerS | None = None
    """Cap of what leaves its gateway at once; null: only links bind."""
    wan_down_bytes_per_s: WanBytesPerS | None = None
    """Cap of what reaches its gateway at once; null: only links bind."""
    is_public: bool = True
    """Whether others can dial its gateway."""
    num_cores: int = Field(default=0, ge=0, le=1_000_000)
    """Cores of the host where the region's processes run; 0: nobody said. Jobs need them, or machines of cpu."""
    memory_bytes: int = Field(default=0, ge=0, le=10**15)
    """Memory of that host; 0 means that it does not bind."""


class LinkEntry(Config):
    """What was measured from one region's gateway to another's. Exactly one of the two rates is given."""

    src_region: Name
    """Where it begins."""
    dst_region: Name
    """Where it ends."""
    rtt_s: RoundTripS
    """Round-trip time."""
    bytes_per_s: WanBytesPerS | None = None
    """The tenth percentile, where there are several samples."""
    throughput_bits_per_s: float | None = Field(default=None, ge=8, le=8e13)
    """The same in bits."""
    bytes_per_s_p50: WanBytesPerS | None = None
    """The median, where there are several samples."""
    age_s: float | None = Field(default=None, ge=0, le=1e10)
    """Since the measurement."""
    num_samples: int = Field(default=1, ge=1, le=10**9)
    """Date of the measurement."""
    usd_per_gbyte: Usd = 0.0
    """Price of what leaves the first region for the second."""


class FleetFile(Config):
    """The regions that may be used, their machines, and the measured links among them."""

    gpu_types: tuple[GpuTypeEntry, ...] = Field(default=(), max_length=MAX_MACHINES_ENTRIES)
    """Accelerators that this file defines."""
    regions: tuple[RegionEntry, ...] = Field(min_length=1, max_length=MAX_REGIONS)
    """Each once."""
    links: tuple[LinkEntry, ...] = Field(default=(), max_length=MAX_REGIONS**2)
    """Directed. Pairs that nobody has measured are absent."""
