"""Reads a spool without owning it: for the audit, and for readers that know where a record is.

Nothing of the spool is changed or locked, so its owner may append meanwhile. Retired records that are still on disk are
read like all others, because they are evidence for the audit. Files are hostile input: pipes and devices are not
opened, the schema must be a spool's, and no record is longer than the reader allows.

If there is a log, SQLite makes or uses its index beside it. A spool that was closed has no log and may be read where
nothing can be written.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from periplus.errors import CorruptSpool, NotFound
from periplus.spool.database import (
    DATABASE,
    INDEX,
    LOG,
    NEXT_ROW,
    has_schema,
    key_of,
    position_of,
    queried,
    record_of,
)
from periplus.spool.files import explained
from periplus.spool.format import MAX_RECORD_BYTES, Position, SpoolRecord


class SpoolReader:
    """The records of a spool's folder."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection

    @classmethod
    def open(cls, folder: Path, *, max_record_bytes: int = MAX_RECORD_BYTES) -> Self:
        """Open the spool in a folder. A record of more than `max_record_bytes` will count as damaged.

        Raises: NotFound if there is none; CorruptSpool; StorageError.
        """
        path = folder / DATABASE
        with explained(folder):
            found = [name for name in (DATABASE, LOG, INDEX) if _is_file(folder / name)]
        if DATABASE not in found:
            raise NotFound(f"{folder} is not a spool; check the run directory's path")
        # Without a log nothing but the file counts, and SQLite needs no index.
        mode = "mode=ro" if LOG in found else "immutable=1"
        with queried(path):
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False
            )
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_record_bytes)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            if has_schema(connection, path):
                return cls(path, connection)
        raise NotFound(f"{path} is not set up yet; wait until its owner has begun")

    @property
    def num_bytes(self) -> int:
        """The bytes of the files, which are more than those of all records. Raises: StorageError."""
        with explained(self._path):
            return sum(path.stat().st_size for path in (self._path, self._path.with_name(LOG)) if path.exists())

    @property
    def oldest(self) -> Position | None:
        """The first position that is on disk, or None if there is no record. Raises: CorruptSpool, StorageError."""
        with queried(self._path):
            (key,) = self._connection.execute("SELECT min(key) FROM records").fetchone()
        return None if key is None else position_of(key)

    def records(self) -> Iterator[SpoolRecord]:
        """Yield every record in order of position. Raises: CorruptSpool, StorageError."""
        start = 0
        while (record := self._next(start)) is not None:
            yield record
            start = key_of(record.position) + 1

    def read(self, position: Position) -> bytes:
        """Return the data of one record. Raises: NotFound, CorruptSpool, StorageError."""
        record = self._next(key_of(position))
        if record is None or record.position != position:
            raise NotFound(f"{self._path} has no record {position}; it was removed, or never written")
        return record.data

    def close(self) -> None:
        """Close the files."""
        self._connection.close()

    def _next(self, start: int) -> SpoolRecord | None:
        with queried(self._path):
            row = self._connection.execute(NEXT_ROW, (start,)).fetchone()
        if row is None:
            return None
        record = record_of(self._path, row)
        if key_of(record.position) < start:  # the pages of the table lead back
            raise CorruptSpool(f"{self._path} is damaged: its records are not in order; restore the file")
        return record


def _is_file(path: Path) -> bool:
    """Return whether a file exists. Raises: OSError, also if it is a pipe or a device, which might never end."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise OSError("it is not a regular file")
    return True
