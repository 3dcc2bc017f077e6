"""The regions that may be used, their machines, and the measured links among them.

Regions, machines and links are sets in meaning: no answer depends on their order. A link is directed, and one that
nobody has measured is absent, never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.question.hardware import GpuType

ONE_HOST_BYTES_PER_S = 1.25e9
"""Fabric of a region that is one host or one machine, where nobody measures it and it binds nothing: 10 Gbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """So many equal machines of one region. Those that share `fabric` reach each other at the region's full rate."""

    gpu: str
    gpus_per_machine: int
    num_machines: int
    usd_per_gpu_hour: float | None = None
    """None where nobody said: then no objective in dollars can use them."""
    is_spot: bool = False
    fabric: str = ""
    network_bytes_per_s: float | None = None
    """Of one GPU to other machines, one direction, where that is less than the region's fabric carries."""

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_machine * self.num_machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """What one region offers. Rates between its machines are of one GPU, one direction."""

    name: str
    machines: tuple[Machines, ...]
    fabric_bytes_per_s: float
    fabric_latency_s: float = 20e-6
    cross_fabric_bytes_per_s: float | None = None
    """Between machines of different `fabric`; None: as within one."""
    wan_up_bytes_per_s: float | None = None
    """Cap of everything that leaves the region's gateway at once; None: only the links bind."""
    wan_down_bytes_per_s: float | None = None
    is_public: bool = True
    """Whether others can dial its gateway. Two regions that are not public need a third between them."""
    num_cores: int = 0
    memory_bytes: int = 0
    """Cores and memory of the host where the region's processes run; 0 where that does not bind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What was measured from one region's gateway to another's. Plans use the tenth percentile of throughput."""

    src_region: str
    dst_region: str
    rtt_s: float
    bytes_per_s: float
    """Tenth percentile where there are several samples."""
    bytes_per_s_p50: float | None = None
    age_s: float | None = None
    num_samples: int = 1
    usd_per_gbyte: float = 0.0
    """Egress price, 1 GB = 10^9 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Snapshot of the usable regions, the measured links among them, and the types that their machines name."""

    regions: tuple[Region, ...]
    links: tuple[Link, ...]
    gpu_types: Mapping[str, GpuType]

    def region(self, name: str) -> Region | None:
        return next((region for region in self.regions if region.name == name), None)

    @property
    def num_gpus(self) -> int:
        return sum(machines.num_gpus for region in self.regions for machines in region.machines)
