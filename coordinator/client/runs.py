"""Finds and reads the log files of a run's processes, for `periplus job logs`.

Several processes may write to the same log in turn. Each process that an agent starts begins its output with a start
line, which names the fork, so that the output of earlier forks can be skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from periplus.errors import NotFound
from periplus.job.run_directory import fork_of_start_line


def log_files(folders: Sequence[Path], job_id: str, task: str) -> tuple[Path, ...]:
    """Return the log files of one task, or of all tasks when `task` is empty.

    `task` is a task's id, or the part of it after the job's id.
    Raises: NotFound with the names of the existing logs, if the task has none.
    """
    files = sorted(file for folder in folders for file in folder.glob("*.log"))
    if not task:
        return tuple(files)
    # Agents make the log's name from the task's id by the same replacements.
    wanted = task.removeprefix(f"{job_id}/").replace(":", "-").replace("/", "-")
    chosen = tuple(file for file in files if file.stem == wanted)
    if not chosen:
        there = ", ".join(file.stem for file in files) or "none yet"
        raise NotFound(f"no log of task {task!r} in {', '.join(map(str, folders))}; logs there: {there}")
    return chosen


def newest_fork_starts(files: Sequence[Path]) -> dict[Path, int]:
    """Return the byte position in each log at which the newest fork's output begins.

    This is the end of the file for a log with output of earlier forks only. A log without start lines, such as that of
    a service, belongs to no fork: it is left out, and so is read from its beginning.
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
    """Reads the whole lines that are added to growing files, each from its position in `begin_bytes`, or from 0."""

    def __init__(self, begin_bytes: Mapping[Path, int]) -> None:
        self._read_bytes = dict(begin_bytes)

    def new_lines(self, files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
        """Yield the lines added since the last call, file by file; an unfinished last line is left for later."""
        for file in files:
            with file.open("rb") as stream:
                stream.seek(self._read_bytes.get(file, 0))
                whole, newline, _ = stream.read().rpartition(b"\n")
            self._read_bytes[file] = self._read_bytes.get(file, 0) + len(whole) + len(newline)
            if newline:
                yield from ((file, line) for line in whole.decode(errors="replace").split("\n"))
