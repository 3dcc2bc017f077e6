"""What the client reads of a run's logs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from periplus.errors import NotFound
from periplus.job.run_directory import fork_of_start_line


def log_files(folders: Sequence[Path], job_id: str, task: str) -> tuple[Path, ...]:
    """The logs of one task (its id, or the part after the job), or of all when `task` is empty.

    Raises: NotFound naming those there are.
    """
    files = sorted(file for folder in folders for file in folder.glob("*.log"))
    if not task:
        return tuple(files)
    wanted = task.removeprefix(f"{job_id}/").replace(":", "-").replace("/", "-")
    chosen = tuple(file for file in files if file.stem == wanted)
    if not chosen:
        there = ", ".join(file.stem for file in files) or "none yet"
        raise NotFound(f"no log of task {task!r} in {', '.join(map(str, folders))}; there: {there}")
    return chosen


def newest_fork_starts(files: Sequence[Path]) -> dict[Path, int]:
    """Return where the newest fork's output begins in each log: at its end if it is of earlier forks alone.

    A log without start lines, as services write, belongs to no fork and is new from its beginning.
    """
    starts = {file: _fork_starts(file) for file in files}
    newest = max((fork for found in starts.values() for fork in found), default=0)
    return {file: found.get(newest, file.stat().st_size) for file, found in starts.items() if found}


def _fork_starts(file: Path) -> dict[int, int]:
    starts: dict[int, int] = {}
    position = 0
    with file.open("rb") as stream:
        for line in stream:
            fork = fork_of_start_line(line.rstrip(b"\n").decode(errors="replace"))
            if fork is not None:
                starts.setdefault(fork, position)
            position += len(line)
    return starts


class RunTail:
    """Whole lines as they are added to a set of growing files, each from where `begin_bytes` says."""

    def __init__(self, begin_bytes: Mapping[Path, int]) -> None:
        self._read_bytes = dict(begin_bytes)

    def new_lines(self, files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
        """What came since the last call, file by file."""
        for file in files:
            with file.open("rb") as stream:
                stream.seek(self._read_bytes.get(file, 0))
                whole, newline, _ = stream.read().rpartition(b"\n")
            self._read_bytes[file] = self._read_bytes.get(file, 0) + len(whole) + len(newline)
            if newline:
                yield from ((file, line) for line in whole.decode(errors="replace").split("\n"))
