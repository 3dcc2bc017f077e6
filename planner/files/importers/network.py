"""Measured links between regions, from published tables.

A direction becomes a link only if both its throughput and its round trip were measured. Otherwise it is named in
`gaps`; the figure of the opposite direction is never used. Throughputs are in Gbit/s (10^9 bit/s) in all tables but
Sailor's, which has 10^9 bytes per second.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from periplus.errors import ConfigError
from planner.files.importers.cells import Row, need_columns, number
from planner.files.importers.names import DTFM_CITIES, region_of
from planner.problem.fleet import Link

Pair = tuple[str, str]
"""Source and destination of a direction."""
_BYTES_PER_GBIT = 1e9 / 8
"""Bytes of one gigabit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNetwork:
    """Links sorted by their ends, and all round trips, including those of pairs without throughput."""

    links: tuple[Link, ...]
    rtt_s: Mapping[Pair, float]
    gaps: tuple[tuple[Pair, str], ...] = ()
    """Directions that are not links, with the reason."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """One sentence per gap."""
        return tuple(f"{src} to {dst}: {why}" for (src, dst), why in self.gaps)

    @property
    def places(self) -> tuple[str, ...]:
        """All ends of links, sorted."""
        return tuple(sorted({end for link in self.links for end in (link.src_region, link.dst_region)}))

    @property
    def unlinked(self) -> Mapping[str, str]:
        """Reason by place, for places that tables name but that no link ends at: what most of their directions lack."""
        reasons: dict[str, Counter[str]] = {}
        for ends, why in self.gaps:
            for end in ends:
                reasons.setdefault(end, Counter())[why] += ends[0] != ends[1]
        linked = {*self.places}
        return {end: found.most_common(1)[0][0] for end, found in sorted(reasons.items()) if end not in linked}

    def among(self, places: Iterable[str]) -> tuple[Link, ...]:
        """Return the links between these places."""
        chosen = frozenset(places)
        return tuple(link for link in self.links if {link.src_region, link.dst_region} <= chosen)


def skyplane_grid(rows: Sequence[Row]) -> MeasuredNetwork:
    """Read a table with src_region, dst_region, throughput_gbps and rtt_ms, such as `network_skyplane/grid.csv`."""
    need_columns(rows, ("src_region", "dst_region", "throughput_gbps", "rtt_ms"), "network grid")
    cells = []
    for row in rows:
        src, dst = row["src_region"], row["dst_region"]
        where = f"network grid, {src} to {dst}"
        gbit, rtt_ms = number(row, "throughput_gbps", where), number(row, "rtt_ms", where)
        cells.append(((src, dst), None if gbit is None else gbit * _BYTES_PER_GBIT, rtt_ms))
    return _measured(cells, "network grid")


def skyplane_runs(throughput_rows: Sequence[Row], rtt_rows: Sequence[Row]) -> MeasuredNetwork:
    """Read Skyplane's runs (`throughput_*.csv`, `rtt_*.csv`), one row per run, joined by pair.

    Only the premium network tier counts. Of several dates the newest counts, and of its runs the tenth percentile of
    throughput and the least round trip.
    """
    rates = _newest_runs(throughput_rows, "throughput_gbps", "throughput runs")
    rtts = {pair: min(values) for pair, values in _newest_runs(rtt_rows, "rtt_ms", "round-trip runs").items()}
    found = _measured(
        (
            (pair, _BYTES_PER_GBIT * float(np.quantile(rates[pair], 0.1)) if pair in rates else None, rtts.get(pair))
            # Pairs of which only one of both was measured stay in, so that they are named as gaps.
            for pair in sorted(rates.keys() | rtts.keys())
        ),
        "Skyplane's runs",
    )
    links = tuple(_with_samples(link, rates[link.src_region, link.dst_region]) for link in found.links)
    return replace(found, links=links)


def _newest_runs(rows: Sequence[Row], column: str, what: str) -> dict[Pair, list[float]]:
    """Return the values of each pair on its newest date. Rows of the standard network tier are skipped."""
    need_columns(rows, ("src_region", "dst_region", column, "date"), what)
    dates: dict[Pair, str] = {}
    values: dict[Pair, list[float]] = {}
    for row in rows:
        pair = (row["src_region"], row["dst_region"])
        value = number(row, column, f"{what}, {pair[0]} to {pair[1]}")
        if (
            value is None
            or "STANDARD" in (row.get("src_tier"), row.get("dst_tier"))
            # Dates are ISO texts, which sort as dates. The empty text is before all of them.
            or row["date"] < dates.get(pair, "")
        ):
            continue
        # A newer date discards what was collected for older ones.
        if row["date"] > dates.get(pair, ""):
            values[pair] = []
        dates[pair] = row["date"]
        values[pair].append(value)
    return values


def _with_samples(link: Link, gbit_per_s: Sequence[float]) -> Link:
    if len(gbit_per_s) == 1:
        return link
    median = float(np.median(gbit_per_s)) * _BYTES_PER_GBIT
    return replace(link, bytes_per_s_p50=median, num_samples=len(gbit_per_s))


def dtfm(rows: Sequence[Row], scenario: str = "worldwide_10_regions") -> MeasuredNetwork:
    """Read `network_dtfm/aws_delay_bandwidth.csv`. Its pairs hold in both directions; cities become AWS regions."""
    need_columns(rows, ("src_region", "dst_region", "throughput_gbps", "rtt_ms", "scenario"), "DT-FM's table")
    cells = []
    for row in rows:
        if row["scenario"] != scenario:
            continue
        a, b = (DTFM_CITIES.get(row[name], row[name]) for name in ("src_region", "dst_region"))
        where = f"DT-FM's table, {a} to {b}"
        gbit, rtt_ms = number(row, "throughput_gbps", where), number(row, "rtt_ms", where)
        rate = None if gbit is None else gbit * _BYTES_PER_GBIT
        # The table has each pair once.
        cells += [((a, b), rate, rtt_ms), ((b, a), rate, rtt_ms)]
    if not cells:
        scenarios = ", ".join(sorted({row["scenario"] for row in rows}))
        raise ConfigError(f"DT-FM's table: no row of scenario {scenario!r}; it has {scenarios}")
    return _measured(cells, "DT-FM's table")


def sailor(rows: Sequence[Row], rtt_s: Mapping[Pair, float]) -> MeasuredNetwork:
    """Read `network_sailor/vm_to_vm_bandwidth.csv`: links between zones, measured with the largest machines.

    The table has no round trips: `rtt_s` gives those of zones or regions. Rows of private clusters are skipped.
    """
    names = ("src_zone", "dst_zone", "src_gpus_per_vm", "dst_gpus_per_vm", "max_gbytes_per_s", "cluster")
    need_columns(rows, names, "Sailor's table")
    # Round trips between regions stand in for zones that were not measured. In reverse order, the first of several
    # pairs of zones wins.
    by_region = {(region_of(src), region_of(dst)): rtt for (src, dst), rtt in sorted(rtt_s.items(), reverse=True)}
    best: dict[Pair, tuple[float, float]] = {}
    for row in rows:
        src, dst = f"gcp:{row['src_zone']}", f"gcp:{row['dst_zone']}"
        where = f"Sailor's table, {src} to {dst}"
        rate = number(row, "max_gbytes_per_s", where)
        if row["cluster"] != "gcp" or src == dst or rate is None:
            continue
        size = min(number(row, "src_gpus_per_vm", where) or 0, number(row, "dst_gpus_per_vm", where) or 0)
        # Pairs (accelerators of the smaller machine, rate): the largest machines count, and the best of their rates.
        best[src, dst] = max(best.get((src, dst), (0.0, 0.0)), (size, rate * 1e9))
    cells = []
    for pair, (_, rate) in best.items():
        rtt = rtt_s.get(pair, by_region.get((region_of(pair[0]), region_of(pair[1]))))
        cells.append((pair, rate, None if rtt is None else rtt * 1e3))
    return _measured(cells, "Sailor's table")


def ibm_round_trips(rows: Sequence[Row]) -> MeasuredNetwork:
    """Read `network_ibm/rtt_monthly_mean.csv`: round trips of the newest month. Without throughput none is a link."""
    need_columns(rows, ("src_region", "dst_region", "rtt_ms", "month_ending"), "IBM's table")
    newest = max(row["month_ending"] for row in rows)
    cells: list[tuple[Pair, float | None, float | None]] = []
    for row in rows:
        if row["month_ending"] == newest:
            src, dst = row["src_region"], row["dst_region"]
            cells.append(((src, dst), None, number(row, "rtt_ms", f"IBM's table, {src} to {dst}")))
    return _measured(cells, "IBM's table")


def merged(parts: Sequence[MeasuredNetwork]) -> MeasuredNetwork:
    """Merge several tables; later ones take precedence."""
    links = {(link.src_region, link.dst_region): link for part in parts for link in part.links}
    return MeasuredNetwork(
        links=tuple(links[pair] for pair in sorted(links)),
        rtt_s={pair: rtt for part in parts for pair, rtt in part.rtt_s.items()},
        gaps=tuple(gap for part in parts for gap in part.gaps),
    )


def _measured(cells: Iterable[tuple[Pair, float | None, float | None]], what: str) -> MeasuredNetwork:
    """Return the links of (pair, bytes per second, round trip in ms) cells. Raises: ConfigError for a repeated pair."""
    links: list[Link] = []
    gaps: list[tuple[Pair, str]] = []
    rtt_s: dict[Pair, float] = {}
    seen: set[Pair] = set()
    # Sorted, so that a fleet does not depend on the order of rows.
    for pair, bytes_per_s, rtt_ms in sorted(cells, key=lambda cell: cell[0]):
        if pair in seen:
            raise ConfigError(f"{what}: {pair[0]} to {pair[1]} occurs twice; keep one row")
        seen.add(pair)
        # Kept even without a throughput, since another table may lack the round trip.
        if rtt_ms is not None:
            rtt_s[pair] = rtt_ms / 1e3
        lacks = [name for name, value in (("throughput", bytes_per_s), ("round trip", rtt_ms)) if value is None]
        if pair[0] == pair[1]:
            gaps.append((pair, "within one region"))
        elif bytes_per_s and rtt_ms is not None:
            links.append(Link(src_region=pair[0], dst_region=pair[1], rtt_s=rtt_ms / 1e3, bytes_per_s=bytes_per_s))
        else:
            gaps.append((pair, f"no {' and no '.join(lacks)} measured" if lacks else "throughput 0"))
    return MeasuredNetwork(links=tuple(links), rtt_s=rtt_s, gaps=tuple(gaps))
