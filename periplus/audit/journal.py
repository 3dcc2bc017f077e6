"""`audit.jsonl` as a file: the appender that a trainer holds, and the lines that an auditor reads.

An `AuditJournal` continues the chain where the file ends. Lines collect in memory until `flush` (the operating system
has them: they survive the process; on a full disk none is written, all stay in memory, and `flush` may be called
again) or `sync` (the disk has them: they survive the machine). The caller decides when:
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

from periplus.audit.records import MAX_LINE_BYTES, START_OF_CHAIN, Entry, chain_hash, from_line, to_line
from periplus.errors import ConfigError, Conflict, CorruptFrame, StorageError
from periplus.job.run_directory import append_whole, explained, sync_folder

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
        self._position = position
        self.cut_bytes = cut_bytes
        """Bytes of the torn last line that opening removed; 0 if there was none."""

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

    def append(self, record: Entry, time_s: float, seal: Callable[[int, bytes], Entry] | None = None) -> int:
        """Add a line; returns its number. `time_s`: seconds since 1970; `seal`: makes a second line, given its number
        and the hash before it, that reaches the operating system in one piece with the first."""
        n = self._add(record, time_s)
        if seal is not None:
            self._add(seal(*self._position), time_s)
        return n

    def _add(self, record: Entry, time_s: float) -> int:
        n, prev = self._position
        line = to_line(n, prev, time_s, record)
        self._position = ChainEnd(n + 1, chain_hash(line))
        self._lines.append(line)
        return n

    def flush(self) -> None:
        """Hand all lines to the operating system.

        Raises: DiskFull, and all lines are still here; Denied or StorageError, also for a file that was removed.
        """
        if not self._lines:
            return
        self._check_is_there()
        data = b"\n".join(self._lines) + b"\n"
        with explained(self._path, len(data)):
            append_whole(self._file.fileno(), data)
        self._lines.clear()

    def sync(self) -> None:
        """Hand all lines to the disk."""
        self.flush()
        self.sync_flushed()

    def sync_flushed(self) -> None:
        """Hand what is flushed to the disk. Takes as long as the disk does; a thread may do it while others append.

        Raises: StorageError; nobody knows then what is on the disk, so a full disk is no exception to be waited for.
        """
        self._check_is_there()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self._path} could not be synced ({error.strerror or error}): nobody knows which lines are on the "
                "disk; mend the disk, then resume the job from its last checkpoint"
            ) from error

    def close(self) -> None:
        """Sync, and let another writer in, also after an error. Raises: as flush and sync."""
        if not self._file.closed:
            try:
                self.sync()
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check_is_there(self) -> None:
        if not os.fstat(self._file.fileno()).st_nlink:
            raise StorageError(
                f"{self._path} was removed while it was written: nobody can read what is written to it; restore "
                "the run directory, then resume the job"
            )


def read_lines(path: Path) -> Iterator[bytes]:
    """The file's lines with their newlines, which a torn last one lacks. Raises: as open.

    A line longer than MAX_LINE_BYTES is the last one: it is given with one byte more than that, and nothing behind it.
    """
    with explained(path), path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line
            if len(line) > MAX_LINE_BYTES:
                return


def is_being_written(path: Path) -> bool:
    """Return whether a process of this machine has the journal open for writing; False where there is none."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # who opens it to write says what is wrong
        return False
    return False


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
    if size - start > MAX_LINE_BYTES:
        raise ConfigError(
            f"{path}: the last line has {size - start} bytes, and no trainer writes one of more than {MAX_LINE_BYTES}; "
            "it is damaged, cut it off to continue the file"
        )
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
