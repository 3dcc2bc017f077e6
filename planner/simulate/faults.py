"""Faults of a simulated run: devices that vanish and return, and links whose rates change.

Published spot traces are counts of instances over time. Each becomes the fraction of a class's units that is present.
Rows come in parsed; reading files is up to the caller.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from planner.problem.fleet import Fleet
from planner.simulate.settings import SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Fraction of the units on devices of `subject` that is present from `time_s` on."""

    time_s: float
    subject: str
    """Key of a device class, or name of a region, which stands for all of its spot classes."""
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """Change of a link's rate to `factor` times its measured rate, from `time_s` on."""

    time_s: float
    src_region: str
    dst_region: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults of one run, in any order. Of several at the same time, the last one counts."""

    availability: tuple[Availability, ...] = ()
    rates: tuple[RateChange, ...] = ()
    restart_s: float = 120.0
    """Seconds from the return of a device until its engine has weights and takes samples. Chosen by hand."""


NONE = Faults()
"""A run without faults."""


def availability_of(
    counts: Sequence[tuple[float, float]], subject: str, *, most: float = 0.0
) -> tuple[Availability, ...]:
    """Return the availability that rows of (time_s, number of instances) describe; rows are in the order of time.

    `most` is the number of instances that counts as all; 0 stands for the largest count of the rows. Times count from
    the first row. Of several rows with the same time the last one counts, as in traces that are step functions. Raises:
    ValueError if there are no rows, or if a count or time is not a finite number of the right sign.
    """
    if not counts:
        raise ValueError("a spot trace needs at least one row, but has none")
    for time_s, count in counts:
        if not (math.isfinite(time_s) and math.isfinite(count) and count >= 0):
            raise ValueError(
                f"counts of a spot trace must be finite and at least 0, but one is {count:g} at {time_s:g} s"
            )
    whole = most or max(count for _, count in counts)
    # Later rows replace earlier ones of the same time. A count above `most` is as good as all instances.
    last: dict[float, float] = {}
    for time_s, count in counts:
        last[time_s - counts[0][0]] = min(1.0, count / whole) if whole else 0.0
    found: list[Availability] = []
    for time_s in sorted(last):
        # Rows that change nothing would only be events without effect.
        if not found or found[-1].fraction != last[time_s]:
            found.append(Availability(time_s=time_s, subject=subject, fraction=last[time_s]))
    return tuple(found)


def trace_counts(rows: Iterable[Mapping[str, str]]) -> tuple[tuple[float, float], ...]:
    """Return (time_s, number of instances) of the rows of a published trace.

    Known columns: `time_s,n_instances` and `timestamp,n_instances` (Bamboo), `time_ms,event,node,n_nodes` (Bamboo's
    events and Parcae's segments), `time_s,n_gpus` (Sailor). A log that was restarted repeats some minutes: rows that go
    back in time are dropped. Raises: ValueError for other columns, and if there are no rows.
    """
    found: list[tuple[float, float]] = []
    for row in rows:
        time_s, count = _time_s(row), _count(row)
        # A row that goes back in time repeats what an earlier part of the log has.
        if not found or time_s >= found[-1][0]:
            found.append((time_s, count))
    if not found:
        raise ValueError("a spot trace needs at least one row, but has none")
    return tuple(found)


def ticks_counts(gap_s: float, data: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return (time_s, number of instances) of a SkyPilot trace, which has one count every `gap_s` seconds.

    Raises: ValueError if the gap is not a positive number.
    """
    if not (math.isfinite(gap_s) and gap_s > 0):
        raise ValueError(f"the seconds between two counts of a spot trace must be a positive number, not {gap_s:g}")
    return tuple((i * gap_s, float(count)) for i, count in enumerate(data))


def wandering_rates(
    fleet: Fleet, seed: int, until_s: float, *, every_s: float = 60.0, spread: float = 0.2
) -> tuple[RateChange, ...]:
    """Return rate changes with which every link drifts around its measured rate.

    The logarithm of a link's factor is a first-order autoregression with standard deviation `spread`. The mean of the
    factor is 1. It changes every `every_s` seconds until `until_s`.
    """
    keep = SETTINGS.rate_autocorrelation
    found: list[RateChange] = []
    for link in sorted(fleet.links, key=lambda each: (each.src_region, each.dst_region)):
        # The name of the link is part of the seed, so that a link drifts alike whatever other links the fleet has.
        letters = [ord(letter) for letter in f"{link.src_region}>{link.dst_region}"]
        generator = np.random.default_rng([seed, *letters])
        # `level` is a standard normal score at all times: it starts from the stationary distribution.
        level = generator.standard_normal()
        for i in range(int(until_s / every_s) + 1):
            # Subtracting spread^2 / 2 makes the mean of the log-normal factor 1.
            factor = float(np.exp(spread * level - spread**2 / 2))
            found.append(
                RateChange(time_s=i * every_s, src_region=link.src_region, dst_region=link.dst_region, factor=factor)
            )
            # The innovation has variance 1 - keep^2, which keeps the variance of `level` at 1.
            level = keep * level + np.sqrt(1 - keep**2) * generator.standard_normal()
    return tuple(found)


def _time_s(row: Mapping[str, str]) -> float:
    if "time_s" in row:
        return float(row["time_s"])
    if "time_ms" in row:
        return float(row["time_ms"]) / 1000
    if "timestamp" in row:
        # Time zones are ignored: only differences between the rows matter.
        since = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=None) - datetime(1970, 1, 1)
        return since.total_seconds()
    raise ValueError(f"a spot trace needs a column time_s, time_ms or timestamp, but has {', '.join(row)}")


def _count(row: Mapping[str, str]) -> float:
    for name in ("n_instances", "n_nodes", "n_gpus"):
        if name in row:
            return float(row[name])
    raise ValueError(f"a spot trace needs a column n_instances, n_nodes or n_gpus, but has {', '.join(row)}")
