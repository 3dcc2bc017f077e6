"""The coordinator's durable memory: one SQLite database, which only the writer changes.

    <state directory>/coordinator.sqlite    regions, jobs, request ids, events, and the job authority's private key
    <state directory>/lock                  held locked by the coordinator that uses the directory

What a step of the machine decided is stored before its effects leave (`changes_between`, `Store.write`), so that a
coordinator that is killed and started again has promised nothing that it does not know. Links, heartbeats and trainers'
records are not stored: agents measure and report them again. A job's policy, phase and bytes are those of the last
change of the job that was stored, until its trainer reports anew.

Each value is one JSON text of the coordinator's own classes. The database has the mode 0600, since it holds the key.
Without a directory, the same database lies in memory and ends with the process.
"""

import contextlib
import fcntl
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from coordinator.events import FleetEvent, FleetEventKind
from coordinator.state import Hello, Job, RegionMode, RegionState, State
from periplus.errors import ConfigError, Conflict, NotFound, StorageError
from periplus.net.certificates import FleetAuthority
from periplus.publication import JobAuthority

DATABASE = "coordinator.sqlite"
LOCK = "lock"

KEPT_EVENTS_S = 30 * 86_400.0
"""Seconds for which events are kept."""

USED_TOKENS_S = 30 * 86_400.0
"""Seconds between the ends of two tokens of which the earlier one is forgotten: no token is valid for as long."""

MAX_NUMBER = (1 << 63) - 1

MIGRATIONS = (
    """
    CREATE TABLE authority (private_key TEXT NOT NULL);
    CREATE TABLE regions (name TEXT PRIMARY KEY, body TEXT NOT NULL);
    CREATE TABLE jobs (job_id TEXT PRIMARY KEY, submitted_at_s REAL NOT NULL, body TEXT NOT NULL);
    CREATE TABLE requests (request_id TEXT PRIMARY KEY, job_id TEXT NOT NULL REFERENCES jobs ON DELETE CASCADE);
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, time_s REAL NOT NULL, kind TEXT NOT NULL, job_id TEXT NOT NULL,
        region TEXT NOT NULL, actor TEXT NOT NULL, text TEXT NOT NULL
    );
    CREATE INDEX events_by_time ON events (time_s);
    """,
    """
    CREATE TABLE fleet_authority (key TEXT NOT NULL, certificate TEXT NOT NULL);
    CREATE TABLE used_tokens (serial TEXT PRIMARY KEY, expires_at_s REAL NOT NULL);
    CREATE TABLE revocations (party TEXT PRIMARY KEY, before_s REAL NOT NULL);
    """,
)
"""What makes each version of the database from the one before. `PRAGMA user_version` counts those that were applied."""

Change = tuple[str, tuple[object, ...]]
"""An SQL statement and its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRegion:
    """What is kept of a region: its newest hello without tasks, how many sessions it had, its mode and its relay."""

    hello: Hello
    epoch: int
    mode: RegionMode = RegionMode.OPEN
    relay: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event with its number, which rises, and its Unix time in seconds."""

    number: int
    time_s: float
    event: FleetEvent


_JOB = TypeAdapter(Job)
_REGION = TypeAdapter(StoredRegion)


def changes_between(before: State, after: State) -> tuple[Change, ...]:
    """Return the statements that bring the database from one state to the next; none if nothing durable has changed."""
    found: list[Change] = []
    if after.jobs is not before.jobs:
        found += [("DELETE FROM jobs WHERE job_id = ?", (job_id,)) for job_id in before.jobs.keys() - after.jobs.keys()]
        found += [
            (
                "INSERT INTO jobs VALUES (?, ?, ?) ON CONFLICT (job_id) "
                "DO UPDATE SET submitted_at_s = excluded.submitted_at_s, body = excluded.body",
                (job_id, job.submitted_at_s, _JOB.dump_json(job).decode()),
            )
            for job_id, job in after.jobs.items()
            if _is_changed(before.jobs.get(job_id), job)
        ]
    if after.requests is not before.requests:
        new = after.requests.items() - before.requests.items()
        found += [("INSERT OR REPLACE INTO requests VALUES (?, ?)", request) for request in new]
    if after.regions is not before.regions:
        gone = before.regions.keys() - after.regions.keys()
        found += [("DELETE FROM regions WHERE name = ?", (name,)) for name in gone]
        for name, region in after.regions.items():
            old = before.regions.get(name)
            if old is not region and (old is None or _stored(old) != _stored(region)):
                body = _REGION.dump_json(_stored(region)).decode()
                found.append(("INSERT OR REPLACE INTO regions VALUES (?, ?)", (name, body)))
    return tuple(found)


def _is_changed(before: Job | None, after: Job) -> bool:
    if before is after:
        return False
    return before is None or before.has_trained != after.has_trained or _decided(before) != _decided(after)


def _decided(job: Job) -> Job:
    """Return a job without what its trainer and agents report again and again."""
    return replace(job, policy=None, last_record=None, phase="", sent={}, measured={}, num_measured=0)


