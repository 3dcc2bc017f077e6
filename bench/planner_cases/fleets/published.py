"""Fleets of two published planners, as far as they are published. Every figure that is not published is a named guess.

HetRL (arXiv 2512.12476, MLSys 2026 and its slides): 24 A100 with 40 GB, 24 L40S and 16 L4, in four networks of which
some latencies and rates are known. AReaL-Hex (arXiv 2511.00796): H800 and H20; their hourly prices are those of Step-3
(arXiv 2507.19427, table 4). Delays that HetRL leaves open are taken from DT-FM's ten-region matrix (github
DS3Lab/DT-FM, MIT, `scheduler/generate_sim_com_matrices.py`).
"""

from collections.abc import Mapping
from enum import StrEnum

from bench.planner_cases.fleets.fleet_with_guesses import FleetWithGuesses
from planner.devices.catalogue import gpu_types
from planner.problem.fleet import Fleet, Link, Machines, Region

A100, L40S, L4 = "A100-40GB-SXM", "L40S", "L4"
H800, H20 = "H800-SXM", "H20"
"""Names of the packaged accelerator types of HetRL's fleets (first line) and of AReaL-Hex's."""
_GBIT = 1e9 / 8
"""Bytes per second of one Gbit/s."""
_PER_MACHINE = 8
"""Devices per machine in all published fleets."""
_FAST_FABRIC = 400 * _GBIT / _PER_MACHINE
"""One device's share of the network of a p4d.24xlarge or g6e.48xlarge, in bytes per second."""
_SLOW_FABRIC = 100 * _GBIT / _PER_MACHINE
"""One device's share of the network of a g6.48xlarge, in bytes per second."""


class HetrlScenario(StrEnum):
    """The four networks of HetRL."""

    SINGLE_REGION = "single-region"
    MULTI_REGION_HYBRID = "multi-region-hybrid"
    MULTI_COUNTRY = "multi-country"
    MULTI_CONTINENT = "multi-continent"


_DTFM_MS_GBPS: Mapping[tuple[str, str], tuple[float, float]] = {
    ("aws:us-east-1", "aws:us-east-2"): (11.0, 1.12),
    ("aws:us-east-1", "aws:eu-west-1"): (67.0, 1.05),
    ("aws:us-east-1", "aws:eu-west-2"): (76.0, 1.16),
    ("aws:us-east-1", "aws:eu-central-1"): (90.0, 1.02),
    ("aws:us-east-2", "aws:eu-west-1"): (77.0, 1.14),
    ("aws:us-east-2", "aws:eu-west-2"): (86.0, 1.05),
    ("aws:us-east-2", "aws:eu-central-1"): (99.0, 0.799),
    ("aws:eu-west-2", "aws:eu-west-1"): (12.0, 1.09),
    ("aws:eu-west-2", "aws:eu-central-1"): (14.0, 1.14),
    ("aws:eu-central-1", "aws:eu-west-1"): (24.0, 1.08),
}
"""Round trip in ms and rate in Gbit/s between Virginia, Ohio, Ireland, London and Frankfurt."""

_COMMON_GUESSES = (
    "machines: eight devices each, as AWS rents these types (p4d.24xlarge, g6e.48xlarge, g6.48xlarge)",
    "inside a region: 400 Gbit/s a machine with A100 or L40S, 100 Gbit/s a machine with L4, and 20 us",
    "A100: the data sheet's 1555 GB/s of memory, not the 2039 GB/s of the slides, which is the 80 GB card",
    "all 24 A100 share one region, as they form the homogeneous pool that HetRL compares with",
)
"""Guesses that hold for all four networks of HetRL."""
_ONE_WAY = "latency: the published figures are taken as one way"
"""Guess about the latencies that the papers give."""


def hetrl_fleet(scenario: HetrlScenario) -> FleetWithGuesses:
    """Return HetRL's 64 devices in one of its four networks."""
    match scenario:
        case HetrlScenario.SINGLE_REGION:
            return _single_region()
        case HetrlScenario.MULTI_REGION_HYBRID:
            return _hybrid()
        case HetrlScenario.MULTI_COUNTRY:
            return _multi_country()
        case HetrlScenario.MULTI_CONTINENT:
            return _multi_continent()


def areal_hex_fleet(*, num_h800_machines: int, num_h20_machines: int) -> FleetWithGuesses:
    """Return one data centre with machines of eight H800 at 2.0 dollars per hour each, and of eight H20 at 0.8."""
    stock = ((H800, num_h800_machines, 2.0), (H20, num_h20_machines, 0.8))
    region = Region(
        name="dc",
        machines=tuple(
            Machines(gpu=gpu, gpus_per_machine=_PER_MACHINE, num_machines=num, usd_per_gpu_hour=usd, fabric=gpu)
            for gpu, num, usd in stock
            if num
        ),
        fabric_bytes_per_s=400 * _GBIT,
        fabric_latency_s=10e-6,
        cross_fabric_bytes_per_s=25 * _GBIT,
    )
    guesses = (
        "prices: of Step-3's report, AReaL-Hex publishes none",
        "machines: eight devices each; how many of them: the caller's choice, AReaL-Hex publishes none",
        "network: 400 Gbit/s a device among machines of one type, 25 Gbit/s a device between the types, 10 us",
    )
    return _with_guesses((region,), (), guesses)


