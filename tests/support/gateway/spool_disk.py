"""The disk of a gateway's spool: a real folder, whose owner may be killed, lose its power, or find the disk full."""

import contextlib
import errno
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from periplus.errors import DiskFull, StorageError
from periplus.spool.database import DATABASE, LOG
from periplus.spool.spool import Spool

SYNCS_FAST = Path("/dev/shm")
"""A folder in memory, where there is one."""


class SpoolDisk:
    """A folder that moves when its owner dies, so that the dead one writes to another."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="periplus-spool-", dir=SYNCS_FAST if SYNCS_FAST.exists() else None))
        weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        self._life = 0
        self._spool: Spool | None = None
        self._synced: dict[str, bytes] = {}
        self.is_full = False
        self.failing_syncs = False
        self.num_syncs = 0

    @property
    def folder(self) -> Path:
        return self._root / str(self._life)

    def watch(self, spool: Spool) -> None:
        """Put the faults into a spool that was opened in `folder`."""
        sync_log, append = spool._sync_log, spool.append

        def sync_or_fail() -> None:
            self.num_syncs += 1
            if self.failing_syncs:
                raise OSError(errno.EIO, "Input/output error")
            sync_log()
            self._synced = self._files()

        def append_or_refuse(*parts: Any) -> Any:
            if self.is_full:
                raise DiskFull("the disk is full")
            return append(*parts)

        spool._sync_log, spool.append = sync_or_fail, append_or_refuse  # type: ignore[method-assign]
        self._spool, self._synced = spool, self._files()

    def kill(self) -> None:
        """Kill the owner: what it has written stays."""
        self._move(self._files())

    def cut_power(self, choose: Callable[[int], int]) -> None:
        """Cut the power: `choose` decides with a number from 0 to 1 whether what was not synced survives."""
        self._move(self._files() if choose(1) else self._synced)

    def _files(self) -> dict[str, bytes]:
        return {name: (self.folder / name).read_bytes() for name in (DATABASE, LOG) if (self.folder / name).exists()}

    def _move(self, files: dict[str, bytes]) -> None:
        if self._spool is not None:
            with contextlib.suppress(StorageError):
                self._spool.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._life += 1
        self.folder.mkdir()
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
