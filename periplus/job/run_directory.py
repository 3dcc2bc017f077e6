"""The folder that a run leaves behind, and the only writer of its small files.

    runs/<job-id>/
      config.yaml     the resolved job          metrics.jsonl   one Record a line
      plan.json       where it ran              audit.jsonl     one line a lease, result, consumption, drop, ...
      summary.json    what came out             report.html     the same for a person
      outcome.json    how the last trainer ended
      logs/           processes, links          checkpoints/    final/   weights
      trajectories/   a spool of the frames that came in, until a checkpoint covers them and longer

Files that are replaced appear whole or not at all (temporary file, fsync, rename); a temporary file that a killed
process left is removed by the next `create`. Files that grow take whole lines: after a refused write the file is as
long as before; a line without its newline is torn, is never read, and is cut before the next append. Modes follow the
umask. The operating system's refusals become PeriplusErrors that name the path. Nothing is created before `create`.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from periplus.errors import ConfigError, Denied, NotFound, StorageError
from periplus.process.disk import no_room
from periplus.values.record import Record

_START_LINE = re.compile(r"===== fork (\d+), start \d+ =====")
PARTIAL = ".partial"
"""Suffix of a file or folder that is being written, and that nobody reads."""


class RunDirectory:
    """The layout under `root`."""

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
        self.checkpoints = root / "checkpoints"
        self.final = root / "final"

    def create(self) -> None:
        """Make the folders, and remove what dead processes left half-written; a repeat is harmless. `final` is made by
        the export, since it is there only when it is whole."""
        for folder in (self.logs, self.checkpoints):
            with explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
        for path in self.root.glob(f".*{PARTIAL}"):
            if not _is_alive(path.name.removesuffix(PARTIAL).rpartition(".")[2]):
                path.unlink(missing_ok=True)

    def append(self, *records: Record) -> None:
        """Add lines to metrics.jsonl and hand them to the operating system: all of them, or none and an error.

        Raises: DiskFull and other StorageErrors, Denied, NotFound.
        """
        append_lines(self.metrics, [record.to_json() for record in records])

    def records(self) -> tuple[Record, ...]:
        """Every whole line of metrics.jsonl, in order.

        Raises: NotFound if there is no such file, ConfigError if a whole line is no record.
        """
        return tuple(_parse(self.metrics, number, line) for number, line in enumerate(read_lines(self.metrics), 1))


def start_line(fork: int, restarts: int) -> str:
    """Return the line that begins the output of one process in its log, which several processes may share in turn."""
    return f"===== fork {fork}, start {restarts + 1} ====="


def fork_of_start_line(line: str) -> int | None:
    """Return the fork of a line that `start_line` made, None of any other line."""
    match = _START_LINE.fullmatch(line)
    return int(match[1]) if match else None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content`: a reader, or a power cut, finds the old content or the new.

    Raises: DiskFull and other StorageErrors, Denied, NotFound; the old content is still there.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    with explained(path, len(data)):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line, cutting a torn one before it. Raises: as append_lines."""
    append_lines(path, (line,))


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Add lines, cutting a torn one before them: all of them, or none and an error.

    Raises: ValueError for an item of several lines; DiskFull and other StorageErrors, Denied, NotFound.
    """
    for line in lines:
        if "\n" in line:
            raise ValueError(f"one line expected, got {line.count(chr(10)) + 1}: {line[:80]!r}")
    data = "".join(f"{line}\n" for line in lines).encode()
    with explained(path, len(data)), path.open("ab+", buffering=0) as file:
        _cut_torn_line(path, file.tell())
        append_whole(file.fileno(), data)


def append_whole(descriptor: int, data: bytes) -> None:
    """Append all of `data` to a file that is open for appending, or none of it. Raises: OSError."""
    size, view = os.fstat(descriptor).st_size, memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        try:
            os.ftruncate(descriptor, size)
        except OSError as cut:  # no full disk any more: a second attempt would write behind the torn bytes
            raise OSError(errno.EIO, f"half-written bytes could not be cut back: {cut.strerror}") from error
        raise


def read_lines(path: Path) -> list[str]:
    """The whole lines of a growing file; a torn last one is left out."""
    with explained(path):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    return whole.decode(errors="replace").split("\n") if whole else []


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        return Record.from_json(line)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} line {number} is no record ({error!r}): {line[:80]!r}; remove the line") from error


def _cut_torn_line(path: Path, size: int) -> None:
    with path.open("rb+") as file:
        file.seek(max(0, size - 1))
        if size == 0 or file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def sync_folder(folder: Path) -> None:
    """Make names that were added to or removed from a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_alive(process_id: str) -> bool:
    return process_id.isdigit() and Path("/proc", process_id).exists()


@contextlib.contextmanager
def explained(path: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Translate the operating system's refusal about `path`, into which `needed_bytes` go (0: not known)."""
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
            f"cannot use {path}: {error.strerror or error}; mend the disk, then resume the job"
        ) from error