def _single_region() -> FleetWithGuesses:
    region = Region(
        name="aws:us-east-1",
        machines=(_machines(A100, 3), _machines(L40S, 3), _machines(L4, 2)),
        fabric_bytes_per_s=_FAST_FABRIC,
    )
    return _with_guesses((region,), (), _COMMON_GUESSES)


def _hybrid() -> FleetWithGuesses:
    """Return two cloud regions and two edge sites."""
    regions = (
        _region("cloud-a", A100, 3),
        _region("cloud-b", L40S, 3),
        _region("edge-a", L4, 1),
        _region("edge-b", L4, 1),
    )
    names = [region.name for region in regions]
    links = [
        link
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        # Every pair is linked. A link that ends at an edge site has the edge's rate.
        for link in _both_ways(a, b, one_way_ms=10.0, gbit_per_s=1.0 if "edge" in a + b else 5.0)
    ]
    guesses = (
        *_COMMON_GUESSES,
        _ONE_WAY,
        "regions: one of A100, one of L40S, and two edge sites of eight L4 each",
        "edge sites: 10 ms as all others; their published 1 Gbit/s is taken for every link that ends at one",
    )
    return _with_guesses(regions, tuple(links), guesses)


def _multi_country() -> FleetWithGuesses:
    """Return three regions in Europe."""
    regions = (_region("aws:eu-west-2", A100, 3), _region("aws:eu-central-1", L40S, 3), _region("aws:eu-west-1", L4, 2))
    names = {region.name for region in regions}
    links = [
        link
        for (a, b), (rtt_ms, gbit_per_s) in _DTFM_MS_GBPS.items()
        if {a, b} <= names
        # The table has round trips; half of one is the delay in one direction.
        for link in _both_ways(a, b, one_way_ms=rtt_ms / 2, gbit_per_s=gbit_per_s)
    ]
    guesses = (
        *_COMMON_GUESSES,
        _ONE_WAY,
        "regions: London with the A100, Frankfurt with the L40S, Ireland with the L4",
        "latency: DT-FM's 6 to 12 ms one way, within the published 5 to 30 ms",
        "bandwidth: nothing is published; DT-FM's 1.08 to 1.14 Gbit/s is taken",
    )
    return _with_guesses(regions, tuple(links), guesses)


def _multi_continent() -> FleetWithGuesses:
    """Return five regions in the United States and Europe."""
    regions = (
        _region("aws:us-east-1", A100, 3),
        _region("aws:us-east-2", L40S, 1),
        _region("aws:eu-west-1", L40S, 2),
        _region("aws:eu-west-2", L4, 1),
        _region("aws:eu-central-1", L4, 1),
    )
    links = [
        link
        for (a, b), (rtt_ms, _) in _DTFM_MS_GBPS.items()
        # The first six letters of a name are cloud and continent, such as `aws:us`.
        for link in _both_ways(a, b, one_way_ms=rtt_ms / 2, gbit_per_s=5.0 if a[:6] == b[:6] else 0.9)
    ]
    guesses = (
        *_COMMON_GUESSES,
        _ONE_WAY,
        "regions: Virginia with the A100, Ohio and Ireland with the L40S, London and Frankfurt with the L4",
        "latency: DT-FM's 5.5 to 49.5 ms one way, within the published 5 to 60 ms",
        "bandwidth: the published range's upper end, 5 Gbit/s, within a continent, its lower, 0.9 Gbit/s, across",
    )
    return _with_guesses(regions, tuple(links), guesses)


def _with_guesses(regions: tuple[Region, ...], links: tuple[Link, ...], guesses: tuple[str, ...]) -> FleetWithGuesses:
    used = sorted({machines.gpu for region in regions for machines in region.machines})
    known = gpu_types()
    return FleetWithGuesses(
        fleet=Fleet(regions=regions, links=links, gpu_types={name: known[name] for name in used}), guesses=guesses
    )


def _region(name: str, gpu: str, num_machines: int) -> Region:
    return Region(name=name, machines=(_machines(gpu, num_machines),), fabric_bytes_per_s=_FAST_FABRIC)


def _machines(gpu: str, num_machines: int) -> Machines:
    rate = _SLOW_FABRIC if gpu == L4 else _FAST_FABRIC
    return Machines(gpu=gpu, gpus_per_machine=_PER_MACHINE, num_machines=num_machines, network_bytes_per_s=rate)


def _both_ways(a: str, b: str, *, one_way_ms: float, gbit_per_s: float) -> tuple[Link, Link]:
    rtt_s, rate = one_way_ms * 2 / 1e3, gbit_per_s * _GBIT
    there = Link(src_region=a, dst_region=b, rtt_s=rtt_s, bytes_per_s=rate)
    return there, Link(src_region=b, dst_region=a, rtt_s=rtt_s, bytes_per_s=rate)
