"""Replicas: copies of checkpoints at a URL that outlives the trainer's region. A job goes on from one elsewhere.

    checkpoint -> take [links and copies on the trainer's disk] -> run [upload, in a thread] -> <url>/<job>/<policy>/
                                             fetch [download, in the next trainer's region] <-

A replica is the directory of a run as a killed trainer would have left it: `config.yaml`, `metrics.jsonl`,
`audit.jsonl`, the frames that a restore reads in `trajectories/`, and one checkpoint. So it is restored like any run
whose trainer died. `replica.json` says at which frame they begin. The trainer that goes on from it writes a `prune`
line about the earlier ones.

Invariants:
- What `take` sets aside is consistent: no audit line without its frame, and no record of a step without its audit line.
- The manifest is uploaded last, so that a replica with a manifest is complete. Nothing else is ever fetched.
- The name of a replica is a policy, which holds the fork. A trainer that was given up and still runs writes other ones.
- An upload does not hold up training, and its failure does not end a job: it is said, and tried again. If a newer
  checkpoint is there by then, that one is uploaded in place of the older one.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from periplus.errors import ConfigError, NotFound, PeriplusError, Unreachable
from periplus.job.run_directory import RunDirectory, explained, write_atomically
from periplus.process import threads
from periplus.process.backoff import Backoff
from periplus.process.telemetry import event
from periplus.spool.format import Position
from periplus.spool.spool import Spool
from periplus.values.policy import Policy
from periplus.values.replica_url import replica_url
from trainer.checkpointing import checkpoint
from trainer.checkpointing.manifest import MANIFEST, Manifest

log = logging.getLogger(__name__)

ASIDE = "replica"
"""Folder of a run's directory in which a replica waits to be uploaded."""

NOTE = "replica.json"
"""File of a replica with the first of its frames."""

KEPT = 2
"""Number of newest replicas of a job that stay: one may be read while the next one replaces the other."""

RETRY = Backoff(first_s=5.0, longest_s=120.0)
"""Pauses after failed uploads. Chosen by hand: a checkpoint is some minutes apart from the next."""

_CHECKPOINTS = RunDirectory(Path()).checkpoints.name


