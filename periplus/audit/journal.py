"""`audit.jsonl` as a file: the appender that a trainer holds, and the lines that an auditor reads.

An `AuditJournal` continues the chain where the file ends. Lines collect in memory until `flush` (the operating system
has them: they survive the process) or `sync` (the disk has them: they survive the machine). The caller decides when:
before a step's batch is trained on, before a version is published, before a manifest is written, before a gateway is
told that its frame is committed; and frames are synced before the lines that point at them. `position` counts what is
appended, flushed or not.

A last line without newline was being written when the process died. It was never acted on; opening cuts it off and says
how many bytes it had. A file has one writer: a second one is refused for as long as the first is open.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from periplus.audit.records import START_OF_CHAIN, Record, chain_hash, from_line, to_line
from periplus.errors import ConfigError, Conflict, CorruptFrame
from periplus.run_directory import explained, sync_folder

BUFFER_BYTES = 1 << 20
"""Held back at most; a line of a large batch may exceed it, and is written at once."""

_TAIL_BYTES = 1 << 16
"""Read at a time when looking for the last line; most lines have 200 bytes, a batch's some ten thousand."""


class ChainEnd(NamedTuple):
    """`n`: the number of the next line; `prev`: the hash of the last one."""

    n: int
    prev: bytes


class AuditJournal:
    """The one writer of a run's `audit.jsonl`. Not safe for several threads."""

    def __init__(self, path: Path, file: BinaryIO, position: ChainEnd, cut_bytes: int) -> None:
        self._path = path
        self._file = file
        self._lines: list[bytes] = []
        self._buffered_bytes = 0
        self._position = position
        self.cut_bytes = cut_bytes
        """Of the torn last line that opening removed; 0 if there was none."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Continue the file, or begin it.

        Raises: Conflict if another process writes it, ConfigError if its last line is no record, PeriplusErrors for
        what the operating system refuses.
        """
        with explained(path):
            is_new = not path.exists()
            file = path.open("ab+")
            try:
                _lock(path, file)
                cut_bytes = _cut_torn_line(file)
                position = _position(path, file)
                if is_new:
                    sync_folder(path.parent)
            except BaseException:
                file.close()
                raise
        return cls(path, file, position, cut_bytes)

    @property
    def position(self) -> ChainEnd:
        """Where the next line goes."""
        return self._position

    def append(self, record: Record, time_s: float, seal: Callable[[int, bytes], Record] | None = None) -> int:
        """Add a line; returns its number. `time_s`: seconds since 1970; `seal`: makes a second line, given its number
        and the hash before it, that reaches the operating system in one piece with the first."""
        n = self._add(record, time_s)
        if seal is not None:
            self._add(seal(*self._position), time_s)
        if self._buffered_bytes >= BUFFER_BYTES:
            self.flush()
        return n

    def _add(self, record: Record, time_s: float) -> int:
        n, prev = self._position
        line = to_line(n, prev, time_s, record)
        self._position = ChainEnd(n + 1, chain_hash(line))
        self._lines.append(line)
        self._buffered_bytes += len(line) + 1
        return n

    def flush(self) -> None:
        """Hand all lines to the operating system."""
        if not self._lines:
            return
        data = memoryview(b"\n".join(self._lines) + b"\n")
        descriptor, written = self._file.fileno(), 0
        with explained(self._path):
            size = os.fstat(descriptor).st_size
            try:
                while written < len(data):
                    written += os.write(descriptor, data[written:])
            except OSError:
                os.ftruncate(descriptor, size)  # the lines stay here, and are written whole or not at all
                raise
        self._lines.clear()
        self._buffered_bytes = 0

    def sync(self) -> None:
        """Hand all lines to the disk."""
        self.flush()
        self.sync_flushed()

    def sync_flushed(self) -> None:
        """Hand what is flushed to the disk. Takes as long as the disk does; a thread may do it while others append."""
        with explained(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync, and let another writer in."""
        if not self._file.closed:
            self.sync()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read_lines(path: Path) -> Iterator[bytes]:
    """The file's lines with their newlines, which a torn last one lacks. Raises: as open."""
    with explained(path), path.open("rb") as file:
        yield from file


def _lock(path: Path, file: BinaryIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Conflict(f"{path} is being written by another process; is the job's trainer still running?") from error


def _cut_torn_line(file: BinaryIO) -> int:
    size = file.seek(0, os.SEEK_END)
    whole = _after_newline_before(file, size)
    if whole != size:
        file.truncate(whole)
        os.fsync(file.fileno())
    return size - whole


def _position(path: Path, file: BinaryIO) -> ChainEnd:
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return ChainEnd(0, START_OF_CHAIN)
    start = _after_newline_before(file, size - 1)
    file.seek(start)
    line = file.read(size - 1 - start)
    try:
        return ChainEnd(from_line(line, str(path)).n + 1, chain_hash(line))
    except CorruptFrame as error:
        raise ConfigError(f"{error}; the last line is damaged, cut it off to continue the file") from error


def _after_newline_before(file: BinaryIO, end: int) -> int:
    """The offset just after the last newline before `end`, 0 if there is none."""
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
