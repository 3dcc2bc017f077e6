"""Assembly of a fleet from the tables that are given to `periplus fleet import`.

Links come from network tables, machines from price lists, and egress prices from egress tables. A price list states
what can be rented but not how many machines are available: the caller gives that number. Of several instance types with
the same accelerator, the one with most accelerators per machine is chosen, for on-demand and for spot machines. What an
agent's machines have is in what `periplus region export` prints.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from periplus.errors import ConfigError
from planner.devices.catalogue import gpu_name, gpu_types
from planner.files.importers import egress, network, prices, remarks
from planner.files.importers.cells import Row
from planner.files.importers.imported import Imported
from planner.files.importers.names import region_of
from planner.files.importers.network import MeasuredNetwork
from planner.files.importers.prices import Offer, PriceTable
from planner.files.importers.tables import TableKind, kind_of, rows_of
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.ranges import some

T = TypeVar("T")

DEFAULT_NETWORK_BYTES_PER_S = 100e9 / 8
"""Network rate of a whole machine whose list does not state it: 100 Gbit/s. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Options of an import, in addition to the tables."""

    regions: Sequence[str] = ()
    """Regions to import, by the names of the network table or without zones. Empty stands for all that have
    machines."""
    gpus: Sequence[str] = ()
    """Accelerators to take from price lists. Empty stands for all."""
    num_machines: int = 1
    """Number of machines of each chosen instance type in each region."""
    with_spot: bool = True
    """Whether spot machines are imported."""


def import_fleet(texts: Mapping[str, str], choice: Choice = Choice()) -> Imported:
    """Return the fleet that these texts describe; keys are file names. Raises: ConfigError."""
    tables = _Tables.of(texts)
    measured, offers = tables.network(), tables.prices()
    wanted = frozenset(gpu_name(gpu) for gpu in choice.gpus)
    # Without a network table the regions are those of the price lists. Measured places that no link reaches are left
    # out unless the caller names them.
    places = measured.places or tuple(dict.fromkeys(offer.region for offer in offers.offers))
    asked = [place for place in measured.unlinked if {place, region_of(place)} & {*choice.regions}]
    places = (*places, *(place for place in asked if place not in places))
    stock = _stock(places, offers, choice, wanted)
    missing = tuple(remarks.of_asked(offers, places, stock, choice.regions, wanted))
    if not stock:
        raise ConfigError(
            f"no region has machines: give a price list beside {', '.join(texts)}, or choose other regions and "
            "accelerators" + "".join(f"\n{remark}" for remark in missing)
        )
    links, unpriced = tables.priced(measured.among(stock))
    # The fleet carries only types that it uses.
    used = sorted({machines.gpu for each in stock.values() for machines in each})
    fleet = Fleet(
        regions=tuple(_region(name, stock[name]) for name in sorted(stock)),
        links=links,
        gpu_types={name: gpu_types()[name] for name in used},
    )
    left_out = (
        *missing,
        *((remarks.of_links(measured),) if len(stock) > 1 and not links else ()),
        *remarks.of_unlinked(measured, stock, choice.regions),
        *remarks.of_prices(offers, choice.regions, wanted),
        *unpriced,
        *remarks.of_network(measured, stock, choice.regions),
    )
    return Imported(fleet=fleet, left_out=left_out, guesses=_guesses(offers, stock, choice))


@dataclass(frozen=True, slots=True)
class _Tables:
    """The given texts by kind of table."""

    texts: tuple[tuple[TableKind, str, str], ...]
    """Triples (kind, file name, text)."""

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "_Tables":
        """Recognise each text. Raises: ConfigError for an unknown kind."""
        return cls(tuple((kind_of(text, source), source, text) for source, text in texts.items()))

    def rows(self, kind: TableKind) -> list[tuple[Row, ...]]:
        """Return the rows of each table of this kind."""
        return [rows_of(text, source) for each, source, text in self.texts if each is kind]

    def read(self, kind: TableKind, reader: Callable[[Sequence[Row]], T]) -> list[T]:
        """Apply a reader to each table of this kind; its errors name the file."""
        found = []
        for each, source, text in self.texts:
            if each is kind:
                rows = rows_of(text, source)
                with _named(source):
                    found.append(reader(rows))
        return found

    def network(self) -> MeasuredNetwork:
        """Return the measured links of all network tables."""
        parts = self.read(TableKind.GRID, network.skyplane_grid)
        rates = [row for rows in self.rows(TableKind.THROUGHPUT) for row in rows]
        round_trips = [row for rows in self.rows(TableKind.ROUND_TRIPS) for row in rows]
        if rates or round_trips:
            if not (rates and round_trips):
                raise ConfigError("throughput runs and round-trip runs make links only together; give both tables")
            parts.append(network.skyplane_runs(rates, round_trips))
        parts += self.read(TableKind.DTFM, network.dtfm)
        parts += self.read(TableKind.IBM, network.ibm_round_trips)
        # Sailor's table has no round trips, so it is read last and takes those of the other tables.
        rtt_s = {pair: rtt for part in parts for pair, rtt in part.rtt_s.items()}
        parts += self.read(TableKind.SAILOR, lambda rows: network.sailor(rows, rtt_s))
        return network.merged(parts)

    def prices(self) -> PriceTable:
        """Return the offers of all price lists."""
        readers: tuple[tuple[TableKind, Callable[[Sequence[Row]], PriceTable]], ...] = (
            (TableKind.AWS_SPOT, prices.aws_spot),
            (TableKind.AWS_PRICES, prices.aws_on_demand),
            (TableKind.GCP_PRICES, prices.gcp),
            (TableKind.NEOCLOUDS, prices.neoclouds),
        )
        return prices.merged([part for kind, reader in readers for part in self.read(kind, reader)])

    def priced(self, links: Sequence[Link]) -> tuple[tuple[Link, ...], tuple[str, ...]]:
        """Return the links with egress prices, and a sentence for each link without a known price."""
        parts = self.read(TableKind.AWS_EGRESS, egress.aws)
        parts += self.read(TableKind.GCP_EGRESS, egress.gcp_internet)
        parts += self.read(TableKind.EGRESS, egress.skyplane)
        return egress.with_prices(links, egress.merged(parts)) if parts else (tuple(links), ())


@contextmanager
def _named(source: str) -> Iterator[None]:
    """Prefix the messages of ConfigError with the file's name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _stock(
    places: Sequence[str], offers: PriceTable, choice: Choice, wanted: Collection[str]
) -> dict[str, tuple[Machines, ...]]:
    """Return the machines of each place that the choice leaves. Raises: ConfigError for an unknown region."""
    unknown = [name for name in choice.regions if name not in {*places, *map(region_of, places)}]
    if unknown:
        raise ConfigError(f"no table has the region {some(unknown)}; they have {some(places, 60) or 'none'}")
    stock = {}
    for place in places:
        if choice.regions and not {place, region_of(place)} & set(choice.regions):
            continue
        # Of several instance types with one accelerator only the largest is rented.
        taken = [
            offer.machines(choice.num_machines)
            for offer in _largest(offers.in_region(region_of(place)))
            if (not wanted or offer.gpu in wanted) and (choice.with_spot or not offer.is_spot)
        ]
        if taken:
            stock[place] = tuple(taken)
    return stock


