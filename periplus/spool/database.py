"""The SQLite database of a spool, as its owner writes it and as other processes read it.

    records         one row a record: key, digest, data
    key             epoch * 2^40 + sequence, so that keys are ordered as positions are
    digest          first 16 bytes of BLAKE3(key as 8 bytes, little-endian, and BLAKE3(data))
    user_version    the newest epoch with a record, also after all its records were removed

SQLite checks no page by itself. The digest finds a damaged record, and one that came under another key. Damage to the
pages between records is found where SQLite follows them. Both are CorruptSpool.
"""

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from periplus.errors import CorruptSpool, PeriplusError, StorageError
from periplus.spool.files import refusal
from periplus.spool.format import Position, SpoolRecord

DATABASE = "records.db"
"""Name of the database in a spool's folder."""

LOG = f"{DATABASE}-wal"
"""Name of SQLite's write-ahead log beside the database. It is there while a process has the database open, and after a
crash."""

INDEX = f"{DATABASE}-shm"
"""Name of the index of the log, which processes share. It holds nothing of its own."""

SCHEMA = "CREATE TABLE records (key INTEGER PRIMARY KEY, digest BLOB NOT NULL, data BLOB NOT NULL)"
"""The only statement of the database's schema."""

NEXT_ROW = "SELECT key, digest, data FROM records WHERE key >= ? ORDER BY key LIMIT 1"
"""The first row from a key on. Readers take row by row: one that holds a transaction makes the log grow."""

_SEQUENCE_BITS = 40
_LAST_SEQUENCE = (1 << _SEQUENCE_BITS) - 1
_LAST_EPOCH = (1 << 63 - _SEQUENCE_BITS) - 1
_DIGEST_BYTES = 16
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG)


def key_of(position: Position) -> int:
    """Return the key of a position. A position beyond any that is written gets a key beyond any too."""
    return min(position.epoch, _LAST_EPOCH) << _SEQUENCE_BITS | min(position.sequence, _LAST_SEQUENCE)


def position_of(key: int) -> Position:
    """Return the position of a key."""
    return Position(key >> _SEQUENCE_BITS, key & _LAST_SEQUENCE)


def digest_of(key: int, data_digest: bytes) -> bytes:
    """Return the digest of a record whose data has the BLAKE3 digest `data_digest`."""
    return blake3(key.to_bytes(8, "little") + data_digest).digest(length=_DIGEST_BYTES)


def record_of(path: Path, row: tuple[int, object, object]) -> SpoolRecord:
    """Return the record of a row. Raises: CorruptSpool."""
    key, digest, data = row
    if not isinstance(data, bytes) or digest != digest_of(key, blake3(data).digest()):
        raise CorruptSpool(f"{path} is damaged at its record {position_of(key)}; restore the file")
    return SpoolRecord(position_of(key), data)


def has_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the database was set up; if not, it is empty. Raises: CorruptSpool if it is no spool's."""
    found = connection.execute("SELECT sql FROM sqlite_schema").fetchall()
    if found not in ([], [(SCHEMA,)]):
        raise CorruptSpool(f"{path} is not the database of a spool, or one of another version; restore the file")
    return bool(found)


@contextlib.contextmanager
def queried(path: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Translate an error of SQLite into DiskFull, CorruptSpool or another StorageError."""
    try:
        yield
    except sqlite3.Error as error:
        raise _refusal(path, error, needed_bytes) from error


def _refusal(path: Path, error: sqlite3.Error, needed_bytes: int) -> PeriplusError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code in _NO_ROOM:
        return refusal(path, OSError(errno.ENOSPC, str(error)), needed_bytes)
    if code & 0xFF in _DAMAGED:  # the rest of a code is a detail
        return CorruptSpool(f"{path} is damaged: {error}; restore the file")
    return StorageError(f"cannot use {path}: {error}; repair the disk or its permissions")
