"""Generated fleets for benchmarks: measured links and listed prices, with random numbers of machines.

No table states how many machines anybody gets, so the numbers are drawn from a seed. Everything else is taken from the
tables; what they lack is named in `guesses`. The same tables and seed give the same fleet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from bench.planner_cases.fleets.fleet_with_guesses import FleetWithGuesses
from bench.planner_cases.fleets.tables import egress, network, prices
from bench.planner_cases.fleets.tables.cells import Row
from bench.planner_cases.fleets.tables.egress import Egress
from bench.planner_cases.fleets.tables.names import cloud_of, region_of
from bench.planner_cases.fleets.tables.network import MeasuredNetwork
from bench.planner_cases.fleets.tables.prices import Offer, PriceTable
from planner.devices.catalogue import gpu_types
from planner.files.loaders import read_rows
from planner.problem.fleet import Fleet, Machines, Region

CLOUDS = ("aws", "azure", "gcp")
"""Clouds whose regions are used."""
_DEFAULT_NETWORK_BYTES_PER_S = 100e9 / 8
"""Network rate of a whole machine whose list does not state it: 100 Gbit/s. Chosen by hand."""
_LARGE = 8
"""Accelerators of a machine from which it counts as large; large machines are drawn this many times as often."""

_AZURE: tuple[tuple[str, str, int, float], ...] = (
    ("Standard_ND96asr_v4", "A100-40GB-SXM", 8, 1600.0),
    ("Standard_ND96amsr_A100_v4", "A100-80GB-SXM", 8, 1600.0),
    ("Standard_ND96isr_H100_v5", "H100-SXM", 8, 3200.0),
    ("Standard_NC64as_T4_v3", "T4", 4, 32.0),
)
"""Azure's instance types: (type, accelerator, accelerators per machine, Gbit/s of the machine). They are recalled from
the vendor's pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Tables from which fleets are generated."""

    network: MeasuredNetwork
    prices: PriceTable
    egress: Egress


def load_tables(data: Path) -> Tables:
    """Return the measured tables below one folder, which is laid out like the data sets. Raises: ConfigError."""

    def rows(name: str) -> tuple[Row, ...]:
        return read_rows(data / name)

    return Tables(
        network=network.skyplane_grid(rows("network_skyplane/grid.csv")),
        # The order matters: of several prices for one offer the later table's counts.
        prices=prices.merged(
            (
                prices.aws_spot(rows("gpu_prices/aws_spot_by_az.csv")),
                prices.aws_on_demand(rows("gpu_prices/aws_ondemand_2026-01-21.csv")),
                prices.gcp(rows("gpu_prices/gcp_gpu_prices.csv")),
                prices.neoclouds(rows("gpu_prices/neoclouds_skypilot_catalog_v8.csv")),
            )
        ),
        egress=egress.merged(
            (
                egress.aws(rows("egress_prices/aws_transfer_usd_per_gb_2022-12-04.csv")),
                egress.gcp_internet(rows("egress_prices/gcp_internet_egress_2025-12-19.csv")),
                egress.skyplane(rows("egress_prices/skyplane_egress_usd_per_gb.csv")),
            )
        ),
    )


def generated_fleet(
    tables: Tables, *, seed: int, num_regions: int, num_gpus: int, clouds: Sequence[str] = CLOUDS
) -> FleetWithGuesses:
    """Return a fleet with these numbers of accelerators and regions, whose links were all measured.

    Clouds take turns in the choice of regions. Raises: ValueError if the tables have too few regions, or if there are
    more regions than accelerators.
    """
    if num_gpus < num_regions:
        raise ValueError(f"{num_gpus} accelerators cannot fill {num_regions} regions")
    # One stream in a fixed order: regions, instance types, numbers of machines. The same seed gives the same fleet.
    rng = np.random.default_rng(seed)
    stock = _stock(tables, clouds)
    places = _places(tables.network, stock, num_regions, clouds, rng)
    counts = _counts({place: _chosen(stock[place], rng) for place in places}, num_gpus, rng)
    links = egress.with_prices(tables.network.among(places), tables.egress)
    caps = _caps(tables.network)
    regions = tuple(_region(place, counts[place], caps) for place in sorted(places))
    known = gpu_types()
    used = sorted({machines.gpu for region in regions for machines in region.machines})
    fleet = Fleet(regions=regions, links=links, gpu_types={name: known[name] for name in used})
    return FleetWithGuesses(fleet=fleet, guesses=(*_GUESSES, *tables.prices.guesses))


