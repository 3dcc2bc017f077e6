"""The world that the policies run in: regions, links, workers, how long weights and results travel. Values only.

Round-trip times and throughputs are those of `data/network_skyplane/grid.csv` between the trainer's region and each
other, the slower direction of the two. The rest is stated here, each with its source.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TRAINER_REGION = "aws:us-east-1"
REGIONS = (
    TRAINER_REGION,
    "aws:us-west-2",
    "gcp:southamerica-east1-a",
    "azure:westeurope",
    "aws:af-south-1",
    "aws:ap-southeast-1",
    "gcp:asia-northeast1-a",
    "aws:ap-southeast-2",
)
"""Six continents, 0 to 237 ms from the trainer."""

WORKERS_PER_REGION = 3

TOKENS_PER_S = 60.0
"""Decode rate of one slot: an 8B model on one accelerator with some tens of sequences at a time."""

DELTA_BYTES = 207e6
"""One published version of an 8B model: 16.4 GB of bf16 at the ratio of 79 that PULSE and SparrowRL report."""

EGRESS_GBIT_PER_S = 5.0
"""What one AWS virtual machine sends at most (the limit that shows in the measured throughputs); all remote regions
share it."""

ENCODE_S = 1.0
LOAD_S = 1.5
"""Encoding a version, and decoding it into an engine: with the transfer, about the 4.7 s from publication to the first
token that is reported for an 8B model."""

RELAY_S = 0.05
"""What a gateway adds to a message: batching, fsync."""

BYTES_PER_TOKEN = 5.0
STREAM_GBIT_PER_S = 0.2
"""A result's frame, and the share of the link that its stream gets."""

DETECTION_S = 10.0
REPLACEMENT_S = 120.0
"""From a worker's death until its gateway says so (missed keepalives), and until another has started in its place with
the weights loaded."""

DEATHS_PER_HOUR = 0.1
"""One worker in ten dies an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Between a region and the trainer. Units: seconds; rate in Gbit/s."""

    one_way_s: float
    throughput_gbit_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """From time to time, one remote region after the other is cut off: what is sent meanwhile arrives afterwards."""

    every_s: float
    length_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One setting of the simulator. Times in seconds.

    `slots`: samples that each worker decodes at a time, each at `tokens_per_s`. `sample_s`: the mean time of a sample.
    """

    links: Mapping[str, Link]
    worker_regions: tuple[str, ...]
    slots: tuple[int, ...]
    tokens_per_s: float
    sample_s: float
    step_s: float
    groups_per_step: int
    group_size: int
    bound: int
    deaths_per_hour: float = DEATHS_PER_HOUR
    outages: Outages | None = None
    detection_s: float = DETECTION_S
    replacement_s: float = REPLACEMENT_S
    delta_bytes: float = DELTA_BYTES
    encode_s: float = ENCODE_S
    load_s: float = LOAD_S
    relay_s: float = RELAY_S

    def room(self, place: int) -> int:
        """Samples that this worker offers to hold: its slots, and as many as it ends within a round trip."""
        within = self.slots[place] * 2.0 * self.message_s(self.worker_regions[place]) / self.sample_s
        return self.slots[place] + round(within)

    def message_s(self, region: str) -> float:
        """One way between a worker of the region and the trainer, without payload."""
        return self.links[region].one_way_s + self.relay_s

    def result_s(self, region: str, num_tokens: int) -> float:
        """One way of a finished sample."""
        return self.message_s(region) + num_tokens * BYTES_PER_TOKEN * 8 / (STREAM_GBIT_PER_S * 1e9)

    def weights_s(self, region: str) -> float:
        """From the end of a step until the region's engines hold the new version."""
        link = self.links[region]
        if link.one_way_s == 0.0:
            return self.encode_s + self.load_s
        remote = sum(other.one_way_s > 0.0 for other in self.links.values())
        gbit_per_s = min(link.throughput_gbit_per_s, EGRESS_GBIT_PER_S / remote)
        return self.encode_s + self.delta_bytes * 8 / (gbit_per_s * 1e9) + self.message_s(region) + self.load_s


def read_links(grid: Path, regions: tuple[str, ...] = REGIONS, trainer: str = TRAINER_REGION) -> dict[str, Link]:
    """The links of these regions with the trainer's. Raises: ValueError if one was not measured."""
    with grid.open(newline="") as lines:
        rows = {(row["src_region"], row["dst_region"]): row for row in csv.DictReader(lines)}
    links = {trainer: Link(one_way_s=0.0, throughput_gbit_per_s=float("inf"))}
    for region in regions:
        if region == trainer:
            continue
        both = [rows.get((trainer, region)), rows.get((region, trainer))]
        if not all(row and row["rtt_ms"] and row["throughput_gbps"] for row in both):
            raise ValueError(f"{grid} has no round-trip time or throughput between {trainer} and {region}")
        links[region] = Link(
            one_way_s=max(float(row["rtt_ms"]) for row in both if row) / 2e3,
            throughput_gbit_per_s=min(float(row["throughput_gbps"]) for row in both if row),
        )
    return {region: links[region] for region in regions}


def deal_slots(total: int, num_workers: int) -> tuple[int, ...]:
    """So many slots over the workers, as equally as whole numbers allow; every worker has one."""
    each, rest = divmod(max(total, num_workers), num_workers)
    return tuple(each + (number < rest) for number in range(num_workers))
