"""The folder of a local fleet inside its directory, where its services keep logs and ready files.

It is `.periplus/_up`: beside the state directories of the agents, with a name that no region can have. One fleet at a
time holds it, by a lock that the system releases when the fleet's process ends, however it ends. It is removed with the
fleet, unless the fleet failed: then the logs of its services stay until the next one starts.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from periplus.errors import Conflict, Denied

FOLDER = Path(".periplus", "_up")
"""Folder below the fleet's directory. Names of regions begin with a letter or digit, so it is never an agent's."""

LOCK = "lock"
"""File in the folder that the fleet holds locked."""


@contextlib.contextmanager
def held_folder(directory: Path) -> Iterator[Path]:
    """Hold the folder of a fleet and yield it, empty but for its lock; remove it if the context ends without an error.

    Raises: Conflict if another fleet holds it, Denied if it cannot be made.
    """
    folder = directory / FOLDER
    with _refused(folder):
        descriptor = _locked(folder)
    try:
        with _refused(folder):
            _empty(folder)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
        # The folder above is shared with the agents, and goes with the last of them.
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """Return a descriptor of the locked file. Raises: Conflict, OSError."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # another fleet has just removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise Conflict(
                f"a local fleet runs in {folder.parent.parent} already; use it (commands find it by themselves), stop "
                "it, or start this one in another directory with --dir"
            ) from error
        # The fleet that held the lock before may have removed the file in between; then nobody else sees this one.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


@contextlib.contextmanager
def _refused(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Denied(
            f"cannot use {folder}: {error.strerror}; give a directory that you may write with --dir"
        ) from error
