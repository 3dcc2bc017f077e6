"""File access to the audit journal `audit.jsonl`: the trainer's appender, and the auditor's reader of raw lines.

An `AuditJournal` continues the hash chain where the file ends. Appended lines stay in memory until they are flushed or
synced. `flush` gives them to the operating system, so they survive the process. If the disk is full it writes none of
them, keeps all in memory, and may be called again. `sync` puts them on disk, so they survive the machine. The caller
must flush or sync before anybody acts on a line: before a batch is trained on, a version is published, a manifest is
written, or a gateway is told that its frame is committed. Frames are synced before the lines that point at them.

A last line without a newline was being written when the process died, and nobody acted on it. Opening the file cuts it
off, and `cut_bytes` says how long it was. A file has one writer at a time, and a second one is refused.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from periplus.audit.records import MAX_LINE_BYTES, START_OF_CHAIN, Entry, chain_hash, from_line, to_line
from periplus.errors import ConfigError, Conflict, CorruptFrame, StorageError
from periplus.job.run_directory import append_whole, explained
from periplus.process.disk import sync

_TAIL_BYTES = 1 << 16
"""Bytes read at a time in search of the last line. Most lines have 200 bytes, those of a batch about ten thousand."""


class ChainEnd(NamedTuple):
    """End of the chain: the number `n` of the next line, and the hash `prev` of the last one."""

    n: int
    prev: bytes


class AuditJournal:
    """The only writer of a run's `audit.jsonl`. Only `sync_flushed` may run in another thread."""

    def __init__(self, path: Path, file: BinaryIO, position: ChainEnd, cut_bytes: int) -> None:
        self._path = path
        self._file = file
        self._lines: list[bytes] = []
        self._position = position
        self.cut_bytes = cut_bytes
        """Bytes of the torn last line that opening removed; 0 if there was none."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or create it, and continue its chain.

        Raises: Conflict if another process writes it, ConfigError if its last line cannot be parsed, and another
        PeriplusError for an error of the operating system.
        """
        with explained(path):
            is_new = not path.exists()
            file = path.open("ab+")
            try:
                # The lock comes first: another trainer may be in the middle of the line that would be cut.
                _lock(path, file)
                cut_bytes = _cut_torn_line(file)
                position = _position(path, file)
                # The file's name must survive a power cut before its lines are relied on.
                if is_new:
                    sync(path.parent)
            except BaseException:
                file.close()
                raise
        return cls(path, file, position, cut_bytes)

    @property
    def position(self) -> ChainEnd:
        """Number of the next line and hash of the last one, counting lines that are not flushed yet."""
        return self._position

    def append(self, record: Entry, time_s: float, seal: Callable[[int, bytes], Entry] | None = None) -> int:
        """Append a line in memory and return its number. `time_s` counts seconds since 1970.

        `seal(number, hash of the line before)` makes a second line, which is flushed in one piece with the first.
        """
        # The position is now behind the added line: the seal becomes the next one, and signs that line's hash.
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
        """Write all lines in memory to the file, without waiting for the disk.

        Raises: DiskFull, and then all lines stay in memory; Denied or StorageError, also if the file was removed.
        """
        if not self._lines:
            return
        # Writing to a file that was removed would succeed, and its lines would be lost.
        self._check_is_there()
        data = b"\n".join(self._lines) + b"\n"
        with explained(self._path, len(data)):
            append_whole(self._file.fileno(), data)
        self._lines.clear()

    def sync(self) -> None:
        """Write all lines and wait until they are on disk. Raises: as `flush` and `sync_flushed`."""
        self.flush()
        self.sync_flushed()

    def sync_flushed(self) -> None:
        """Wait until all flushed lines are on disk. It may run in a thread while another one appends.

        Raises: StorageError. After that nobody knows what is on the disk, so even a full disk cannot be waited out.
        """
        self._check_is_there()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self._path} could not be synced ({error.strerror or error}): nobody knows which lines are on the "
                "disk; repair the disk, then resume the job from its last checkpoint"
            ) from error

    def close(self) -> None:
        """Sync, and release the file to another writer, even after an error. Raises: as `sync`."""
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
                f"{self._path} was removed while it was written, so nobody can read its new lines; restore "
                "the run directory, then resume the job"
            )


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal with their newlines, which an unfinished last line lacks.

    A line longer than MAX_LINE_BYTES ends the iteration: its first MAX_LINE_BYTES + 1 bytes are yielded, and nothing
    after it.

    Raises: PeriplusErrors for errors of the operating system.
    """
    with explained(path), path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line
            if len(line) > MAX_LINE_BYTES:
                return


def is_being_written(path: Path) -> bool:
    """Return whether a process of this machine has the journal open for writing; False if the file does not exist."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # whoever opens it for writing will report the error
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
    # The size without the last byte, which is the newline of the last whole line.
    start = _after_newline_before(file, size - 1)
    if size - start > MAX_LINE_BYTES:
        raise ConfigError(
            f"{path}: the last line has {size - start} bytes, and no trainer writes more than {MAX_LINE_BYTES}; "
            "it is damaged, cut it off to continue the file"
        )
    file.seek(start)
    line = file.read(size - 1 - start)
    try:
        # Only the last line is read: its number and hash are all that the next line needs.
        return ChainEnd(from_line(line, str(path)).n + 1, chain_hash(line))
    except CorruptFrame as error:
        raise ConfigError(f"{error}; the last line is damaged, cut it off to continue the file") from error


def _after_newline_before(file: BinaryIO, end: int) -> int:
    """Return the offset just after the last newline before `end`, or 0 if there is none."""
    # Read backwards in blocks: the last line may be long, and the file much longer.
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
