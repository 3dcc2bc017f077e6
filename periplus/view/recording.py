"""Recording of a watched job's events in its run directory, and reading them back in order.

The trainer writes its records to metrics.jsonl. `recorded` appends each snapshot of the fleet to fleet.jsonl, one line
each, with the time of the newest record (in seconds since the trainer's start). `read_events` uses these times to merge
both files into one sequence.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict

from periplus.config import finite_json
from periplus.errors import ConfigError, DiskFull, NotFound
from periplus.job.run_directory import RunDirectory, append_line, read_lines
from periplus.view.state import Event, FleetSeen, LinkSeen, RecordSeen, RegionSeen, TaskRole, TaskSeen


async def recorded(events: AsyncIterator[Event], directory: RunDirectory) -> AsyncIterator[Event]:
    """Yield the same events, and append each fleet snapshot to the run directory.

    A snapshot that finds the disk full is not written: a picture can do with the others, and the watching goes on.
    """
    time_s = 0.0
    async for event in events:
        match event:
            case RecordSeen():
                # A snapshot gets the job's own time, by which `read_events` merges it with the records.
                time_s = max(time_s, event.record.time_s)
            case FleetSeen():
                with contextlib.suppress(DiskFull):
                    append_line(directory.fleet, encode_fleet(event, time_s))
        yield event


def encode_fleet(fleet: FleetSeen, time_s: float) -> str:
    """Return a line of fleet.jsonl, without its newline. `time_s` is that of the newest record."""
    return finite_json.dumps({"time_s": round(time_s, 4), **asdict(fleet)})


def decode_fleet(line: str) -> tuple[float, FleetSeen]:
    """Parse a line of `encode_fleet`. Raises: ValueError, KeyError or TypeError for a line that is no snapshot."""
    data = json.loads(line)
    regions = tuple(_region(region) for region in data["regions"])
    links = tuple(LinkSeen(**link) for link in data["links"])
    return float(data["time_s"]), FleetSeen(regions=regions, links=links, at_s=float(data["at_s"]))


def _region(data: dict[str, object]) -> RegionSeen:
    tasks = data.pop("tasks")
    assert isinstance(tasks, list)
    seen = tuple(TaskSeen(**{**task, "role": TaskRole(task["role"])}) for task in tasks)
    return RegionSeen(**data, tasks=seen)  # type: ignore[arg-type]  # a wrong field raises TypeError


def read_fleet(directory: RunDirectory) -> tuple[tuple[float, FleetSeen], ...]:
    """Return the timed snapshots of a run, oldest first; empty without the file. Raises: ConfigError for a bad line."""
    try:
        lines = read_lines(directory.fleet)
    except NotFound:
        return ()
    snapshots = []
    for number, line in enumerate(lines, 1):
        try:
            snapshots.append(decode_fleet(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{directory.fleet} line {number} is no snapshot ({error!r}); remove the line") from error
    return tuple(snapshots)


def read_events(directory: RunDirectory) -> tuple[Event, ...]:
    """Return records and snapshots in the order of their times; a snapshot follows the record whose time it has."""
    timed: list[tuple[float, int, Event]] = [(record.time_s, 0, RecordSeen(record)) for record in directory.records()]
    timed += [(time_s, 1, fleet) for time_s, fleet in read_fleet(directory)]
    return tuple(event for _, _, event in sorted(timed, key=lambda item: item[:2]))
