"""Remarks on an assembled fleet: what is not in it, and why.

If the caller asked for certain regions, nothing is said about others.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from planner.files.importers.names import cloud_of, region_of
from planner.files.importers.network import MeasuredNetwork
from planner.files.importers.prices import PriceTable


def of_links(measured: MeasuredNetwork) -> str:
    """Return the remark on a fleet of several regions without any link between them, with the reasons."""
    reasons = Counter(why for ends, why in measured.gaps if ends[0] != ends[1])
    found = "; ".join(f"in {num:,} of their directions {why}" for why, num in reasons.most_common())
    why = f"; the tables have {found}" if found else ""
    return (
        f"links: 0 between these regions, so no plan will cross them; add a table with throughputs and round trips{why}"
    )


def of_unlinked(measured: MeasuredNetwork, stocked: Collection[str], asked: Sequence[str]) -> Iterator[str]:
    """Yield a remark on each requested region that is in the fleet although no link reaches it."""
    for place, why in measured.unlinked.items():
        if place in stocked and {place, region_of(place)} & {*asked}:
            yield f"{place}: no link reaches it, since most of its directions have {why}; no plan will cross to it"


def of_network(measured: MeasuredNetwork, stocked: Collection[str], asked: Sequence[str]) -> tuple[str, ...]:
    """Return remarks on directions that are not links; if no region was asked for, also on places without machines."""
    if asked:
        return tuple(f"{src} to {dst}: {why}" for (src, dst), why in measured.gaps if {src, dst} <= {*stocked})
    return (*measured.left_out, *(f"{place}: no machines" for place in measured.places if place not in stocked))


def of_prices(offers: PriceTable, asked: Sequence[str], wanted: Collection[str]) -> tuple[str, ...]:
    """Return remarks on unknown accelerators and special regions; `wanted` are the accelerators that were asked for."""
    if not asked and not wanted:
        return offers.left_out
    clouds = {cloud_of(name) for name in asked}
    gpus = [] if wanted else [each for each in offers.unknown_gpus if not asked or each[0] in clouds]
    regions = [name for name in offers.other_regions if not asked or name in asked]
    return PriceTable(offers=(), unknown_gpus=tuple(gpus), other_regions=tuple(regions)).left_out


def of_asked(
    offers: PriceTable, places: Sequence[str], stocked: Collection[str], asked: Sequence[str], wanted: Collection[str]
) -> Iterator[str]:
    """Yield each requested region that has no machines, with the reason; `places` are all places of the tables."""
    for name in asked:
        for place in (place for place in places if name in (place, region_of(place))):
            if place not in stocked:
                yield f"{place}: {_why(offers, region_of(place), wanted)}"


def _why(offers: PriceTable, region: str, wanted: Collection[str]) -> str:
    there = offers.in_region(region)
    if not offers.offers:
        return "no machines, since no price list was given"
    if not there:
        return "no machines there in the price lists"
    if not any(not wanted or offer.gpu in wanted for offer in there):
        return f"no such accelerator in the price lists; they have {', '.join(sorted({o.gpu for o in there}))}"
    return "spot machines only"