def benchmark_fleets(tables: Tables) -> tuple[FleetWithGuesses, ...]:
    """Return twenty fleets of 3 to 20 regions of three clouds, with 32 accelerators per region."""
    sizes = [3 + 17 * i // 19 for i in range(20)]
    return tuple(generated_fleet(tables, seed=i, num_regions=n, num_gpus=32 * n) for i, n in enumerate(sizes))


def scaled_fleet(tables: Tables, num_gpus: int, seed: int = 0) -> FleetWithGuesses:
    """Return a fleet of 4 regions up to 64 accelerators, of 16 up to 1,024, otherwise of 32."""
    num_regions = 4 if num_gpus <= 64 else 16 if num_gpus <= 1024 else 32
    return generated_fleet(tables, seed=seed, num_regions=num_regions, num_gpus=num_gpus)


_GUESSES = (
    "numbers of machines: drawn",
    "azure: no price list by region was found; instance types are recalled, and the price of a type is the median of "
    "the other clouds' on demand",
    "network of a machine, where no list says: 100 Gbit/s",
    "egress, where no table has a price: free",
    "caps of a region's gateway: the largest rate measured out of it and into it, as one gateway measured them all",
)
"""Figures that no table states, and what is used instead."""


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _stock(tables: Tables, clouds: Sequence[str]) -> Mapping[str, tuple[Offer, ...]]:
    """Return the offers of each measured place. Places without offers are absent."""
    by_region: dict[str, list[Offer]] = {}
    for offer in tables.prices.offers:
        by_region.setdefault(offer.region, []).append(offer)
    # No price list has Azure, whose places all get the same offers.
    azure = _azure_offers(tables.prices.offers)
    stock = {}
    for place in tables.network.places:
        cloud = cloud_of(place)
        offers = azure if cloud == "azure" else tuple(by_region.get(region_of(place), ()))
        if cloud in clouds and offers:
            stock[place] = offers
    return stock


def _azure_offers(others: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return Azure's instance types at the median on-demand price of the same accelerator in other clouds."""
    offers = []
    for instance, gpu, count, gbit in _AZURE:
        prices = [offer.usd_per_gpu_hour for offer in others if offer.gpu == gpu and not offer.is_spot]
        # An accelerator that no other cloud offers on demand has no price, so its type is left out.
        if prices:
            offers.append(
                Offer(
                    region="azure",
                    instance_type=instance,
                    gpu=gpu,
                    gpus_per_machine=count,
                    usd_per_gpu_hour=median(prices),
                    network_bytes_per_s=gbit * 1e9 / 8,
                )
            )
    return tuple(offers)


def _places(
    network: MeasuredNetwork,
    stock: Mapping[str, tuple[Offer, ...]],
    num_regions: int,
    clouds: Sequence[str],
    rng: np.random.Generator,
) -> tuple[str, ...]:
    """Draw regions, one cloud after the other, such that all pairs were measured."""
    measured = {(link.src_region, link.dst_region) for link in network.links}
    # A shuffled queue for each cloud. Clouds take turns until there are enough regions or all queues are empty.
    queues = {cloud: [place for place in sorted(stock) if cloud_of(place) == cloud] for cloud in sorted(clouds)}
    for queue in queues.values():
        rng.shuffle(queue)
    chosen: list[str] = []
    while len(chosen) < num_regions and any(queues.values()):
        for cloud in queues:
            while queues[cloud] and len(chosen) < num_regions:
                place = queues[cloud].pop()
                # A place that lacks a direction to a chosen one can never be used later, so it is not put back.
                if all((place, other) in measured and (other, place) in measured for other in chosen):
                    chosen.append(place)
                    break
    if len(chosen) < num_regions:
        raise ValueError(
            f"only {len(chosen)} of {num_regions} regions of {', '.join(clouds)} are measured in all pairs"
        )
    return tuple(chosen)


def _chosen(offers: Sequence[Offer], rng: np.random.Generator) -> tuple[Offer, ...]:
    """Draw one to three on-demand instance types with different accelerators, and some of their spot offers."""
    on_demand = [offer for offer in offers if not offer.is_spot]
    spot = {(offer.instance_type, offer.gpus_per_machine): offer for offer in offers if offer.is_spot}
    # Large machines are more likely, as in clusters that train.
    weights = np.array([_LARGE if offer.gpus_per_machine >= _LARGE else 1 for offer in on_demand], dtype=float)
    order = rng.choice(len(on_demand), size=len(on_demand), replace=False, p=weights / weights.sum())
    num = int(rng.integers(1, 4))
    chosen: dict[str, Offer] = {}
    for i in order:
        if len(chosen) < num:
            # A type with an accelerator that was drawn already is skipped.
            chosen.setdefault(on_demand[i].gpu, on_demand[i])
    also = (spot.get((offer.instance_type, offer.gpus_per_machine)) for offer in chosen.values())
    return (*chosen.values(), *(offer for offer in also if offer is not None and rng.random() < 0.5))


def _counts(
    stock: Mapping[str, tuple[Offer, ...]], num_gpus: int, rng: np.random.Generator
) -> Mapping[str, list[Machines]]:
    """Draw the machines of each place: one of its first offer, then more until all accelerators are placed."""
    slots = [(place, offer) for place, offers in stock.items() for offer in offers]
    # Popularity of each offer, by which further machines are drawn.
    weights = rng.dirichlet(np.full(len(slots), 2.0))
    num_machines = dict.fromkeys(range(len(slots)), 0)
    partial: dict[int, int] = {}
    firsts = [next(i for i, slot in enumerate(slots) if slot[0] == place) for place in stock]
    left = num_gpus
    for i, first in enumerate(firsts):
        # Every place gets at least one accelerator: a whole machine, or part of one if the others would get none.
        size, spare = slots[first][1].gpus_per_machine, left - (len(firsts) - 1 - i)
        if size <= spare:
            num_machines[first] += 1
        else:
            partial[first] = spare
        left -= min(size, spare)
    # Fill up with whole machines that fit; the remainder becomes part of a machine of a random place.
    while left:
        fitting = [i for i, (_, offer) in enumerate(slots) if offer.gpus_per_machine <= left]
        if not fitting:
            at = firsts[int(rng.integers(len(firsts)))]
            partial[at] = partial.get(at, 0) + left
            break
        at = int(rng.choice(fitting, p=weights[fitting] / weights[fitting].sum()))
        num_machines[at] += 1
        left -= slots[at][1].gpus_per_machine
    found: dict[str, list[Machines]] = {place: [] for place in stock}
    for i, (place, offer) in enumerate(slots):
        if num_machines[i]:
            found[place].append(_with_network(offer).machines(num_machines[i]))
        if i in partial:
            found[place].append(replace(_with_network(offer).machines(1), gpus_per_machine=partial[i]))
    return found


def _with_network(offer: Offer) -> Offer:
    return offer if offer.network_bytes_per_s else replace(offer, network_bytes_per_s=_DEFAULT_NETWORK_BYTES_PER_S)


def _caps(network: MeasuredNetwork) -> Mapping[tuple[str, str], float]:
    """Return the largest measured rate out of ("up") and into ("down") each region, as caps of its gateway."""
    caps: dict[tuple[str, str], float] = {}
    for link in network.links:
        for end in (("up", link.src_region), ("down", link.dst_region)):
            caps[end] = max(caps.get(end, 0.0), link.bytes_per_s)
    return caps


def _region(place: str, machines: Sequence[Machines], caps: Mapping[tuple[str, str], float]) -> Region:
    return Region(
        name=place,
        machines=tuple(machines),
        fabric_bytes_per_s=max(each.network_bytes_per_s or 0.0 for each in machines),
        wan_up_bytes_per_s=caps["up", place],
        wan_down_bytes_per_s=caps["down", place],
    )
