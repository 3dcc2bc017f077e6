"""The emulated network: measured rates and round-trip times from a CSV file, scaled to fit one machine.

The columns are those of the Skyplane grid: `src_region,dst_region,throughput_gbps,rtt_ms`. Other columns are ignored,
and so are lines that start with `#`. A pair may lack a figure as long as nobody uses it: `choose()` refuses regions
that are not in the grid and pairs that were not measured. The preset `off` has no measurements: every link is unlimited
and without delay.

One factor scales all rates, including the caps of nodes. So relative speeds stay as measured, while a user-space relay
can still carry them. Round-trip times are never scaled.
"""

import csv
import difflib
import importlib.resources
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from periplus import errors
from periplus.config import loading
from periplus.wan.shaping import LinkSpec

OFF = "off"
"""Preset without measurements."""
PRESETS = (OFF, "continental", "intercontinental")
"""Names of all presets."""

DEFAULT_REGIONS: Mapping[str, tuple[str, str, str]] = {
    OFF: ("aws:us-east-1", "azure:westeurope", "gcp:asia-northeast1-a"),
    "continental": ("aws:us-east-1", "gcp:us-central1-a", "azure:westus"),
    "intercontinental": ("aws:us-east-1", "azure:westeurope", "gcp:asia-northeast1-a"),
}
"""Regions of each preset unless others are named, one of each cloud."""

TOTAL_BITS_PER_S = 1.5e9
"""Most bits per second that the rates in use may sum to. A plain asyncio relay carries 1 GB/s on two cores, which
training needs too."""

EGRESS_CAP_BITS_PER_S: Mapping[str, float] = {"aws": 5e9, "gcp": 7e9}
"""Cap on a machine's egress by cloud, in bits per second, as the measurements show (data README, network_skyplane)."""

_COLUMNS = ("src_region", "dst_region", "throughput_gbps", "rtt_ms")
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMeasurement:
    """One row of the grid; None for a figure that was not measured."""

    rate_bits_per_s: float | None
    rtt_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNetwork:
    """The links in use with scaled rates, and the caps of their nodes."""

    regions: tuple[str, ...]
    links: Mapping[Pair, LinkSpec]
    egress_bits_per_s: Mapping[str, float]
    ingress_bits_per_s: Mapping[str, float]
    factor: float


def scale(rates_bits_per_s: Iterable[float]) -> float:
    """Return the factor, at most 1, by which the finite rates sum to at most `TOTAL_BITS_PER_S`."""
    total = sum(rate for rate in rates_bits_per_s if rate != math.inf)
    return min(1.0, TOTAL_BITS_PER_S / total) if total else 1.0


