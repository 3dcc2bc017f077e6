"""Says to other programs of the same user where the fleets of this machine listen, in one small file a fleet.

The files lie in `$XDG_STATE_HOME/periplus/fleets`, or `~/.local/state/periplus/fleets`. A fleet writes its file once it
serves, and removes it when it stops. A file whose process is dead, as after `kill -9`, or is of another host that
shares the folder, counts as absent. Commands and the library look here for a coordinator if nobody names one.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from periplus.config import finite_json
from periplus.errors import Conflict, Denied
from periplus.process.disk import replacing

SCHEMA = "periplus.local-fleet/1"
"""Name and version of the format of a fleet's file, and of what `periplus up -o json` prints."""

TOKEN_SUFFIX = ".token"
"""End of the name of the file with a fleet's token, which otherwise has the name of the fleet's own file."""

IDENTITY_SUFFIX = ".identity"
"""End of the name of the folder with the identity of a fleet's user, likewise."""

_NAME_BYTES = 8
_START_FIELD = 19
"""Position of the start time among the fields of /proc/PID/stat that follow the program's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    """Where a fleet listens and what it is.

    `process_start` is the start of its process in ticks since the host's boot, as text: with it a later process of the
    same id is told apart. `wan` is the control address of the WAN emulator, or empty. `token_file` holds the token that
    its emulator wants of callers, and `identity` is the folder of the user's identity.
    """

    coordinator: str
    wan: str
    regions: tuple[str, ...]
    directory: str
    process_id: int
    process_start: str
    hostname: str
    token_file: str
    identity: str = ""

    def to_json(self) -> str:
        """Return the record as one line of JSON with its schema."""
        return finite_json.dumps({"schema": SCHEMA, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "FleetRecord":
        """Return the record of a text that `to_json` made. Raises: ValueError, KeyError or TypeError for any other."""
        tree = json.loads(text)
        if not isinstance(tree, dict) or tree.pop("schema", None) != SCHEMA:
            raise ValueError(f"no {SCHEMA}")
        return cls(
            coordinator=str(tree["coordinator"]),
            wan=str(tree["wan"]),
            regions=tuple(map(str, tree["regions"])),
            directory=str(tree["directory"]),
            process_id=int(tree["process_id"]),
            process_start=str(tree["process_start"]),
            hostname=str(tree["hostname"]),
            token_file=str(tree["token_file"]),
            identity=str(tree.get("identity", "")),
        )


def records_folder(environment: Mapping[str, str], home: Path) -> Path:
    """Return the folder of the user's fleets, which need not exist."""
    state = environment.get("XDG_STATE_HOME", "")
    # The specification of these variables asks to ignore a relative path.
    root = Path(state) if Path(state).is_absolute() else home / ".local" / "state"
    return root / "periplus" / "fleets"


def process_start(process_id: int) -> str | None:
    """Return when a process of this host was started, in ticks since the boot, or None if there is no such process."""
    try:
        status = Path("/proc", str(process_id), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The program's name is in parentheses and may contain spaces and parentheses itself.
    return status.rpartition(")")[2].split()[_START_FIELD]


@contextlib.contextmanager
def announced(record: FleetRecord, folder: Path) -> Iterator[None]:
    """Keep the file of a fleet in the folder while the context lasts. Files of dead fleets of this host are removed.

    Raises: Denied if the file cannot be written.
    """
    path = folder / f"{_file_name(record.directory)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other, found in _records(folder):
            if other != path and found.hostname == record.hostname and not _lives(found):
                other.unlink(missing_ok=True)
                # Only a token beside its fleet's file is removed: a record may name any path.
                other.with_suffix(TOKEN_SUFFIX).unlink(missing_ok=True)
                shutil.rmtree(other.with_suffix(IDENTITY_SUFFIX), ignore_errors=True)
        with replacing(path) as file:
            file.write(record.to_json().encode() + b"\n")
    except OSError as error:
        raise Denied(
            f"cannot write {path}, from which other commands learn where the fleet listens: {error.strerror}; set "
            "XDG_STATE_HOME to a folder that you may write"
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def token_file(directory: Path, folder: Path) -> Path:
    """Return the file for the token of the fleet in a directory, beside the fleet's own file."""
    return (folder / _file_name(str(directory))).with_suffix(TOKEN_SUFFIX)


def identity_folder(directory: Path, folder: Path) -> Path:
    """Return the folder for the identity of the user of the fleet in a directory, beside the fleet's own file."""
    return (folder / _file_name(str(directory))).with_suffix(IDENTITY_SUFFIX)


def _file_name(directory: str) -> str:
    return hashlib.blake2b(directory.encode(), digest_size=_NAME_BYTES).hexdigest()


def living_fleets(folder: Path, hostname: str) -> tuple[FleetRecord, ...]:
    """Return the fleets of this host whose process lives, ordered by directory."""
    living = (record for _, record in _records(folder) if record.hostname == hostname and _lives(record))
    return tuple(sorted(living, key=lambda record: record.directory))


def chosen_fleet(fleets: tuple[FleetRecord, ...], directory: Path) -> FleetRecord | None:
    """Return the only fleet, or of several the one of the nearest folder around `directory`; None if there is none.

    Raises: Conflict if several run and none of them is of a folder around `directory`.
    """
    if len(fleets) <= 1:
        return fleets[0] if fleets else None
    by_directory = {Path(fleet.directory): fleet for fleet in fleets}
    around = next((by_directory[each] for each in (directory, *directory.parents) if each in by_directory), None)
    if around is None:
        listed = ", ".join(f"{fleet.coordinator} (in {fleet.directory})" for fleet in fleets)
        raise Conflict(
            f"{len(fleets)} local fleets run here: {listed}; name one with --coordinator or PERIPLUS_COORDINATOR, or "
            "work in its directory"
        )
    return around


def _records(folder: Path) -> Iterator[tuple[Path, FleetRecord]]:
    """Yield the readable files of fleets; others in the folder are none of ours, or of another version."""
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield path, FleetRecord.from_json(path.read_text(encoding="utf-8"))


def _lives(record: FleetRecord) -> bool:
    return process_start(record.process_id) == record.process_start


def own_process() -> tuple[int, str]:
    """Return the id and the start of this process, for its record."""
    start = process_start(os.getpid())
    assert start is not None, "a process finds itself in /proc"
    return os.getpid(), start
