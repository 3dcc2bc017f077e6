"""A bounded log of records on disk: append, make durable, read again, retire.

    append(parts) -> position       write a record: it survives kill -9 of this process
    sync()                          return when everything appended before is durable, as `durability` defines
    records(start), read(position)  read the records that are not retired, in order
    retire(position), trim(upto)    mark records as no longer needed; their room is used for others

Invariants: positions rise, and none that was reported durable is used twice. The next opening finds every record that
was reported durable, in order, and no record that was not appended. A full spool raises SpoolFull and a full disk
DiskFull; both leave the spool unchanged, and the append may be tried again. A retired record is not read again by this
process. Rows of retired records are deleted `DELETED_AT_ONCE` at a time and by `close`, so after a crash the last of
them come back, and a reader must tolerate repeats. A full disk only delays this. The file keeps its largest size.

The records are rows of an SQLite database (`database.py`) with a write-ahead log. Each append is a transaction, which
hands the record to the operating system and waits for nothing. With `process`, that is durable. With `machine`, `sync`
makes it durable by one sync of the log, which is all that `synchronous = FULL` would do in each append. Neither this
nor copying the log into the database holds the lock for long, so both may run in a thread while others append. One
sync serves all callers that wait for it (group commit). After a failed one the content of the disk is unknown, so every
call fails until the spool is opened again. With `process`, a power cut may leave damage. Damage to the log hides the
records from there on, as a torn end does; damage to the database is found.

Opening takes a lock, so that a second process gets Conflict. Other processes may read meanwhile (`reader.py`).
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

from blake3 import blake3

from periplus.errors import DiskFull, NotFound, SpoolFull, StorageError
from periplus.process.disk import sync
from periplus.spool.database import (
    DATABASE,
    INDEX,
    LOG,
    NEXT_ROW,
    SCHEMA,
    digest_of,
    has_schema,
    key_of,
    queried,
    record_of,
)
from periplus.spool.files import OsFiles, explained
from periplus.spool.format import MAX_RECORD_BYTES, Buffer, Durability, Position, SpoolRecord

LOCK_FILE = "lock"
"""Name of the file in the spool's folder that its owner locks."""

PAGE_BYTES = 16 << 10
"""Size of a page of the database. Chosen by hand: two system calls write a page, and a small record rewrites one."""

OVERHEAD_BYTES = PAGE_BYTES // 2
"""Bytes that a record counts beside its data: what its last page leaves free on average."""

LOG_BYTES = 8 << 20
"""Size of the log from which it is copied into the database. Chosen by hand: small enough to take some milliseconds."""

DELETED_AT_ONCE = 64
"""Retired records whose rows are deleted in one transaction; so many come back after a kill. Chosen by hand."""


_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


