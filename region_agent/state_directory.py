"""The state directory of an agent: where each job's spool and weights lie, and which folders of past jobs are kept.

    <state directory>/spools/<job id>                    frames that the ledger has not committed (gateway/frames.py)
    <state directory>/weights/<job id>-<job authority>   a full state and the deltas after it (weights/disk/)
    <state directory>/tasks/<task id>                    files of a process that runs (launchers/task_folders.py)
    <state directory>/identity/                          the agent's certificates (control/identity.py)
    <state directory>/profiles/<model>-<engine>.json     what was measured here (profiling.py)
    <state directory>/gateway                            the address at which the gateway listened last
    <state directory>/egress.json                        what the gateway has sent today (owner/egress.py)

Whoever opens a folder removes it when its job ends. Folders of jobs that left the region otherwise stay for the jobs'
resumption, but only the newest few of each kind. A job with another job authority gets another folder of weights,
because readers no longer accept what the first authority certified, forks included.
"""

import contextlib
import logging
import shutil
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

from periplus.errors import PeriplusError
from periplus.job.run_directory import write_atomically
from periplus.process.telemetry import event
from periplus.spool.files import explained

log = logging.getLogger(__name__)

SHARED = ".periplus"
"""Name of the folder that holds the state directories, one per region, of agents that share a work directory."""

KEPT_SPOOLS = 8
"""Number of spools that are kept of jobs that left uncommitted frames: more than a person resumes. Chosen by hand."""

KEPT_WEIGHTS = 2
"""Number of folders of weights that are kept of jobs that are not here: as many as a person resumes at a time. It is
small because each holds a full state. Chosen by hand."""


class StateDirectory:
    """The paths below an agent's state directory `root`. Nothing is created here."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._spools = root / "spools"
        self._weights = root / "weights"
        self.tasks = root / "tasks"
        self.profiles = root / "profiles"
        self.identity = root / "identity"
        self.egress = root / "egress.json"
        self._gateway = root / "gateway"

    def spool_of(self, job_id: str) -> Path:
        """Return the folder of a job's spool."""
        return self._spools / _file_name(job_id)

    def weights_of(self, job_id: str, authority_key: bytes) -> Path:
        """Return the folder of the weights that a job publishes under this job authority."""
        return self._weights / f"{_file_name(job_id)}-{authority_key[:8].hex()}"

    def last_address(self) -> str:
        """Return the address at which the gateway listened last; empty if it is not known."""
        try:
            return self._gateway.read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def keep_address(self, address: str) -> None:
        """Note where the gateway listens, for processes that outlive the agent. An error is logged."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            write_atomically(self._gateway, f"{address}\n")
        except (OSError, PeriplusError) as error:
            event(log, logging.WARNING, "address_not_kept", why=error)

    def give_up_oldest(self, in_use: Collection[Path]) -> None:
        """Remove all but the newest folders that are not in use. Call it in a thread. Raises: StorageError."""
        for folder in _beyond_newest(self._spools, KEPT_SPOOLS, in_use):
            event(log, logging.WARNING, "spool_given_up", folder=folder)
            shutil.rmtree(folder, ignore_errors=True)
        for folder in _beyond_newest(self._weights, KEPT_WEIGHTS, in_use):
            event(log, logging.INFO, "weights_given_up", folder=folder)
            shutil.rmtree(folder, ignore_errors=True)

    def remove_if_empty(self) -> None:
        """Remove the folders around spools and weights, as far as they are empty."""
        # The folder above is shared with other regions' agents, and goes with the last of them.
        if not self.tasks.exists():
            self._gateway.unlink(missing_ok=True)
        shared = [self._root.parent] if self._root.parent.name == SHARED else []
        for folder in (self._weights, self._spools, self._root, *shared):
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _file_name(job_id: str) -> str:
    return quote(job_id, safe="").replace(".", "%2E")


def _beyond_newest(parent: Path, num_kept: int, in_use: Collection[Path]) -> list[Path]:
    """Return the folders in `parent` that are not in use, oldest first, without the newest `num_kept` of them."""
    with explained(parent):
        found = [path for path in parent.iterdir() if path not in in_use] if parent.is_dir() else []
        return sorted(found, key=lambda path: path.stat().st_mtime)[:-num_kept]
