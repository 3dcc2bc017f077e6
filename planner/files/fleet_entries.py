"""Keys of a fleet file (`periplus.fleet/1`), with their types, ranges and meanings.

The docstrings become the descriptions of `periplus/schemas/fleet.schema.json`. A region and an accelerator type are
their own keys (`planner.problem`); a link may state its rate in bits, which `Link` does not. Only single keys are
checked here. Rules that involve several entries, such as unique names, are checked in `planner.files.fleet_file`.
"""

from pydantic import Field

from periplus.config.loading import Config
from planner.problem.fleet import Region
from planner.problem.hardware import GpuType
from planner.problem.ranges import MAX_MACHINES_ENTRIES, MAX_REGIONS, Name, RoundTripS, Usd, WanBytesPerS


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

    gpu_types: tuple[GpuType, ...] = Field(default=(), max_length=MAX_MACHINES_ENTRIES)
    """Accelerator types that this file defines."""
    regions: tuple[Region, ...] = Field(min_length=1, max_length=MAX_REGIONS)
    """All regions. Each name appears once."""
    links: tuple[LinkEntry, ...] = Field(default=(), max_length=MAX_REGIONS**2)
    """Directed links between regions. Pairs that were not measured are left out."""