def unknown_region(region: str, known: Iterable[str]) -> str:
    """Return the message for a region that is not among `known`, with close matches."""
    names = sorted(known)
    close = difflib.get_close_matches(region, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"
    return f"region {region!r} is not in the network; {hint}"


def parse(text: str, source: str) -> dict[Pair, GridMeasurement]:
    """Return the measured pairs of a CSV text. `source` names the text in messages.

    Raises: ConfigError that names the line.
    """
    # Keep the line numbers of the file, which the reader of the rest does not know.
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    reader = csv.DictReader(line for _, line in lines)
    missing = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise errors.ConfigError(f"{source} has no column {missing[0]!r}; a grid needs {', '.join(_COLUMNS)}")
    pairs: dict[Pair, GridMeasurement] = {}
    for (number, _), row in zip(lines[1:], reader, strict=True):
        where = f"{source} line {number}"
        pair = (row["src_region"] or "", row["dst_region"] or "")
        if not all(pair):
            raise errors.ConfigError(f"{where}: src_region or dst_region is empty; name both")
        if pair[0] == pair[1]:
            continue  # inside a region nothing is emulated
        if pair in pairs:
            raise errors.ConfigError(f"{where}: {pair[0]} to {pair[1]} is there twice; remove one row")
        # A figure that is empty stays None: only a chosen pair needs it.
        rate_gbit_per_s = _figure(row["throughput_gbps"], "throughput_gbps", where, above_zero=True)
        rtt_ms = _figure(row["rtt_ms"], "rtt_ms", where, above_zero=False)
        pairs[pair] = GridMeasurement(
            rate_bits_per_s=None if rate_gbit_per_s is None else rate_gbit_per_s * 1e9,
            rtt_s=None if rtt_ms is None else rtt_ms / 1e3,
        )
    if not pairs:
        raise errors.ConfigError(f"{source} has no rows; a grid needs a row for each directed pair of regions")
    return pairs


def _figure(text: str | None, column: str, where: str, *, above_zero: bool) -> float | None:
    if not text or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        # Text that is no number is refused by the check below, with the same message.
        value = math.nan
    if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
        raise errors.ConfigError(f"{where}: {column} is {text!r}; it must be a positive number, or empty")
    return value


def choose(pairs: Mapping[Pair, GridMeasurement], regions: Sequence[str], source: str) -> EmulatedNetwork:
    """Return the scaled network of `regions` (of all regions of the grid if empty).

    Raises: ConfigError for a region that is not in the grid, and for a pair without a rate or a round-trip time.
    """
    known = sorted({region for pair in pairs for region in pair})
    chosen = _distinct(regions) or tuple(known)
    for region in chosen:
        if region not in known:
            raise errors.ConfigError(f"{source}: {unknown_region(region, known)}")
    measured = {
        (src, dst): _measured(pairs.get((src, dst)), (src, dst), source)
        for src in chosen
        for dst in chosen
        if src != dst
    }
    # One factor for all rates keeps their proportions; round-trip times are not scaled.
    factor = scale(spec.rate_bits_per_s for spec in measured.values())
    return EmulatedNetwork(
        regions=chosen,
        links={
            pair: LinkSpec(rate_bits_per_s=spec.rate_bits_per_s * factor, rtt_s=spec.rtt_s)
            for pair, spec in measured.items()
        },
        egress_bits_per_s={region: _egress_bits_per_s(region, measured) * factor for region in chosen},
        # Only what leaves a region has a cap of its own.
        ingress_bits_per_s=dict.fromkeys(chosen, math.inf),
        factor=factor,
    )


def unlimited(regions: Sequence[str]) -> EmulatedNetwork:
    """Return the network of the preset `off`. `regions` may have any names."""
    chosen = _distinct(regions) or DEFAULT_REGIONS[OFF]
    return EmulatedNetwork(
        regions=chosen,
        links={(src, dst): LinkSpec() for src in chosen for dst in chosen if src != dst},
        egress_bits_per_s=dict.fromkeys(chosen, math.inf),
        ingress_bits_per_s=dict.fromkeys(chosen, math.inf),
        factor=1.0,
    )


def load(grid: str, regions: Sequence[str]) -> EmulatedNetwork:
    """Return the network of a preset or of a CSV file.

    Raises: ConfigError if the file cannot be read or lacks something.
    """
    if grid == OFF:
        return unlimited(regions)
    if grid in PRESETS:
        text = importlib.resources.files(__package__).joinpath("grids", f"{grid}.csv").read_text(encoding="utf-8")
        return choose(parse(text, grid), regions, grid)
    try:
        text = loading.read_text(Path(grid))
    except errors.ConfigError as error:
        raise errors.ConfigError(
            f"cannot read the grid: {error}; a grid is {', '.join(PRESETS)} or the path of a CSV file"
        ) from error
    return choose(parse(text, grid), regions, grid)


def _distinct(regions: Sequence[str]) -> tuple[str, ...]:
    twice = sorted({region for region in regions if regions.count(region) > 1})
    if twice:
        raise errors.ConfigError(f"region {twice[0]!r} is named twice; name each region once")
    return tuple(regions)


def _measured(measurement: GridMeasurement | None, pair: Pair, source: str) -> LinkSpec:
    name = f"{pair[0]} to {pair[1]}"
    if measurement is None:
        raise errors.ConfigError(f"{source} has no row for {name}; add it, or choose other --regions")
    if measurement.rate_bits_per_s is None or measurement.rtt_s is None:
        lacks = "throughput" if measurement.rate_bits_per_s is None else "round-trip time"
        raise errors.ConfigError(f"{source}: {name} has no measured {lacks}; fill it in, or choose other --regions")
    return LinkSpec(rate_bits_per_s=measurement.rate_bits_per_s, rtt_s=measurement.rtt_s)


def _egress_bits_per_s(region: str, measured: Mapping[Pair, LinkSpec]) -> float:
    # Within a cloud's own network a node exceeds its public cap: the cap is at least its fastest measured rate.
    fastest = max((spec.rate_bits_per_s for (src, _), spec in measured.items() if src == region), default=math.inf)
    return max(EGRESS_CAP_BITS_PER_S.get(region.partition(":")[0], math.inf), fastest)
