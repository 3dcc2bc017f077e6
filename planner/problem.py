"""What the planner is asked: a fleet, a workload, an objective, what the runtime can do, and how long to think.

Plain values. Regions and links are sets in meaning: no answer depends on their order. A link is directed, and one that
nobody has measured is absent, never guessed.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """What one region offers."""

    name: str
    num_cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What was measured from one region's gateway to another's."""

    src_region: str
    dst_region: str
    rtt_s: float
    throughput_bits_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Snapshot of the usable regions and the measured links among them."""

    regions: tuple[Region, ...]
    links: tuple[Link, ...]

    def region(self, name: str) -> Region | None:
        """The region of that name, if it is in the fleet."""
        return next((region for region in self.regions if region.name == name), None)

    def link(self, src_region: str, dst_region: str) -> Link | None:
        """The link in that direction, if it was measured."""
        ends = (src_region, dst_region)
        return next((link for link in self.links if (link.src_region, link.dst_region) == ends), None)

    def contradiction(self) -> str | None:
        """What makes this no snapshot of anything, if something does."""
        names = [region.name for region in self.regions]
        ends = [(link.src_region, link.dst_region) for link in self.links]
        for name in sorted(set(names)):
            if names.count(name) > 1:
                return f"the region {name} is there twice"
        for link in self.links:
            where = f"the link from {link.src_region} to {link.dst_region}"
            if ends.count((link.src_region, link.dst_region)) > 1:
                return f"{where} is there twice"
            if link.throughput_bits_per_s <= 0 or link.rtt_s < 0:
                return f"{where} needs a throughput above 0 and a round trip from 0"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one job needs. `trainer_region` and `rollout_regions` are the operator's pins; None leaves the choice."""

    algorithm: str
    trainer_region: str | None
    rollout_regions: tuple[str, ...] | None
    min_regions: int
    workers_per_region: int
    model_bytes: int | None
    """One published version, uncompressed; None where the checkpoint cannot be seen: then only delays are compared."""
    trainer_memory_bytes: int
    rollout_memory_bytes: int
    """Of one rollout worker."""
    staleness: int
    groups_per_step: int
    group_size: int


class Objective(StrEnum):
    """What a better plan has less of."""

    WEIGHTS_TIME = "weights_time"
    """Time until the slowest region has a new version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the runtime executes: a plan uses nothing else. Loaded elsewhere and passed in."""

    algorithms: frozenset[str]
    topologies: frozenset[str]
    max_trainers: int
    max_staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Thinking time. A search hands it to its solver; a closed form ignores it."""

    seconds: float
