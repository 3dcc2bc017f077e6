"""Measured links between regions, from the published table of Skyplane.

A direction is a link only if both its throughput and its round trip were measured; the figure of the opposite direction
is never used. Throughputs are in Gbit/s (10^9 bit/s).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.planner_cases.fleets.tables.cells import Row, need_columns, number
from periplus.errors import ConfigError
from planner.problem.fleet import Link

_BYTES_PER_GBIT = 1e9 / 8
"""Bytes of one gigabit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNetwork:
    """Links sorted by their ends."""

    links: tuple[Link, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """All ends of links, sorted."""
        return tuple(sorted({end for link in self.links for end in (link.src_region, link.dst_region)}))

    def among(self, places: Iterable[str]) -> tuple[Link, ...]:
        """Return the links between these places."""
        chosen = frozenset(places)
        return tuple(link for link in self.links if {link.src_region, link.dst_region} <= chosen)


def skyplane_grid(rows: Sequence[Row]) -> MeasuredNetwork:
    """Read a table with src_region, dst_region, throughput_gbps and rtt_ms, such as `network_skyplane/grid.csv`.

    Raises: ConfigError for a missing column, a cell that is no measurement, or a repeated pair.
    """
    need_columns(rows, ("src_region", "dst_region", "throughput_gbps", "rtt_ms"), "network grid")
    links: list[Link] = []
    seen: set[tuple[str, str]] = set()
    # Sorted, so that a fleet does not depend on the order of rows.
    for row in sorted(rows, key=lambda row: (row["src_region"], row["dst_region"])):
        src, dst = row["src_region"], row["dst_region"]
        where = f"network grid, {src} to {dst}"
        gbit_per_s, rtt_ms = number(row, "throughput_gbps", where), number(row, "rtt_ms", where)
        if (src, dst) in seen:
            raise ConfigError(f"{where}: occurs twice; keep one row")
        seen.add((src, dst))
        # A throughput of 0 is no link either.
        if src != dst and gbit_per_s and rtt_ms is not None:
            rate = gbit_per_s * _BYTES_PER_GBIT
            links.append(Link(src_region=src, dst_region=dst, rtt_s=rtt_ms / 1e3, bytes_per_s=rate))
    return MeasuredNetwork(links=tuple(links))