def _largest(offers: Sequence[Offer]) -> list[Offer]:
    """Return, for each accelerator on demand and on spot, the offer with most accelerators, then the cheapest."""
    best: dict[tuple[str, bool], Offer] = {}
    for offer in offers:
        at = (offer.gpu, offer.is_spot)
        before = best.get(at)
        rank = (-offer.gpus_per_machine, offer.usd_per_gpu_hour, offer.instance_type)
        if before is None or rank < (-before.gpus_per_machine, before.usd_per_gpu_hour, before.instance_type):
            best[at] = offer
    return [best[at] for at in sorted(best)]


def _region(name: str, machines: Sequence[Machines]) -> Region:
    known = tuple(
        each
        if each.network_bytes_per_s
        else replace(each, network_bytes_per_s=DEFAULT_NETWORK_BYTES_PER_S / each.gpus_per_machine)
        for each in machines
    )
    return Region(name=name, machines=known, fabric_bytes_per_s=max(each.network_bytes_per_s or 0.0 for each in known))


def _guesses(offers: PriceTable, stock: Mapping[str, Sequence[Machines]], choice: Choice) -> tuple[str, ...]:
    guesses = [*offers.guesses]
    if offers.offers:
        guesses.append(f"numbers of machines: {choice.num_machines} of each instance type; no list says what one gets")
    if any(each.network_bytes_per_s is None for machines in stock.values() for each in machines):
        guesses.append(
            "network, where nothing says: 100 Gbit/s a machine, shared by its devices (network_bytes_per_s is of one)"
        )
    return tuple(guesses)
