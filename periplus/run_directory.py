"""The folder that a run leaves behind, and the only writer of its small files.

    runs/<job-id>/
      config.yaml     the resolved job          metrics.jsonl   one Record a line
      plan.json       where it ran              audit.jsonl     one line a lease, result, consumption, drop, ...
      summary.json    what came out             report.html     the same for a person
      outcome.json    how the last trainer ended
      logs/           processes, links          checkpoints/    final/   weights
      trajectories/   a spool of the frames that came in, until a checkpoint covers them and longer

Files that are replaced appear whole or not at all (temporary file, fsync, rename). Files that grow take whole lines; a
line without its newline is torn, is never read, and is cut before the next append. The operating system's refusals
become PeriplusErrors that name the path. Nothing is created before `create`.
"""

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from periplus.errors import ConfigError, Denied, NotFound, PeriplusError
from periplus.record import Record

_START_LINE = re.compile(r"===== fork (\d+), start \d+ =====")


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
        """Make the folders; a repeat is harmless."""
        for folder in (self.logs, self.checkpoints, self.final):
            with explained(folder):
                folder.mkdir(parents=True, exist_ok=True)

    def append(self, record: Record) -> None:
        """Add one line to metrics.jsonl and hand it to the operating system."""
        append_line(self.metrics, record.to_json())

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


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`: a reader, or a power cut, finds the old content or the new."""
    with explained(path):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), 0o644)  # mkstemp makes it private; reports are for everybody
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line, cutting a torn one before it. Raises: ValueError for text of several lines."""
    if "\n" in line:
        raise ValueError(f"one line expected, got {line.count(chr(10)) + 1}: {line[:80]!r}")
    with explained(path), path.open("ab+") as file:
        _cut_torn_line(path, file.tell())
        file.write(line.encode() + b"\n")


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


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Translate the operating system's refusal about `path`."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist; check the run directory's path") from error
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Denied(f"no permission for {path}; choose a run directory you own, or change its mode") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PeriplusError(f"the disk is full at {path}; free space and resume the job") from error
        raise PeriplusError(f"cannot use {path}: {error.strerror or error}") from error
