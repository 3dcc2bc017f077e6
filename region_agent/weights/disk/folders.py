"""Folders of jobs' weights: `<state directory>/weights/<job id>-<job authority>`, and which of them are kept.

A folder is removed when its job ends. Folders of jobs that left the region otherwise are kept for resumption, but only
the newest `KEPT_FOLDERS`, because each holds a full state. A job with another job authority gets another folder,
because readers no longer accept what the first authority certified, forks included.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from periplus.process.telemetry import event
from periplus.spool.files import explained

log = logging.getLogger(__name__)

KEPT_FOLDERS = 2
"""Kept folders of jobs that are not here: as many as a person resumes at a time. Chosen by hand."""

_FOLDER = "weights"


def folder_of(state_dir: Path, job_id: str, authority_key: bytes) -> Path:
    """Return the folder of a job's weights."""
    name = quote(job_id, safe="").replace(".", "%2E")
    return state_dir / _FOLDER / f"{name}-{authority_key[:8].hex()}"


def give_up_oldest(state_dir: Path, in_use: Iterable[Path]) -> None:
    """Remove all but the newest folders that are not in use. Call it in a thread. Raises: StorageError."""
    folders, used = state_dir / _FOLDER, {path.name for path in in_use}
    with explained(folders):
        found = [path for path in folders.iterdir() if path.name not in used] if folders.is_dir() else []
        left = sorted(found, key=lambda path: path.stat().st_mtime)
    for path in left[:-KEPT_FOLDERS]:
        event(log, logging.INFO, "weights_given_up", folder=path)
        shutil.rmtree(path, ignore_errors=True)


def remove_if_empty(state_dir: Path) -> None:
    """Remove the parent folder of all jobs' weights if it is empty."""
    with contextlib.suppress(OSError):
        (state_dir / _FOLDER).rmdir()
