"""Egress prices: dollars per gigabyte (10^9 bytes) that leaves a region.

List prices of the first volume tier are used.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.planner_cases.fleets.tables.cells import Row, need_columns, number
from bench.planner_cases.fleets.tables.names import cloud_of, region_of
from planner.problem.fleet import Link

_GB_PER_GIB = (1 << 30) / 1e9
"""10^9 bytes per GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """Prices between regions, and to the internet. The internet's price holds for regions of other clouds."""

    usd_per_gbyte: Mapping[tuple[str, str], float]
    internet_usd_per_gbyte: Mapping[str, float]

    def price(self, src: str, dst: str) -> float | None:
        """Return the price of the pair as named, or of its regions, or across clouds that to the internet.

        None means that the price is unknown.
        """
        pairs = ((src, dst), (region_of(src), region_of(dst)))
        if (known := next((p for pair in pairs if (p := self.usd_per_gbyte.get(pair)) is not None), None)) is not None:
            return known
        if cloud_of(src) == cloud_of(dst):
            return None
        return self.internet_usd_per_gbyte.get(region_of(src))


def skyplane(rows: Sequence[Row]) -> Egress:
    """Read `egress_prices/skyplane_egress_usd_per_gb.csv`: the newest date of each pair."""
    need_columns(rows, ("src_region", "dst_region", "usd_per_gb", "date"), "egress prices")
    prices: dict[tuple[str, str], float] = {}
    # Oldest first, so that newer prices replace older ones.
    for row in sorted(rows, key=lambda row: row["date"]):
        pair = (row["src_region"], row["dst_region"])
        if (usd := number(row, "usd_per_gb", f"egress prices, {pair[0]} to {pair[1]}")) is not None:
            prices[pair] = usd
    return Egress(usd_per_gbyte=prices, internet_usd_per_gbyte={})


def aws(rows: Sequence[Row]) -> Egress:
    """Read `egress_prices/aws_transfer_usd_per_gb_*.csv`."""
    need_columns(rows, ("src_region", "dst_region", "usd_per_gb"), "AWS's transfer prices")
    prices: dict[tuple[str, str], float] = {}
    internet: dict[str, float] = {}
    for row in rows:
        src, dst = f"aws:{row['src_region']}", row["dst_region"]
        usd = number(row, "usd_per_gb", f"AWS's transfer prices, {src} to {dst}")
        # Traffic to another cloud has the price to the internet.
        if usd is not None and dst == "internet":
            internet[src] = usd
        elif usd is not None:
            prices[src, f"aws:{dst}"] = usd
    return Egress(usd_per_gbyte=prices, internet_usd_per_gbyte=internet)


def gcp_internet(rows: Sequence[Row]) -> Egress:
    """Read `egress_prices/gcp_internet_egress_*.csv`: worldwide, first tier, converted from dollars per GiB."""
    need_columns(rows, ("src_region", "destination", "tier_tib_per_month", "usd_per_gib"), "GCP's egress prices")
    internet: dict[str, float] = {}
    for row in rows:
        is_first = row["tier_tib_per_month"].startswith("0-")
        if is_first and row["destination"] == "internet_worldwide":
            usd = number(row, "usd_per_gib", f"GCP's egress prices, {row['src_region']}")
            if usd is not None:
                internet[f"gcp:{row['src_region']}"] = usd / _GB_PER_GIB
    return Egress(usd_per_gbyte={}, internet_usd_per_gbyte=internet)


def merged(parts: Iterable[Egress]) -> Egress:
    """Merge several tables; later ones take precedence."""
    prices: dict[tuple[str, str], float] = {}
    internet: dict[str, float] = {}
    for part in parts:
        prices |= part.usd_per_gbyte
        internet |= part.internet_usd_per_gbyte
    return Egress(usd_per_gbyte=prices, internet_usd_per_gbyte=internet)


def with_prices(links: Iterable[Link], egress: Egress) -> tuple[Link, ...]:
    """Return the links with their prices. Links without a known price stay free."""
    return tuple(
        link if (usd := egress.price(link.src_region, link.dst_region)) is None else replace(link, usd_per_gbyte=usd)
        for link in links
    )