class Replicator:
    """Uploads the checkpoints of one trainer to `base`.

    `tell` is called on the event loop with a policy and the URL of its replica once that is complete, and with an empty
    URL and the reason when an upload has failed.
    """

    def __init__(
        self, base: str, job_id: str, run: RunDirectory, store: Spool, tell: Callable[[Policy, str, str], None]
    ) -> None:
        self._base = base
        self._job_id = job_id
        self._run = run
        self._store = store
        self._tell = tell
        self._aside = run.root / ASIDE
        self._waiting: Path | None = None
        self._changed = asyncio.Event()
        shutil.rmtree(self._aside, ignore_errors=True)  # of a trainer that died

    async def take(self, manifest: Manifest, first_frame: Position | None) -> None:
        """Set the replica of a checkpoint aside. `first_frame` is the first frame that a restore from it reads.

        An error, such as that of a full disk, is told: this checkpoint gets no replica.
        """
        folder = self._aside / str(manifest.policy)
        try:
            await asyncio.to_thread(self._set_aside, folder, manifest, first_frame)
        except (OSError, PeriplusError) as error:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            self._failed(manifest.policy, str(error))
            return
        # One that still waits is older, and nobody wants it any more.
        older, self._waiting = self._waiting, folder
        if older is not None:
            await asyncio.to_thread(shutil.rmtree, older, ignore_errors=True)
        self._changed.set()

    async def run(self) -> None:
        """Upload what is set aside, one replica at a time, until cancelled. A cancelled upload is left unfinished."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                folder, self._waiting = self._waiting, None
                if folder is not None:
                    await self._replicate(folder)
        finally:
            shutil.rmtree(self._aside, ignore_errors=True)

    async def _replicate(self, folder: Path) -> None:
        policy = Policy(*map(int, folder.name.split(".")))
        url = await self._uploaded(folder, policy)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if url:
            event(log, logging.INFO, "checkpoint_replicated", policy=policy, url=url)
            self._tell(policy, url, "")

    def _set_aside(self, folder: Path, manifest: Manifest, first_frame: Position | None) -> None:
        run, copy = self._run, RunDirectory(folder)
        with explained(folder):
            copy.checkpoints.mkdir(parents=True)
            # In this order: what is later may hold more than what is earlier says, as after a kill.
            for path in (run.config, run.metrics, run.audit):
                shutil.copyfile(path, folder / path.name)
            if first_frame is not None:
                self._store.copy(copy.trajectories, first_frame)
            write_atomically(folder / NOTE, _note(manifest.policy, first_frame))
            # Links, since checkpoints are large and never change. They stay when the checkpoint is removed.
            link = os.link if _can_link(run.config, folder / "link") else shutil.copyfile
            shutil.copytree(manifest.directory, copy.checkpoints / manifest.directory.name, copy_function=link)

    async def _uploaded(self, folder: Path, policy: Policy) -> str:
        """Upload a replica until that has worked, and return its URL; or an empty text once a newer one waits."""
        failures, url = 0, replica_url(self._base, self._job_id, policy)
        while True:
            try:
                await _in_daemon_thread(lambda: _upload(folder, url, policy))
                return url
            except Exception as error:  # file systems across a network raise errors of their own kinds
                pause_s = RETRY.pause_s(failures)
                failures += 1
                self._failed(policy, f"{str(error) or type(error).__name__}; tried again in {pause_s:.0f} s")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
                if self._waiting is not None:
                    return ""

    def _failed(self, policy: Policy, why: str) -> None:
        event(log, logging.WARNING, "checkpoint_not_replicated", policy=policy, base=self._base, why=why)
        self._tell(policy, "", why)


def fetch(url: str, run: RunDirectory) -> None:
    """Download a replica into the directory of a run. What another trainer left there is moved aside.

    Raises: NotFound if the replica is not complete, Unreachable if it cannot be read, StorageError.
    """
    partial = run.root / f".{ASIDE}"
    event(log, logging.INFO, "fetching_replica", url=url)
    with explained(run.root):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            files, path = _file_system(url)
            files.get(f"{path}/", f"{partial}/", recursive=True)
        except Exception as error:  # as above
            why = str(error) or type(error).__name__
            raise Unreachable(
                f"the replica {url} cannot be read: {why}; look at the agent's credentials and network, and whether "
                "fsspec's package for this scheme is installed"
            ) from error
        fetched = RunDirectory(partial)
        try:
            checkpoint.newest(fetched.checkpoints)
        except NotFound as error:
            raise NotFound(f"{url} is not a complete replica of a checkpoint; its upload was cut off") from error
        names = sorted(path.name for path in partial.iterdir() if path.name != _CHECKPOINTS)
        # Checkpoints leave first and come last: whoever finds one there finds the rest too.
        before = _free_folder(run.root)
        for name in (_CHECKPOINTS, *names, run.samples.name, run.final.name):
            if (run.root / name).exists():
                before.mkdir(exist_ok=True)
                (run.root / name).rename(before / name)
        for name in (*names, _CHECKPOINTS):
            (partial / name).rename(run.root / name)
        partial.rmdir()
    event(log, logging.INFO, "replica_fetched", url=url)


def frames_of_replica(run: RunDirectory) -> tuple[Policy, Position] | None:
    """Return the checkpoint of the replica from which a run's directory was fetched, and the first frame there.

    It is None if it was not fetched, or if the replica had no frames. Raises: ConfigError if the note is damaged.
    """
    path = run.root / NOTE
    if not path.exists():
        return None
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        first = note["kept_from"]
        return None if first is None else (Policy(*map(int, note["policy"])), Position(*map(int, first)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} does not say where the frames begin ({error!r}); fetch the replica again") from error


def _note(policy: Policy, first: Position | None) -> str:
    kept_from = None if first is None else [first.epoch, first.sequence]
    return json.dumps({"policy": [policy.fork, policy.version], "kept_from": kept_from})


def _upload(folder: Path, url: str, policy: Policy) -> None:
    files, path = _file_system(url)
    manifest = Path(_CHECKPOINTS, str(policy), MANIFEST)
    names = sorted(each.relative_to(folder) for each in folder.rglob("*") if each.is_file())
    for name in (*(each for each in names if each != manifest), manifest):
        target = f"{path}/{name.as_posix()}"
        files.makedirs(target.rpartition("/")[0], exist_ok=True)
        files.put_file(str(folder / name), target)
    _prune(files, path.rpartition("/")[0], policy)


def _prune(files: Any, parent: str, newest: Policy) -> None:
    """Remove the replicas of a job that are older than the newest ones, but none that is newer than `newest`."""
    found = []
    for entry in files.ls(parent, detail=False):
        fork, _, version = entry.rstrip("/").rpartition("/")[2].partition(".")
        if fork.isdecimal() and version.isdecimal() and (policy := Policy(int(fork), int(version))) <= newest:
            found.append((policy, entry))
    for _, entry in sorted(found)[:-KEPT]:
        files.rm(entry, recursive=True)


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec.core  # imports much, and few jobs need it

    files, path = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    return files, path.rstrip("/")


def _can_link(source: Path, trial: Path) -> bool:
    try:
        trial.hardlink_to(source)
    except OSError:
        return False
    trial.unlink()
    return True


def _free_folder(root: Path) -> Path:
    number = 1
    while (folder := root / f"before-replica-{number}").exists():
        number += 1
    return folder


async def _in_daemon_thread(work: Callable[[], None]) -> None:
    """Call `work` in a thread for which the process does not wait when it exits: a network may never answer."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()  # so that a cancelled wait leaves the thread a future that it can set

    def run() -> None:
        try:
            work()
        except Exception as error:  # raised again where it is awaited
            done.set_exception(error)
        else:
            done.set_result(None)

    threads.start(run)
    await asyncio.wrap_future(done)