class Spool:
    """A spool that this process owns. `append`, `retire`, `trim` and `sync` may be called from several threads."""

    def __init__(
        self,
        folder: Path,
        durability: Durability,
        max_bytes: int,
        connection: sqlite3.Connection,
        copier: sqlite3.Connection,
        log: int,
    ) -> None:
        """`copier` is a second connection, which copies the log; `log` is the log's descriptor."""
        self._failed = ""
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self.folder = folder
        self.max_bytes = max_bytes
        self._path = folder / DATABASE
        self._durability = durability
        self._connection = connection
        self._copier = copier
        self._log = log
        self._held = contextlib.ExitStack()
        self.epoch: int = self._row("PRAGMA user_version")[0] + 1
        num_records, num_data_bytes = self._row("SELECT count(*), total(length(data)) FROM records")
        self._num_records: int = num_records
        self._num_bytes: int = int(num_data_bytes) + num_records * OVERHEAD_BYTES
        self._retired: dict[int, int] = {}  # size of each record whose row is still there, by key
        self._next = 0
        self._num_synced = 0
        self._log_bytes = 0  # appended since the log was last copied

    @classmethod
    def open(cls, folder: Path, *, durability: Durability, max_bytes: int) -> Self:
        """Open the spool in `folder`, which is made if it does not exist. Records found there count as durable.

        Raises: CorruptSpool; Conflict if another process has the spool open; DiskFull or another StorageError.
        """
        if max_bytes < 1:
            raise ValueError(f"a spool of {max_bytes} bytes; expected a positive size")
        is_durable = durability is Durability.MACHINE
        path, files = folder / DATABASE, OsFiles()
        # The stack gives everything back if anything below fails; on success the spool takes it over.
        with contextlib.ExitStack() as held:
            with explained(folder):
                files.make_folder(folder)
                held.enter_context(files.lock(folder / LOCK_FILE))
                # What a killed process wrote may still be in the page cache only. Not later: closing a descriptor of
                # the database gives up the locks that SQLite has on it.
                for name in {DATABASE, LOG}.intersection(files.names(folder)) if is_durable else ():
                    sync(folder / name)
            with queried(path):
                connection, copier = (
                    held.enter_context(contextlib.closing(_connected(path, durability))) for _ in "12"
                )
                if not has_schema(connection, path):
                    connection.execute(SCHEMA)
                with explained(folder):
                    log = os.open(folder / LOG, os.O_RDWR)
                    held.callback(os.close, log)
                    if is_durable:
                        os.fsync(log)
                        sync(folder)
                spool = cls(folder, durability, max_bytes, connection, copier, log)
            spool._held = held.pop_all()
            return spool

    # ---- what is there --------------------------------------------------------------------------------------------

    @property
    def num_records(self) -> int:
        """The number of records that are not retired."""
        with self._lock:
            return self._num_records - len(self._retired)

    @property
    def num_bytes(self) -> int:
        """The bytes of all records, including retired ones that are not deleted yet."""
        with self._lock:
            return self._num_bytes

    def records(self, start: Position | None = None) -> Iterator[SpoolRecord]:
        """Yield every record from `start` on that is not retired, in order of position.

        Records that are appended meanwhile may be included. Raises: CorruptSpool, StorageError.
        """
        key = 0 if start is None else key_of(start)
        while True:
            with self._lock:
                row = self._row(NEXT_ROW, key)
                if row is None:
                    return
                is_live = row[0] not in self._retired
            if is_live:
                yield record_of(self._path, row)
            key = row[0] + 1

    def read(self, position: Position) -> bytes:
        """Return the data of one record. Raises: NotFound if it is retired or unknown, CorruptSpool, StorageError."""
        key = key_of(position)
        with self._lock:
            row = None if key in self._retired else self._row(NEXT_ROW, key)
        if row is None or row[0] != key:
            raise NotFound(f"{self.folder} has no record {position}; it was retired or never written")
        return record_of(self._path, row).data

    def copy(self, folder: Path, start: Position) -> None:
        """Write the records from `start` on to a new spool in `folder`, under the same positions.

        Some retired records may be among them. Others may append meanwhile. Raises: DiskFull or another StorageError.
        """
        target = folder / DATABASE
        with explained(folder):
            folder.mkdir()
        with queried(target), contextlib.closing(sqlite3.connect(target, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute(SCHEMA)
            connection.execute("ATTACH ? AS source", (str(self._path),))
            connection.execute(
                "INSERT INTO records SELECT key, digest, data FROM source.records WHERE key >= ?", (key_of(start),)
            )
            connection.execute(f"PRAGMA user_version = {self.epoch}")

    # ---- writing --------------------------------------------------------------------------------------------------

    def append(self, *parts: Buffer) -> Position:
        """Append one record, given in pieces, and return its position. The data is handed to the operating system.

        Raises: SpoolFull or DiskFull, after which nothing is changed and the call may be repeated once records were
        retired or disk space was freed; another StorageError; ValueError for a record above MAX_RECORD_BYTES.
        """
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        num_bytes = len(data) + OVERHEAD_BYTES
        if len(data) > MAX_RECORD_BYTES:
            raise ValueError(f"a record of {len(data)} bytes; at most {MAX_RECORD_BYTES}")
        # Hashing takes long, and needs no lock.
        digest = blake3(data).digest()
        with self._lock:
            self._check()
            self._reserve(num_bytes)
            position = Position(self.epoch, self._next)
            key = key_of(position)
            # Alone, a statement is a transaction. Each one gives up Python's lock, and waits until it has it again.
            with self._written(num_bytes) if self._next else self._transaction(num_bytes):
                if not self._next:
                    self._connection.execute(f"PRAGMA user_version = {self.epoch}")
                self._connection.execute("INSERT INTO records VALUES (?, ?, ?)", (key, digest_of(key, digest), data))
            self._next += 1
            self._num_records += 1
            self._num_bytes += num_bytes
            self._log_bytes += num_bytes
            return position

    def sync(self) -> None:
        """Return when everything appended before this call is durable. Raises: StorageError."""
        # One caller syncs at a time. Those who waited find their records synced by it.
        with self._syncing:
            with self._lock:
                self._check()
                end = self._next
            if self._durability is Durability.PROCESS or end == self._num_synced:
                return
            try:
                # Without the lock, so that appends go on; they belong to the next sync.
                self._sync_log()
                self._num_synced = end
                if self._log_bytes >= LOG_BYTES:
                    self._copy_log()
            except (OSError, StorageError) as error:
                self._failed = f"{self._path} could not be synced ({error}): it is not known what is on the disk"
                raise StorageError(f"{self._failed}; open the spool again") from error

    def retire(self, position: Position) -> None:
        """Mark a record as no longer needed. Repeating it is harmless. Raises: StorageError."""
        key = key_of(position)
        with self._lock:
            row = self._row("SELECT length(data) FROM records WHERE key = ?", key)
            if row is not None:
                self._retired[key] = row[0] + OVERHEAD_BYTES
            if len(self._retired) >= DELETED_AT_ONCE:
                self._delete()

    def trim(self, upto: Position) -> None:
        """Retire every record before `upto`. Raises: StorageError."""
        with self._lock, queried(self._path):
            self._check()
            rows = self._connection.execute("SELECT key, length(data) FROM records WHERE key < ?", (key_of(upto),))
            self._retired.update((key, num_bytes + OVERHEAD_BYTES) for key, num_bytes in rows)
        deleted = True
        while deleted:  # between two transactions others have their turn
            with self._lock:
                deleted = self._delete()

    def close(self) -> None:
        """Make everything durable and release the folder's lock. Repeating it is harmless. Raises: StorageError."""
        try:
            if not self._failed:
                self.sync()
                with self._lock:
                    while self._delete():
                        pass
        finally:
            with self._syncing, self._lock:
                self._failed = self._failed or f"{self.folder} was closed"
                with queried(self._path):
                    self._held.close()

    def remove(self) -> None:
        """Close the spool, and remove its files and its folder. Raises: StorageError."""
        self.close()
        with explained(self.folder):
            for name in (DATABASE, LOG, INDEX, LOCK_FILE):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()

    # ---- inside, with the lock held -------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failed:
            raise StorageError(f"{self._failed}; open the spool again")

    def _row(self, query: str, *values: int) -> Any:
        self._check()
        with queried(self._path):
            return self._connection.execute(query, values).fetchone()

    @contextlib.contextmanager
    def _written(self, needed_bytes: int = 0) -> Iterator[None]:
        with queried(self._path, needed_bytes):
            try:
                yield
            except sqlite3.Error as error:
                if error.sqlite_errorcode in (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC):
                    self._failed = f"{self._path} could not be synced: it is not known what is on the disk"
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _transaction(self, needed_bytes: int = 0) -> Iterator[None]:
        with self._written(needed_bytes):
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")

    def _reserve(self, num_bytes: int) -> None:
        while self._num_bytes + num_bytes > self.max_bytes:
            if not self._delete():
                raise SpoolFull(
                    f"{self.folder} holds {self._num_bytes} bytes of at most {self.max_bytes} and cannot take "
                    f"{num_bytes} more; wait until records are retired, or raise its limit"
                )

    def _delete(self) -> bool:
        """Delete rows of retired records. Return False if there are none, or if the disk is full."""
        keys = list(islice(self._retired, DELETED_AT_ONCE))
        with contextlib.suppress(DiskFull):
            if keys:
                self._check()
                with self._transaction():
                    self._connection.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in keys])
                self._num_records -= len(keys)
                self._num_bytes -= sum(self._retired.pop(key) for key in keys)
                return True
        return False

    # ---- inside, without the lock ---------------------------------------------------------------------------------

    def _sync_log(self) -> None:
        _sync_data(self._log)

    def _copy_log(self) -> None:
        """Copy the log into the database, so that it begins anew. A full disk delays it."""
        # Most of it while others append, and then the rest while nobody does: only a log that is copied whole begins
        # anew.
        for turn in (contextlib.nullcontext(), self._lock):
            with turn, contextlib.suppress(DiskFull), queried(self._path):
                self._copier.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._log_bytes = 0


def _connected(path: Path, durability: Durability) -> sqlite3.Connection:
    # Transactions begin where this module says so.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    is_durable = durability is Durability.MACHINE
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    # NORMAL syncs only where the log is copied and begins anew.
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if is_durable else 'OFF'}")
    connection.execute("PRAGMA secure_delete = OFF")  # some builds write zeros over what is deleted
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StorageError(f"the file system of {path} has no shared memory, which SQLite needs; use a local disk")
    # `sync` copies the log. Without any syncs it takes no longer than an append of as many bytes, which then does it.
    connection.execute(f"PRAGMA wal_autocheckpoint = {0 if is_durable else LOG_BYTES // PAGE_BYTES}")
    return connection
