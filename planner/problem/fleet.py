"""Fleet values: the regions that may be used, their machines, and the measured links between regions.

Regions, machines and links are tuples, but their order has no meaning: no answer depends on it. A link is directed. A
link that was not measured is absent; its rate is never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.problem.hardware import GpuType

ONE_HOST_BYTES_PER_S = 1.25e9
"""Fabric rate, in bytes per second (10 Gbit/s), of a region that consists of one host or one machine. Nobody measures
such a fabric, and it limits nothing there. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """A number of equal machines of one region.

    Machines with the same `fabric` reach each other at the region's full fabric rate.
    """

    gpu: str
    """Name of the accelerator type, a key of `Fleet.gpu_types`."""
    gpus_per_machine: int
    num_machines: int
    usd_per_gpu_hour: float | None = None
    """Rent of one GPU. None if the price is unknown: goals in dollars cannot use these machines then."""
    is_spot: bool = False
    """Whether the provider may take the machines back at any time."""
    fabric: str = ""
    """Name of the fast network that connects the machines inside the region. Empty if the region has only one."""
    network_bytes_per_s: float | None = None
    """Rate from one GPU to other machines, in one direction. None if the region's fabric is the limit."""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all these machines."""
        return self.gpus_per_machine * self.num_machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Machines of one region and the rates of its networks.

    Rates inside the region are per GPU, in one direction.
    """

    name: str
    machines: tuple[Machines, ...]
    fabric_bytes_per_s: float
    fabric_latency_s: float = 20e-6
    cross_fabric_bytes_per_s: float | None = None
    """Rate between machines of different `fabric`. None if it is the same as within one."""
    wan_up_bytes_per_s: float | None = None
    """Cap on all traffic that leaves the region's gateway at the same time. None if only the links limit it."""
    wan_down_bytes_per_s: float | None = None
    """Cap on all traffic that enters the region's gateway at the same time. None if only the links limit it."""
    is_public: bool = True
    """Whether other regions can dial this region's gateway. Two regions that are not public need a relay in a third
    region."""
    num_cores: int = 0
    memory_bytes: int = 0
    """Memory of the host on which the region's processes run, as `num_cores` is its cores. 0 if it is not a limit."""
    engines: tuple[str, ...] | None = None
    """Names of the inference engines that the region's host has. None if they are not known, and not a limit."""
    allows_own_code: bool | None = None
    """Whether jobs may run reward functions of their users' own in the region. None if it is not known, and not a
    limit."""


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
    bytes_per_s_p50: float | None = None
    """Median throughput. None if it is unknown."""
    age_s: float | None = None
    """Seconds since the last measurement. None if they are unknown."""
    num_samples: int = 1
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
