"""Fleet values: the regions that may be used, their machines, and the measured links between regions.

The fields of `Region` and `Machines` are keys of a fleet file, whose schema has their docstrings.

Regions, machines and links are tuples, but their order has no meaning: no answer depends on it. A link is directed. A
link that was not measured is absent; its rate is never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from planner.problem.hardware import GpuType
from planner.problem.ranges import (
    MAX_MACHINES_ENTRIES,
    Degree,
    DeviceBytesPerS,
    LatencyS,
    Name,
    NameOrNone,
    Usd,
    WanBytesPerS,
)

ONE_HOST_BYTES_PER_S = 1.25e9
"""Fabric rate, in bytes per second (10 Gbit/s), of a region that consists of one host or one machine. Nobody measures
such a fabric, and it limits nothing there. Chosen by hand."""

FABRIC_LATENCY_S = 20e-6
"""One-way latency in seconds that is assumed between machines of one region. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """A number of equal machines of one region."""

    gpu: Name
    """Accelerator type. In a file it is any name of a packaged accelerator, a name of `gpu_types`, or cpu; in a fleet
    it is a key of the accelerator types."""
    gpus_per_machine: Degree
    """Number of accelerators in each machine."""
    num_machines: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of machines."""
    usd_per_gpu_hour: Usd | None = None
    """Rent of one accelerator in dollars per hour. null if it is unknown: objectives in dollars then cannot use these
    machines."""
    is_spot: bool = False
    """Whether the provider may take these machines away at short notice."""
    fabric: NameOrNone = ""
    """Name of the network that connects these machines. Machines of one region with the same name reach each other at
    the region's full fabric rate."""
    network_bytes_per_s: DeviceBytesPerS | None = None
    """Rate of one device to other machines, in one direction. It never exceeds the region's fabric_bytes_per_s, for
    which null stands."""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all these machines."""
        return self.gpus_per_machine * self.num_machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A site whose machines share a fast network."""

    name: Name
    """Name that links and plans use, such as aws:us-east-1."""
    machines: Annotated[tuple[Machines, ...], Field(max_length=MAX_MACHINES_ENTRIES)] = ()
    """Machines of the region. If the list is empty, worker processes run on the cores of the region's host."""
    fabric_bytes_per_s: DeviceBytesPerS = ONE_HOST_BYTES_PER_S
    """Rate of one device, in one direction, to other machines of the region. A file must give it if the region has more
    than one machine; otherwise it limits nothing."""
    fabric_latency_s: LatencyS = FABRIC_LATENCY_S
    """One-way latency between two machines of the region."""
    cross_fabric_bytes_per_s: DeviceBytesPerS | None = None
    """Rate of one device to machines of another `fabric`. null if it is the same as within one fabric."""
    wan_up_bytes_per_s: WanBytesPerS | None = None
    """Cap on all traffic that leaves the region's gateway at the same time. null if only the links limit it."""
    wan_down_bytes_per_s: WanBytesPerS | None = None
    """Cap on all traffic that enters the region's gateway at the same time. null if only the links limit it."""
    is_public: bool = True
    """Whether other regions can dial this region's gateway. Two regions that are not public need a relay in a third
    region."""
    num_cores: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of cores of the host on which the region's processes run; 0 if it is unknown. A job needs this number, or
    machines whose gpu is cpu."""
    memory_bytes: Annotated[int, Field(ge=0, le=10**15)] = 0
    """Memory of the host on which the region's processes run; 0 if it is not a limit."""
    engines: Annotated[tuple[Name, ...], Field(max_length=64)] | None = None
    """Names of the inference engines that the region's host has, as in a job's engine.name. null if they are not
    known, and not a limit."""
    allows_own_code: bool | None = None
    """Whether jobs may run reward functions of their users' own in the region. null if it is not known, and not a
    limit."""
    core: NameOrNone = ""
    """Name in gpu_types of one core of the region's host, if it was measured. Empty for cpu."""
    host: NameOrNone = ""
    """Name of the machine whose cores the region shares with other regions. Empty if its cores are its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Measured link from one region's gateway to another's, in one direction.

    Plans count with the tenth percentile of throughput, so that a slow hour does not break them.
    """

    src_region: str
    dst_region: str
    rtt_s: float
    bytes_per_s: float
    """Throughput: the tenth percentile if there are several samples."""
    age_s: float | None = None
    """Seconds since the last measurement. None if they are unknown."""
    usd_per_gbyte: float = 0.0
    """Egress price in dollars per 10^9 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Snapshot of the usable regions, the measured links between them, and the accelerator types of their machines."""

    regions: tuple[Region, ...]
    links: tuple[Link, ...]
    gpu_types: Mapping[str, GpuType]

    def region(self, name: str) -> Region | None:
        """Return the region of that name, or None if the fleet has none."""
        return next((region for region in self.regions if region.name == name), None)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all regions."""
        return sum(machines.num_gpus for region in self.regions for machines in region.machines)
