"""Reads single records of a spool's folder without surveying it: for readers that know where a record is.

`SpoolReader` reads every file of a spool before it returns a first record. Here one record costs one read, if the
caller has noted the byte at which it begins (`Spool.offset`). Without it, or if the note is wrong, the headers of the
record's file are followed up to it. Either way the record's header and data must have their checksums. Nothing is
written or locked, so a spool may be read while its owner appends to it.
"""

import bisect
import os
from pathlib import Path

from periplus.errors import CorruptSpool, NotFound
from periplus.process.disk import open_regular
from periplus.spool.files import explained
from periplus.spool.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Position,
    first_position,
    is_whole,
    read_header,
    segment_name,
)


class RecordLookup:
    """The files that a spool's folder had when the lookup was made."""

    def __init__(self, folder: Path) -> None:
        """Raises: NotFound if the folder does not exist; StorageError."""
        self._folder = folder
        try:
            with explained(folder):
                names = os.listdir(folder) if folder.is_dir() else None
        except FileNotFoundError:
            names = None
        if names is None:
            raise NotFound(f"{folder} is not a spool; check the run directory's path")
        self._firsts = sorted(first for name in names if (first := first_position(name)) is not None)

    def read(self, position: Position, offset: int | None = None, *, max_bytes: int) -> bytes:
        """Return the data of a record. `offset` is the byte in its file at which it begins, if that is known.

        Raises: NotFound if its file was removed or never written; CorruptSpool if there is no such record in the file,
        if it is damaged, or if it is longer than `max_bytes`; StorageError.
        """
        index = bisect.bisect_right(self._firsts, position) - 1
        if index < 0 or self._firsts[index].epoch != position.epoch:
            raise NotFound(f"{self._folder} has no record {position}: it was removed, or never written")
        first = self._firsts[index]
        path = self._folder / segment_name(first)
        with explained(path):
            try:
                descriptor = open_regular(str(path), os.O_RDONLY)
            except FileNotFoundError as error:
                raise NotFound(f"{path} was removed meanwhile, and record {position} with it") from error
            try:
                data = None if offset is None else _read_at(descriptor, offset, position, max_bytes)
                return data if data is not None else _search(descriptor, path, first, position, max_bytes)
            finally:
                os.close(descriptor)


def _read_at(descriptor: int, offset: int, position: Position, max_bytes: int) -> bytes | None:
    if offset >= 1 << 63:  # more than a file can have
        return None
    header = read_header(os.pread(descriptor, RECORD_HEADER_BYTES, offset), 0, position.epoch)
    if header is None or header.is_seal or header.sequence != position.sequence or header.length > max_bytes:
        return None
    data = os.pread(descriptor, header.length, offset + RECORD_HEADER_BYTES)
    return data if is_whole(data, header) else None


def _search(descriptor: int, path: Path, first: Position, position: Position, max_bytes: int) -> bytes:
    at = SEGMENT_HEADER_BYTES
    for _ in range(position.sequence - first.sequence):
        header = read_header(os.pread(descriptor, RECORD_HEADER_BYTES, at), 0, position.epoch)
        if header is None or header.is_seal:
            raise CorruptSpool(
                f"{path} ends or is damaged at byte {at}, before its record {position}; restore the file"
            )
        at += RECORD_HEADER_BYTES + header.length
    data = _read_at(descriptor, at, position, max_bytes)
    if data is None:
        raise CorruptSpool(f"{path} has no whole record {position} at byte {at}; restore the file")
    return data
