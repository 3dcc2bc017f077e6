"""Where the weights of jobs lie: `<state directory>/weights/<job id>-<job authority>`, and which of them stay.

A folder goes with its job's end. What is left of jobs that left the region otherwise stays for their resumption, but
only of the newest `KEPT_FOLDERS`: each holds a full state. Another authority gives a job another folder: what the first
one certified, forks included, means nothing then.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from periplus.spool.files import explained
from periplus.telemetry import event

log = logging.getLogger(__name__)

KEPT_FOLDERS = 2
"""Of jobs that are not here: as many as a person resumes at a time."""

_FOLDER = "weights"


def folder_of(state_dir: Path, job_id: str, authority_key: bytes) -> Path:
    """Where a job's weights lie."""
    name = quote(job_id, safe="").replace(".", "%2E")
    return state_dir / _FOLDER / f"{name}-{authority_key[:8].hex()}"


def give_up_oldest(state_dir: Path, in_use: Iterable[Path]) -> None:
    """Remove all but the newest folders that are not in use; for a thread. Raises: StorageError."""
    folders, used = state_dir / _FOLDER, {path.name for path in in_use}
    with explained(folders):
        found = [path for path in folders.iterdir() if path.name not in used] if folders.is_dir() else []
        left = sorted(found, key=lambda path: path.stat().st_mtime)
    for path in left[:-KEPT_FOLDERS]:
        event(log, logging.INFO, "weights_given_up", folder=path)
        shutil.rmtree(path, ignore_errors=True)


def remove_if_empty(state_dir: Path) -> None:
    """The folder around them, if nothing is in it."""
    with contextlib.suppress(OSError):
        (state_dir / _FOLDER).rmdir()
