"""Output of commands: what a command makes appears whole or not at all, and nothing is replaced without --force.

Work is done in a hidden directory beside the destination (`.periplus-...`), and the finished product is renamed into
place. The hidden directory is removed in every case that Python sees: done, error, Ctrl-C, SIGTERM (`terminable`).
"""

import errno
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from periplus.errors import ConfigError, Conflict, NotFound, StorageError
from periplus.process.disk import sync
from periplus.values.weight_state import INDEX_FILE, SINGLE_FILE

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of the operating system that mean that there is no room."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """Directory in which a command makes its `product`, which is renamed to `destination` at the end."""

    folder: Path
    destination: Path

    @property
    def product(self) -> Path:
        return self.folder / "product"


@contextmanager
def making_file(destination: Path, *, force: bool) -> Iterator[Workplace]:
    """Yield a workplace. The body must make the file `product`, which replaces `destination` if the body succeeds.

    Raises: Conflict, NotFound, StorageError.
    """

    def check() -> None:
        if os.path.lexists(destination) and not destination.is_file():
            raise Conflict(f"{destination} is there and is no ordinary file; give another name")
        if os.path.lexists(destination) and not force:
            raise Conflict(f"{destination} is there already; give another name, or --force to replace it")

    with _making(destination, check) as work:
        yield work
        # Somebody may have made the file during the work.
        check()
        work.product.replace(destination)


@contextmanager
def making_directory(destination: Path, sources: Sequence[Path], *, force: bool) -> Iterator[Workplace]:
    """Yield a workplace. The body must make the directory `product`, which becomes `destination` if the body succeeds.

    With `force` it replaces an earlier checkpoint as a whole. Nothing but a checkpoint is ever removed, and none that
    contains one of `sources`.

    Raises: Conflict, NotFound, ConfigError, StorageError.
    """

    def check() -> None:
        _check_directory(destination, sources, force)

    with _making(destination, check) as work:
        yield work
        check()
        _swap_in(work)


def _check_directory(destination: Path, sources: Sequence[Path], force: bool) -> None:
    place = destination.resolve()
    for source in sources:
        if source.is_dir() and source.resolve() in place.parents:
            raise ConfigError(f"{destination} lies within {source}; give a place outside of it")
    if not os.path.lexists(destination) or (destination.is_dir() and not any(destination.iterdir())):
        return
    if not destination.is_dir() or destination.is_symlink():
        raise Conflict(f"{destination} is there and is no directory; give another name")
    if not force:
        raise Conflict(f"{destination} is there already; give another name, or --force to replace it")
    # Even --force removes only what looks like a checkpoint, never a home directory that was named by mistake.
    if not any((destination / name).is_file() for name in (SINGLE_FILE, INDEX_FILE)):
        raise Conflict(f"{destination} is no checkpoint (it has no {SINGLE_FILE}): --force replaces nothing else")
    # Replacing a directory removes what is in it, such as the inputs or the current directory.
    for source in (*sources, Path.cwd()):
        if place in source.resolve().parents or place == Path.cwd():
            raise Conflict(f"{destination} holds {source}, so that it cannot be replaced; give another name")


@contextmanager
def _making(destination: Path, check: Callable[[], None]) -> Iterator[Workplace]:
    with disk_errors(f"cannot write {destination}"):
        if not destination.parent.is_dir():
            raise NotFound(f"{destination.parent} does not exist; make that directory first")
        # Before the work, which may take minutes; and once more after it, by the caller.
        check()
        folder = Path(tempfile.mkdtemp(prefix=".periplus-", dir=destination.parent))
        try:
            yield Workplace(folder, destination)
            sync(destination.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _swap_in(work: Workplace) -> None:
    earlier = work.folder / "earlier"
    try:
        # A directory cannot be replaced by a rename if it holds files: move it aside first.
        if work.destination.is_dir() and any(work.destination.iterdir()):
            work.destination.rename(earlier)
        work.product.rename(work.destination)
    finally:
        # The second rename failed: put the earlier one back.
        if earlier.exists() and not os.path.lexists(work.destination):
            earlier.rename(work.destination)


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn the operating system's errors on files into a StorageError that begins with `what`."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        help_ = "; make room, or give a place on another disk" if error.errno in _NO_ROOM else ""
        raise StorageError(f"{what}: {error.strerror or error}{where}{help_}") from error


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM unwind the stack as Ctrl-C does, so that nothing is left behind."""
    # Python allows signal handlers in the main thread alone.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
