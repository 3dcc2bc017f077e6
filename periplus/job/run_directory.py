"""The directory of a run: its layout, and the functions that write its small files.

    runs/<job-id>/
      config.yaml     the resolved job              metrics.jsonl   one Record per line
      plan.json       the job's placement           audit.jsonl     one line per lease, result, consumption, drop, ...
      summary.json    the run's results             report.html     a page about the run
      outcome.json    how the last trainer ended    final/          the trained weights
      logs/           logs of processes and links   checkpoints/    one folder per checkpoint
      trajectories/   a spool of the received frames, kept at least until a checkpoint covers them
      samples/        figures of each sample that was trained on, and the tokenizer (periplus/job/samples/)
      trackers/       one folder per tracker of output.trackers, with that tracker's own files
      replica/        what waits to be copied to checkpoint.replicate; replica.json says that the run was fetched from
                      there, and before-replica-N/ has what the directory held before

A file that is replaced is replaced atomically (temporary file, fsync, rename); the next `create` removes a temporary
file that a killed process left. A file that grows gets whole lines: after a failed write it is as long as before. A
last line without a newline is torn: it is never read, and it is cut off before the next append. File modes follow the
umask. Errors of the operating system become PeriplusErrors that name the path. Nothing is created before `create`.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from periplus.errors import ConfigError, Denied, NotFound, StorageError
from periplus.process.disk import PARTIAL, no_room, replacing
from periplus.values.record import Record

_START_LINE = re.compile(r"===== fork (\d+), start \d+ =====")


class RunDirectory:
    """The paths of a run's files under its directory `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"
        self.metrics = root / "metrics.jsonl"
        self.audit = root / "audit.jsonl"
        self.plan = root / "plan.json"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        self.outcome = root / "outcome.json"
        self.logs = root / "logs"
        self.fleet = self.logs / "fleet.jsonl"
        self.trajectories = root / "trajectories"
        self.samples = root / "samples"
        self.checkpoints = root / "checkpoints"
        self.final = root / "final"
        self.trackers = root / "trackers"

    def create(self) -> None:
        """Make the folders, and remove temporary files that dead processes left. Repeating the call is harmless.

        `final` is not made here: the export makes it by a rename, so that it exists only when it is complete.
        """
        for folder in (self.logs, self.checkpoints):
            with explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
        # The name of a temporary file holds the process that made it; those of living processes are left alone.
        for path in self.root.glob(f".*{PARTIAL}"):
            if not _is_alive(path.name.removesuffix(PARTIAL).rpartition(".")[2]):
                path.unlink(missing_ok=True)

    def append(self, *records: Record) -> None:
        """Append records to metrics.jsonl as lines: all of them, or none and an error.

        Raises: DiskFull and other StorageErrors, Denied, NotFound.
        """
        append_lines(self.metrics, [record.to_json() for record in records])

    def records(self) -> tuple[Record, ...]:
        """Return the record of every whole line of metrics.jsonl, in order.

        Raises: NotFound if the file does not exist, ConfigError if a whole line is not a record.
        """
        return tuple(_parse(self.metrics, number, line) for number, line in enumerate(read_lines(self.metrics), 1))


def start_line(fork: int, restarts: int) -> str:
    """Return the line that begins the output of one process in a log file that several processes write in turn."""
    return f"===== fork {fork}, start {restarts + 1} ====="


def fork_of_start_line(line: str) -> int | None:
    """Return the fork of a line that `start_line` made, or None for any other line."""
    match = _START_LINE.fullmatch(line)
    return int(match[1]) if match else None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the content of `path` atomically: readers, also after a power cut, find the old content or the new.

    Raises: DiskFull and other StorageErrors, Denied, NotFound; the old content is then still there.
    """
    data = content.encode() if isinstance(content, str) else content
    with explained(path, len(data)), replacing(path) as file:
        file.write(data)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, after cutting off a torn last line. Raises: the errors of `append_lines`."""
    append_lines(path, (line,))


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Append lines to a file, after cutting off a torn last line: all of them, or none and an error.

    Raises: ValueError for an item of several lines; DiskFull and other StorageErrors, Denied, NotFound.
    """
    for line in lines:
        if "\n" in line:
            raise ValueError(f"one line expected, got {line.count(chr(10)) + 1}: {line[:80]!r}")
    data = "".join(f"{line}\n" for line in lines).encode()
    with explained(path, len(data)), path.open("ab+", buffering=0) as file:
        # A process that was killed may have left half a line, to which the first new one would be joined.
        _cut_torn_line(path, file.tell())
        append_whole(file.fileno(), data)


def append_whole(descriptor: int, data: bytes) -> None:
    """Append all of `data`, or none of it, to a file that is open for appending. Raises: OSError."""
    size, view = os.fstat(descriptor).st_size, memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        try:
            os.ftruncate(descriptor, size)
        except OSError as cut:  # not reported as a full disk: a retry would write behind the torn bytes
            raise OSError(errno.EIO, f"half-written bytes could not be cut back: {cut.strerror}") from error
        raise


def read_lines(path: Path) -> list[str]:
    """Return the whole lines of a growing file without a torn last line. Raises: NotFound, StorageError, Denied."""
    with explained(path):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    return whole.decode(errors="replace").split("\n") if whole else []


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        return Record.from_json(line)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} line {number} is not a record ({error!r}): {line[:80]!r}; remove it") from error


def _cut_torn_line(path: Path, size: int) -> None:
    with path.open("rb+") as file:
        file.seek(max(0, size - 1))
        if size == 0 or file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _is_alive(process_id: str) -> bool:
    return process_id.isdigit() and Path("/proc", process_id).exists()


@contextlib.contextmanager
def explained(path: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Translate an OSError about `path` into a PeriplusError that names it.

    `needed_bytes` is the number of bytes that are written, or 0 if it is not known.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist; check the run directory's path") from error
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            why = "its file system is read-only" if error.errno == errno.EROFS else "no permission"
            raise Denied(
                f"cannot write {path}: {why}; choose a run directory you own, or change its mode, then resume the job"
            ) from error
        full = no_room(path, error, needed_bytes)
        raise full or StorageError(
            f"cannot use {path}: {error.strerror or error}; repair the disk, then resume the job"
        ) from error