def _stored(region: RegionState) -> StoredRegion:
    hello = replace(region.hello, tasks=())
    return StoredRegion(hello=hello, epoch=region.epoch, mode=region.mode, relay=region.relay)


class Store:
    """The database of one coordinator. Methods block for the disk, and may be called from any thread."""

    def __init__(self, connection: sqlite3.Connection, path: str, lock: int | None = None) -> None:
        self._connection = connection
        self._path = path
        self._lock_descriptor = lock
        self._turn = threading.Lock()  # of a connection, one thread at a time may use

    def authority(self) -> JobAuthority:
        """Return the job authority of this database, whose key is made at the first call. Raises: StorageError."""
        with self._using() as connection:
            row = connection.execute("SELECT private_key FROM authority").fetchone()
            if row is None:
                row = (JobAuthority.generate().private_bytes.hex(),)
                connection.execute("INSERT INTO authority VALUES (?)", row)
        return JobAuthority.from_private_bytes(bytes.fromhex(row[0]))

    def fleet_authority(self, name: str, now_s: float) -> FleetAuthority:
        """Return the authority that certifies the fleet's members, made at the first call. Raises: StorageError."""
        with self._using() as connection:
            row = connection.execute("SELECT key, certificate FROM fleet_authority").fetchone()
            if row is None:
                made = FleetAuthority.generate(name, now_s)
                row = (made.key.decode(), made.certificate.decode())
                connection.execute("INSERT INTO fleet_authority VALUES (?, ?)", row)
        return FleetAuthority(row[0].encode(), row[1].encode())

    def use_token(self, serial: str, expires_at_s: float) -> bool:
        """Note that a join token is used, and return whether it was not before. Raises: StorageError."""
        with self._using() as connection:
            connection.execute("DELETE FROM used_tokens WHERE expires_at_s < ?", (expires_at_s - USED_TOKENS_S,))
            added = connection.execute("INSERT OR IGNORE INTO used_tokens VALUES (?, ?)", (serial, expires_at_s))
            return added.rowcount == 1

    def revocations(self) -> dict[str, float]:
        """Return the Unix time until which certificates are revoked, by party. Raises: StorageError."""
        with self._using() as connection:
            return dict(connection.execute("SELECT party, before_s FROM revocations").fetchall())

    def revoke(self, party: str, before_s: float, forget_before_s: float) -> None:
        """Revoke a party's certificates until a time, and forget revocations of expired ones. Raises: StorageError."""
        with self._using() as connection:
            connection.execute("DELETE FROM revocations WHERE before_s < ?", (forget_before_s,))
            connection.execute("INSERT OR REPLACE INTO revocations VALUES (?, ?)", (party, before_s))

    def load(self, empty: State, now_s: float) -> State:
        """Return `empty` with what is stored. No region is connected, and each counts as last seen at `now_s`.

        Raises: StorageError, ConfigError for a database that this version cannot read.
        """
        with self._using() as connection:
            jobs = connection.execute("SELECT body FROM jobs ORDER BY submitted_at_s, rowid").fetchall()
            regions = connection.execute("SELECT body FROM regions ORDER BY name").fetchall()
            requests = connection.execute("SELECT request_id, job_id FROM requests").fetchall()
        try:
            found = [_JOB.validate_json(body) for (body,) in jobs]
            known = [_REGION.validate_json(body) for (body,) in regions]
        except ValidationError as error:
            raise ConfigError(
                f"{self._path} holds what this version of Periplus cannot read ({error.errors()[0]['msg']}); start "
                "the version that wrote it, or move the directory away: jobs that run go on to their end"
            ) from error
        return replace(
            empty,
            jobs={job.job_id: job for job in found},
            regions={
                each.hello.region: RegionState(
                    hello=each.hello,
                    epoch=each.epoch,
                    connected=False,
                    last_seen_s=now_s,
                    mode=each.mode,
                    relay=each.relay,
                )
                for each in known
            },
            requests=dict(requests),
        )

    def write(self, changes: Sequence[Change], events: Sequence[FleetEvent], time_s: float) -> None:
        """Store changes and events of one step together, or nothing. Raises: StorageError."""
        with self._using() as connection:
            for statement, parameters in changes:
                connection.execute(statement, parameters)
            for event in events:
                row = (time_s, event.kind, event.job_id, event.region, event.actor, event.text)
                connection.execute(
                    "INSERT INTO events (time_s, kind, job_id, region, actor, text) VALUES (?, ?, ?, ?, ?, ?)", row
                )
            if events:
                connection.execute("DELETE FROM events WHERE time_s < ?", (time_s - KEPT_EVENTS_S,))

    def events(self, after: int, limit: int, *, job_id: str = "", region: str = "") -> tuple[StoredEvent, ...]:
        """Return the first `limit` events above the number `after`, in order, of one job or region if one is given.

        Raises: StorageError.
        """
        wanted = "SELECT * FROM events WHERE id > ? AND ? IN ('', job_id) AND ? IN ('', region) ORDER BY id LIMIT ?"
        with self._using() as connection:
            # A caller may name any number, and SQLite knows those of 63 bits.
            rows = connection.execute(wanted, (min(after, MAX_NUMBER), job_id, region, limit)).fetchall()
        return tuple(
            StoredEvent(
                number=number,
                time_s=time_s,
                event=FleetEvent(FleetEventKind(kind), text, job_id=job, region=at, actor=actor),
            )
            for number, time_s, kind, job, at, actor, text in rows
        )

    def newest_event(self) -> int:
        """Return the number of the newest event, or 0. Raises: StorageError."""
        with self._using() as connection:
            ((number,),) = connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchall()
        return int(number)

    def close(self) -> None:
        """Close the database and release the directory, once a write that has begun is done."""
        with self._turn:
            self._connection.close()
            if self._lock_descriptor is not None:
                os.close(self._lock_descriptor)

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._turn, _explained(self._path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


def open_store(directory: Path | None) -> Store:
    """Open the database of a state directory, which is made if need be; in memory without one.

    Raises: Conflict if a coordinator uses it; ConfigError if it cannot be made or used, is open to other users, or was
    written by a newer version; StorageError.
    """
    if directory is None:
        return Store(_connected(":memory:"), ":memory:")
    path = directory / DATABASE
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Made before SQLite opens it, so that at no time another user can read the key.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except BlockingIOError as error:
        os.close(lock)
        raise Conflict(f"another coordinator uses {directory}; stop it, or give another --state-dir") from error
    except OSError as error:
        raise ConfigError(f"the state directory {directory} cannot be used: {error.strerror}; give another") from error
    try:
        if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            raise ConfigError(f"{path} holds a private key and is open to others (mode {mode:03o}); chmod 600 it")
        return Store(_connected(str(path)), str(path), lock)
    except BaseException:
        os.close(lock)
        raise


def authority_key(directory: Path) -> str:
    """Return the public key of the authority of a state directory in hexadecimal, also while its coordinator runs.

    Raises: NotFound if there is none, StorageError.
    """
    path = _existing(directory)
    with _explained(str(path)), contextlib.closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT private_key FROM authority").fetchone()
    if row is None:
        raise NotFound(f"{path} holds no key yet; it is made at the first start of the coordinator")
    return JobAuthority.from_private_bytes(bytes.fromhex(row[0])).public_key.hex()


def stored_fleet_authority(directory: Path) -> FleetAuthority:
    """Return the authority of the fleet of a state directory, also while its coordinator runs.

    Raises: NotFound if there is none, StorageError.
    """
    path = _existing(directory)
    with _explained(str(path)), contextlib.closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT key, certificate FROM fleet_authority").fetchone()
    if row is None:
        raise NotFound(f"{path} holds no authority of a fleet; it is made at the first start without --plaintext")
    return FleetAuthority(row[0].encode(), row[1].encode())


def back_up(directory: Path, file: Path) -> None:
    """Copy the database of a state directory to a new file, also while a coordinator runs.

    Raises: NotFound if there is none, Conflict if the file exists, StorageError.
    """
    source = _existing(directory)
    with _new_file(file):
        _copy(source, file)


def restore(file: Path, directory: Path) -> None:
    """Make a state directory from a backup.

    Raises: NotFound without the file, Conflict if the directory has a database, ConfigError if it is no backup.
    """
    if not file.exists():
        raise NotFound(f"{file} does not exist; `periplus coordinator backup` makes such a file")
    target = directory / DATABASE
    if found := sorted(directory.glob(f"{DATABASE}*")):  # SQLite would apply a log that another database has left
        raise Conflict(f"{found[0]} exists already; move it away, or give another --state-dir")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _new_file(target):
        _copy(file, target)
        open_store(directory).close()


def _existing(directory: Path) -> Path:
    path = directory / DATABASE
    if not path.exists():
        raise NotFound(f"{path} does not exist; give the --state-dir of a coordinator")
    return path


def _copy(source: Path, target: Path) -> None:
    with (
        _explained(str(source)),
        contextlib.closing(sqlite3.connect(source)) as before,
        contextlib.closing(sqlite3.connect(target)) as after,
    ):
        before.backup(after)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[None]:
    """Make a file that only its owner can read; remove it if the context fails. Raises: Conflict, StorageError."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError as error:
        raise Conflict(f"{path} exists already; move it away, or give another place") from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _connected(path: str) -> sqlite3.Connection:
    with _explained(path):
        # Transactions begin where this module says so.
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, path)
    return connection


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise ConfigError(
            f"{path} was written by a newer Periplus (version {version} of the database, and this one reads up to "
            f"{len(MIGRATIONS)}); start that one"
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StorageError(
            f"the coordinator's database {path} cannot be used: {error}; look at the disk, or restore a backup"
        ) from error
