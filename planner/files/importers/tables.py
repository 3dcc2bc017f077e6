"""Recognition of tables by their header, and their rows. Lines of a CSV table that begin with `#` are comments."""

import csv
import io
from collections.abc import Iterator
from enum import StrEnum

from periplus.errors import ConfigError
from planner.files.importers.cells import Row


class TableKind(StrEnum):
    """Kinds of tables that are understood."""

    GRID = "network grid"
    THROUGHPUT = "throughput runs"
    ROUND_TRIPS = "round-trip runs"
    DTFM = "DT-FM's delays and bandwidths"
    SAILOR = "Sailor's machine-to-machine bandwidths"
    IBM = "IBM's round trips"
    AWS_PRICES = "AWS's prices on demand"
    AWS_SPOT = "AWS's spot prices"
    GCP_PRICES = "GCP's prices"
    NEOCLOUDS = "neoclouds' prices"
    EGRESS = "egress prices between regions"
    AWS_EGRESS = "AWS's transfer prices"
    GCP_EGRESS = "GCP's egress prices"


_HEADERS: tuple[tuple[TableKind, frozenset[str]], ...] = (
    (TableKind.DTFM, frozenset({"src_region", "throughput_gbps", "rtt_ms", "scenario"})),
    (TableKind.GRID, frozenset({"src_region", "dst_region", "throughput_gbps", "rtt_ms"})),
    (TableKind.THROUGHPUT, frozenset({"src_region", "dst_region", "throughput_gbps", "date"})),
    (TableKind.ROUND_TRIPS, frozenset({"src_region", "dst_region", "rtt_ms", "date"})),
    (TableKind.SAILOR, frozenset({"src_zone", "dst_zone", "max_gbytes_per_s", "cluster"})),
    (TableKind.IBM, frozenset({"src_region", "dst_region", "rtt_ms", "month_ending"})),
    (TableKind.AWS_PRICES, frozenset({"InstanceType", "Price", "RegionKind"})),
    (TableKind.GCP_PRICES, frozenset({"InstanceType", "Price", "ZonesInSkyPilotCatalog"})),
    (TableKind.NEOCLOUDS, frozenset({"InstanceType", "Price", "Provider"})),
    (TableKind.AWS_SPOT, frozenset({"InstanceType", "SpotPrice", "AvailabilityZone"})),
    (TableKind.EGRESS, frozenset({"src_region", "dst_region", "usd_per_gb", "date"})),
    (TableKind.AWS_EGRESS, frozenset({"src_region", "dst_region", "usd_per_gb"})),
    (TableKind.GCP_EGRESS, frozenset({"src_region", "destination", "usd_per_gib"})),
)
"""Columns that identify each kind; the first match counts."""


def kind_of(text: str, source: str) -> TableKind:
    """Return the kind of a text. Raises: ConfigError, which lists the known kinds."""
    first = next(_lines(text), "").strip()
    if not first:
        raise ConfigError(f"{source}: is empty")
    columns = frozenset(name.strip() for name in first.split(","))
    for kind, needed in _HEADERS:
        # The first match counts: some tables have all columns of a later kind.
        if needed <= columns:
            return kind
    known = "; ".join(f"{kind.value}: {', '.join(sorted(needed))}" for kind, needed in _HEADERS)
    raise ConfigError(
        f"{source}: begins with {first[:120]!r}, which is no table that is known; those are CSV with these columns: "
        f"{known}"
    )


def rows_of(text: str, source: str) -> tuple[Row, ...]:
    """Return the rows of a CSV text. Raises: ConfigError."""
    try:
        rows = tuple(csv.DictReader(_lines(text)))
    except csv.Error as error:
        raise ConfigError(f"{source}: cannot be read as CSV: {error}") from error
    for i, row in enumerate(rows):
        if None in row or None in row.values():
            raise ConfigError(f"{source}, row {i + 1}: has not as many values as the header; is the file complete?")
    return rows


def _lines(text: str) -> Iterator[str]:
    """Yield the lines with their ends, without comments and empty lines."""
    lines = io.StringIO(text.lstrip("\ufeff"), newline="")
    return (line for line in lines if line.strip() and not line.startswith("#"))
