"""What the client reads in run directories: the checkpoint to resume from, and logs."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from periplus.errors import ConfigError, NotFound
from periplus.policy import Policy
from periplus.run_directory import RunDirectory, read_lines

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The newest that a run directory holds. `highest_fork`: of any trainer that ever wrote there, whether or not it
    lived to save a checkpoint; the next one needs a higher one, also from a coordinator that remembers none."""

    run_dir: Path
    job_id: str
    policy: Policy
    highest_fork: int

    @property
    def resume_policy(self) -> Policy:
        """What a request to resume names: where to go on from, and the fork to go beyond."""
        return Policy(self.highest_fork, self.policy.version)


def newest_checkpoint(run_dir: Path) -> Checkpoint:
    """The checkpoint with the highest (fork, version): only whole ones have a manifest.

    Raises: NotFound if there is none, ConfigError if a manifest says nothing sensible.
    """
    run = RunDirectory(run_dir)
    manifests = sorted(run.checkpoints.glob(f"*/{MANIFEST}"))
    if not manifests:
        raise NotFound(f"{run_dir} holds no checkpoint (checkpoints/FORK.VERSION/{MANIFEST}); is it a run directory?")
    newest = max((_read(run_dir.absolute(), manifest) for manifest in manifests), key=lambda found: found.policy)
    return replace(newest, highest_fork=max([newest.policy.fork, *_forks_of_records(run)]))


def _read(run_dir: Path, manifest: Path) -> Checkpoint:
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
        policy = Policy(int(data["fork"]), int(data["version"]))
        return Checkpoint(run_dir=run_dir, job_id=str(data["job_id"]), policy=policy, highest_fork=policy.fork)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{manifest} is no checkpoint manifest ({error!r}); remove that checkpoint") from error


def _forks_of_records(run: RunDirectory) -> Iterator[int]:
    for line in read_lines(run.metrics) if run.metrics.exists() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # whoever trains on says what is wrong with it
            yield int(json.loads(line)["fork"])


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
