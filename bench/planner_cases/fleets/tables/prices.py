"""Offers of price lists: which instance types can be rented where, with dollars per accelerator and hour.

Price lists are per whole instance. Regions are written `cloud:region`. Accelerators that the catalogue does not know
are left out. If a spot price is empty or equals the on-demand price, there is no spot capacity. The cheapest zone
stands for its region.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.planner_cases.fleets.tables.cells import Row, need_columns, number
from bench.planner_cases.fleets.tables.names import cloud_of
from periplus.errors import ConfigError
from planner.devices.catalogue import gpu_name
from planner.problem.fleet import Machines

_BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One instance type in one region."""

    region: str
    instance_type: str
    gpu: str
    gpus_per_machine: int
    usd_per_gpu_hour: float
    is_spot: bool = False
    network_bytes_per_s: float | None = None
    """Network rate of the whole machine in one direction. None if the list does not state it."""

    def machines(self, num_machines: int) -> Machines:
        """Return a number of these machines as a fleet describes them."""
        whole = self.network_bytes_per_s
        network = None if whole is None else whole / self.gpus_per_machine
        return Machines(
            gpu=self.gpu,
            gpus_per_machine=self.gpus_per_machine,
            num_machines=num_machines,
            usd_per_gpu_hour=self.usd_per_gpu_hour,
            is_spot=self.is_spot,
            network_bytes_per_s=network,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Offers sorted by region, instance type, and on-demand before spot; each occurs once."""

    offers: tuple[Offer, ...]
    guesses: tuple[str, ...] = ()
    """Figures that are not published, and what was chosen instead."""


def aws_on_demand(rows: Sequence[Row]) -> PriceTable:
    """Read `gpu_prices/aws_ondemand_*.csv`. Local zones and government regions are left out."""
    need_columns(rows, (*_INSTANCE, "RegionKind", "Network"), "AWS's price list")
    return _prices([row for row in rows if row["RegionKind"] == "region"], "aws", _network_of_text)


def aws_spot(rows: Sequence[Row]) -> PriceTable:
    """Read `gpu_prices/aws_spot_by_az.csv`, which has on-demand and spot prices."""
    need_columns(rows, (*_INSTANCE, "SpotPrice"), "AWS's spot prices")
    return _prices(rows, "aws", lambda row: None)


def gcp(rows: Sequence[Row]) -> PriceTable:
    """Read `gpu_prices/gcp_gpu_prices.csv`: the newest prices of each machine type, where the type is offered.

    The list also has prices where a type is not offered: rows with ZonesInSkyPilotCatalog 0 are skipped. If the cell is
    empty, nobody checked, and the type is assumed to be offered.
    """
    need_columns(rows, (*_INSTANCE, "SpotPrice", "date", "ZonesInSkyPilotCatalog"), "GCP's price list")
    newest: dict[tuple[str, str], Row] = {}
    for row in rows:
        # Filter after the newest row was found: an offer may have been withdrawn since an older row.
        at = (row["InstanceType"], row["Region"])
        if at not in newest or row["date"] > newest[at]["date"]:
            newest[at] = row
    offered = [row for row in newest.values() if row["ZonesInSkyPilotCatalog"] != "0"]
    prices = _prices(offered, "gcp", lambda row: GCP_NETWORK_GBIT_PER_S.get(row["InstanceType"], 0) * _BYTES_PER_GBIT)
    unseen = sorted({_family(row["InstanceType"]) for row in offered if not row["ZonesInSkyPilotCatalog"]})
    guesses = (f"gcp: whether a region offers {name} is not known, its price is taken to say so" for name in unseen)
    return replace(prices, guesses=("gcp: networks of machine types, recalled from the vendor's pages", *guesses))


def _family(instance_type: str) -> str:
    return instance_type.rpartition("-")[0]


def neoclouds(rows: Sequence[Row]) -> PriceTable:
    """Read `gpu_prices/neoclouds_*.csv`, whose column Provider names the cloud."""
    need_columns(rows, (*_INSTANCE, "SpotPrice", "Provider"), "neoclouds' price list")
    parts = [
        _prices([row for row in rows if row["Provider"] == name], name, lambda row: None)
        for name in sorted({row["Provider"] for row in rows})
    ]
    return merged(parts)


def merged(parts: Sequence[PriceTable]) -> PriceTable:
    """Merge offers. For the same instance type, region and kind the later price counts.

    The network rate that any part states for an instance type holds for all offers of that type.
    """
    best = {_key(offer): offer for part in parts for offer in part.offers}
    # One list states the network of an instance type, another its prices.
    networks = {
        (cloud_of(offer.region), offer.instance_type): offer.network_bytes_per_s
        for part in parts
        for offer in part.offers
        if offer.network_bytes_per_s is not None
    }
    offers = (
        replace(offer, network_bytes_per_s=networks.get((cloud_of(offer.region), offer.instance_type)))
        for _, offer in sorted(best.items())
    )
    return PriceTable(
        offers=tuple(offers),
        guesses=tuple(dict.fromkeys(line for part in parts for line in part.guesses)),
    )


_INSTANCE = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
"""Columns that every price list has."""

GCP_NETWORK_GBIT_PER_S: Mapping[str, float] = {
    "a2-highgpu-1g": 24,
    "a2-highgpu-2g": 32,
    "a2-highgpu-4g": 50,
    "a2-highgpu-8g": 100,
    "a2-megagpu-16g": 100,
    "a2-ultragpu-1g": 24,
    "a2-ultragpu-2g": 32,
    "a2-ultragpu-4g": 50,
    "a2-ultragpu-8g": 100,
    "a3-highgpu-1g": 25,
    "a3-highgpu-2g": 50,
    "a3-highgpu-4g": 100,
    "a3-highgpu-8g": 1000,
    "a3-megagpu-8g": 1800,
    "g2-standard-4": 10,
    "g2-standard-8": 16,
    "g2-standard-12": 16,
    "g2-standard-16": 32,
    "g2-standard-24": 32,
    "g2-standard-32": 32,
    "g2-standard-48": 50,
    "g2-standard-96": 100,
}
"""Network rate of each machine type in Gbit/s, as stated by the vendor. The values are recalled, since the price list
has no such column."""


def _prices(rows: Sequence[Row], cloud: str, network: Callable[[Row], float | None]) -> PriceTable:
    """Return the offers of a price list's rows; of several rows for the same offer the cheapest counts."""
    best: dict[tuple[str, str, int, bool], Offer] = {}
    for row in rows:
        region, instance = f"{cloud}:{row['Region']}", row["InstanceType"]
        where = f"{region}, {instance}"
        try:
            gpu = gpu_name(row["AcceleratorName"])
        # Unknown accelerators are not refused: price lists have many.
        except ConfigError:
            continue
        count = number(row, "AcceleratorCount", where)
        if not count or count != int(count):
            raise ConfigError(f"{where}: AcceleratorCount is {row['AcceleratorCount']!r}, but must be a whole number")
        price = number(row, "Price", where)
        spot = number(row, "SpotPrice", where) if "SpotPrice" in row else None
        # A spot price that does not undercut the on-demand price means that there is no spot capacity.
        has_spot = spot is not None and spot > 0 and (price is None or spot < price)
        for usd, is_spot in ((price, False), (spot if has_spot else None, True)):
            if usd:
                offer = Offer(
                    region=region,
                    instance_type=instance,
                    gpu=gpu,
                    gpus_per_machine=int(count),
                    usd_per_gpu_hour=usd / count,
                    is_spot=is_spot,
                    network_bytes_per_s=network(row) or None,
                )
                before = best.get(_key(offer))
                if before is None or offer.usd_per_gpu_hour < before.usd_per_gpu_hour:
                    best[_key(offer)] = offer
    return PriceTable(offers=tuple(best[key] for key in sorted(best)))


def _key(offer: Offer) -> tuple[str, str, int, bool]:
    return (offer.region, offer.instance_type, offer.gpus_per_machine, offer.is_spot)


_RATE = re.compile(r"(\d+) *(?:Gigabit|Gbps)")
"""Pattern of a rate in AWS's description of a network."""


def _network_of_text(row: Row) -> float | None:
    match = _RATE.search(row["Network"])
    return float(match[1]) * _BYTES_PER_GBIT if match else None
