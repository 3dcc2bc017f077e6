"""What the client reads in run directories: the checkpoint to resume from, and logs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from periplus.errors import ConfigError, NotFound
from periplus.policy import Policy
from periplus.run_directory import RunDirectory

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The newest that a run directory holds."""

    run_dir: Path
    job_id: str
    policy: Policy


def newest_checkpoint(run_dir: Path) -> Checkpoint:
    """The checkpoint with the highest (fork, version): only whole ones have a manifest.

    Raises: NotFound if there is none, ConfigError if a manifest says nothing sensible.
    """
    manifests = sorted(RunDirectory(run_dir).checkpoints.glob(f"*/{MANIFEST}"))
    if not manifests:
        raise NotFound(f"{run_dir} holds no checkpoint (checkpoints/FORK.VERSION/{MANIFEST}); is it a run directory?")
    return max((_read(run_dir.absolute(), manifest) for manifest in manifests), key=lambda found: found.policy)


def _read(run_dir: Path, manifest: Path) -> Checkpoint:
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
        policy = Policy(int(data["fork"]), int(data["version"]))
        return Checkpoint(run_dir=run_dir, job_id=str(data["job_id"]), policy=policy)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{manifest} is no checkpoint manifest ({error!r}); remove that checkpoint") from error


def log_files(logs: Path, job_id: str, task: str) -> tuple[Path, ...]:
    """The logs of one task (its id, or the part after the job), or of all when `task` is empty.

    Raises: NotFound naming those there are.
    """
    files = sorted(logs.glob("*.log"))
    if not task:
        return tuple(files)
    wanted = task.removeprefix(f"{job_id}/").replace(":", "-").replace("/", "-")
    chosen = tuple(file for file in files if file.stem == wanted)
    if not chosen:
        there = ", ".join(file.stem for file in files) or "none yet"
        raise NotFound(f"no log of task {task!r} in {logs}; there: {there}")
    return chosen


class Tail:
    """Whole lines as they are added to a set of growing files."""

    def __init__(self) -> None:
        self._read_bytes: dict[Path, int] = {}

    def new_lines(self, files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
        """What came since the last call, file by file."""
        for file in files:
            with file.open("rb") as stream:
                stream.seek(self._read_bytes.get(file, 0))
                whole, newline, _ = stream.read().rpartition(b"\n")
            self._read_bytes[file] = self._read_bytes.get(file, 0) + len(whole) + len(newline)
            if newline:
                yield from ((file, line) for line in whole.decode(errors="replace").split("\n"))
