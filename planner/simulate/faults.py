"""What goes wrong while a placement is played: devices that vanish and return, links whose rate changes.

Published spot traces are counts of instances over time; each becomes the fraction of a class that is there. Rows come
in parsed: who reads the files says where they are.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from planner.question.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """From `time_s` on, that fraction of the units on devices of `subject` is there."""

    time_s: float
    subject: str
    """A `DeviceClass.key`, or a region: then all of its spot classes."""
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """From `time_s` on, a link carries that many times its measured rate."""

    time_s: float
    src_region: str
    dst_region: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """In any order; of one time, the later one counts."""

    availability: tuple[Availability, ...] = ()
    rates: tuple[RateChange, ...] = ()
    restart_s: float = 120.0
    """From the return of a device until its engine has weights and takes samples."""


NONE = Faults()


def availability_of(
    counts: Sequence[tuple[float, float]], subject: str, *, most: float = 0.0
) -> tuple[Availability, ...]:
    """From (time_s, instances) rows in the order of time.

    `most`: instances that are all of them; without it the largest count is.

    Of several rows of one time the last counts, as step-wise traces write them.
    Raises: ValueError for no rows, and for what is no count or no time.
    """
    if not counts:
        raise ValueError("a spot trace without a row says nothing")
    for time_s, count in counts:
        if not (math.isfinite(time_s) and math.isfinite(count) and count >= 0):
            raise ValueError(f"a spot trace has counts from 0, not {count:g} at {time_s:g} s")
    whole = most or max(count for _, count in counts)
    last: dict[float, float] = {}
    for time_s, count in counts:
        last[time_s - counts[0][0]] = min(1.0, count / whole) if whole else 0.0
    found: list[Availability] = []
    for time_s in sorted(last):
        if not found or found[-1].fraction != last[time_s]:
            found.append(Availability(time_s=time_s, subject=subject, fraction=last[time_s]))
    return tuple(found)


def trace_counts(rows: Iterable[Mapping[str, str]]) -> tuple[tuple[float, float], ...]:
    """(time_s, instances) of a published trace's rows, whichever of the known columns they have.

    `time_s,n_instances` and `timestamp,n_instances` (Bamboo), `time_ms,event,node,n_nodes` (Bamboo's events and
    Parcae's segments), `time_s,n_gpus` (Sailor). A restarted log repeats some minutes: what goes back in time is left
    out. Raises: ValueError for other columns, and for no rows.
    """
    found: list[tuple[float, float]] = []
    for row in rows:
        time_s, count = _time_s(row), _count(row)
        if not found or time_s >= found[-1][0]:
            found.append((time_s, count))
    if not found:
        raise ValueError("a spot trace without a row says nothing")
    return tuple(found)


def ticks_counts(gap_s: float, data: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """(time_s, instances) of SkyPilot's traces: a count each `gap_s`. Raises: ValueError for a gap that is none."""
    if not (math.isfinite(gap_s) and gap_s > 0):
        raise ValueError(f"a spot trace has a count each so many seconds, not each {gap_s:g}")
    return tuple((i * gap_s, float(count)) for i, count in enumerate(data))


def wandering_rates(
    fleet: Fleet, seed: int, until_s: float, *, every_s: float = 60.0, spread: float = 0.2
) -> tuple[RateChange, ...]:
    """Every link's factor as a log-normal first-order autoregression around 1, `spread` its standard deviation."""
    keep = 0.8
    found: list[RateChange] = []
    for link in sorted(fleet.links, key=lambda each: (each.src_region, each.dst_region)):
        letters = [ord(letter) for letter in f"{link.src_region}>{link.dst_region}"]
        generator = np.random.default_rng([seed, *letters])
        level = generator.standard_normal()
        for i in range(int(until_s / every_s) + 1):
            factor = float(np.exp(spread * level - spread**2 / 2))
            found.append(
                RateChange(time_s=i * every_s, src_region=link.src_region, dst_region=link.dst_region, factor=factor)
            )
            level = keep * level + np.sqrt(1 - keep**2) * generator.standard_normal()
    return tuple(found)


def _time_s(row: Mapping[str, str]) -> float:
    if "time_s" in row:
        return float(row["time_s"])
    if "time_ms" in row:
        return float(row["time_ms"]) / 1000
    if "timestamp" in row:
        since = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=None) - datetime(1970, 1, 1)
        return since.total_seconds()
    raise ValueError(f"a spot trace has a time_s, time_ms or timestamp column, not {', '.join(row)}")


def _count(row: Mapping[str, str]) -> float:
    for name in ("n_instances", "n_nodes", "n_gpus"):
        if name in row:
            return float(row[name])
    raise ValueError(f"a spot trace has an n_instances, n_nodes or n_gpus column, not {', '.join(row)}")
