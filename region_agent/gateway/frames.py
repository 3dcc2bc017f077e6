"""The frames of a region's own workers that the ledger has not committed yet, on disk, one spool a job.

    worker --frame--> take -> [append] -> acknowledged once durable -> the worker forgets it
                                       -> goes up, again after every lost connection, until commit -> retired

Invariants: a frame that was acknowledged is here until the trainer says that its ledger has it; a key that was taken is
not taken twice (after a restart: as far as it is still here); a full spool or disk makes `take` wait, which stops the
reading of the worker's stream and so, in the end, its generation. Nothing here ends a lease.

Where they lie: `<state directory>/spools/<job id>`. The folder goes when the job has left the region with nothing
uncommitted, or is done. What is left otherwise stays for the job's resumption; of such folders the newest
`KEPT_FOLDERS` stay. A spool that is damaged is set aside whole, under a name of its own, and said to be: its frames are
lost, their leases expire, and the job goes on.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from periplus.codec.frame import Frame
from periplus.errors import (
    CorruptFrame,
    CorruptSpool,
    DiskFull,
    PeriplusError,
    SpoolFull,
    StorageError,
    UnknownCodec,
)
from periplus.net import rpc
from periplus.net.convert import keyed_frame_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.process.telemetry import event
from periplus.spool.files import FileLayer, explained
from periplus.spool.format import Durability, Position
from periplus.spool.spool import Spool
from periplus.values.transport_keys import FrameKey, SeenFrames, pack_keyed, unpack_keyed

log = logging.getLogger(__name__)

SEGMENTS_PER_SPOOL = 32
"""Room is given back by the segment: so small a part that a spool is never full of what is committed."""

FULL_RETRY_S = 1.0
"""A disk may get room that nobody here gives back; a spool of its own accord never does."""

KEPT_FOLDERS = 8
"""Spools that are kept of jobs that left uncommitted frames behind: beyond any number that a person resumes."""

DAMAGED = ".damaged-"
STATE = ".periplus"
"""Where agents that share a work directory keep what is theirs, each under its region's name."""


class FrameSpool:
    """One job's. All methods but `durable` and `take` return at once."""

    def __init__(self, spool: Spool, region: str, durability: Durability, pending: dict[FrameKey, Position]) -> None:
        self._spool = spool
        self._durability = durability
        self._region = region
        self._pending = pending  # in the order of positions
        self._seen = SeenFrames()
        for key in pending:
            self._seen.add(key)
        self._room = asyncio.Event()
        self._syncing = asyncio.Lock()
        self._is_full = False

    @classmethod
    def open(
        cls, folder: Path, region: str, *, durability: Durability, max_bytes: int, layer: FileLayer | None = None
    ) -> "FrameSpool":
        """What an earlier process left there is pending again. Reads all of it.

        Raises: CorruptSpool, Conflict if another process has it open, StorageError.
        """
        spool = Spool.open(
            folder,
            durability=durability,
            max_bytes=max_bytes,
            layer=layer,
            segment_bytes=max(1 << 16, min(max_bytes // SEGMENTS_PER_SPOOL, 64 << 20)),
        )
        pending: dict[FrameKey, Position] = {}
        try:
            for record in spool.records():
                _recover(spool, record.position, record.data, pending)
        except BaseException:
            spool.close()
            raise
        return cls(spool, region, durability, pending)

    @property
    def pending(self) -> tuple[FrameKey, ...]:
        """What the ledger has not committed, oldest first."""
        return tuple(self._pending)

    @property
    def num_bytes(self) -> int:
        return self._spool.num_bytes

    async def take(self, key: FrameKey, frame: Frame) -> bool:
        """Append the frame, waiting for room; False if its key was taken before. Raises: StorageError."""
        while key not in self._seen:
            try:
                position = self._spool.append(*pack_keyed(key, frame))
            except (SpoolFull, DiskFull) as error:
                await self._wait_for_room(error)
                continue
            self._seen.add(key)
            self._pending[key] = position
            self._say_full(None)
            return True
        return False

    async def durable(self) -> None:
        """Return when everything taken before may be acknowledged. Raises: StorageError."""
        if self._durability is Durability.PROCESS:
            return  # since it was appended
        async with self._syncing:
            await asyncio.to_thread(self._spool.sync)

    def commit(self, keys: Iterable[FrameKey]) -> None:
        """The ledger has these; a repeat, or a key of elsewhere, is harmless."""
        for key in keys:
            position = self._pending.pop(key, None)
            if position is None:
                continue
            try:
                self._spool.retire(position)
            except StorageError as error:
                event(log, logging.ERROR, "spool_not_freed", folder=self._spool.folder, why=error)
        self._room.set()

    def message(self, key: FrameKey) -> gateway_pb2.RolloutUp | None:
        """The frame as it goes up; None if it has been committed meanwhile, or cannot be read any more."""
        position = self._pending.get(key)
        if position is None:
            return None
        try:
            data = self._spool.read(position)
            _, frame = unpack_keyed(data, max_payload_bytes=rpc.MAX_MESSAGE_BYTES)
        except PeriplusError as error:
            event(
                log,
                logging.ERROR,
                "frame_lost",
                worker=key.worker_id,
                epoch=key.epoch,
                sequence=key.sequence,
                why=error,
            )
            self.commit([key])
            return None
        return keyed_frame_to_pb(key, frame, self._region)

    def close(self, *, job_is_done: bool = False) -> bool:
        """Let go; the folder stays if something is uncommitted in it, as returned. Raises: StorageError."""
        if self._pending and not job_is_done:
            self._spool.close()
            return True
        self._spool.remove()
        return False

    async def _wait_for_room(self, error: StorageError) -> None:
        self._say_full(error)
        self._room.clear()
        with contextlib.suppress(TimeoutError):  # the disk may have room again
            async with asyncio.timeout(FULL_RETRY_S):
                await self._room.wait()

    def _say_full(self, error: StorageError | None) -> None:
        if error is not None and not self._is_full:
            event(log, logging.WARNING, "spool_full", folder=self._spool.folder, frames=len(self._pending), why=error)
        elif error is None and self._is_full:
            event(log, logging.INFO, "spool_has_room", folder=self._spool.folder)
        self._is_full = error is not None


def folder_of(state_dir: Path, job_id: str) -> Path:
    """Where a job's frames lie."""
    return state_dir / "spools" / quote(job_id, safe="").replace(".", "%2E")


def open_frames(folder: Path, region: str, *, durability: Durability, max_bytes: int) -> FrameSpool:
    """Open a job's spool; a damaged one is set aside first. Raises: Conflict, StorageError."""
    try:
        return FrameSpool.open(folder, region, durability=durability, max_bytes=max_bytes)
    except CorruptSpool as error:
        aside = _free_name(folder)
        event(log, logging.ERROR, "spool_damaged", set_aside=aside, why=error)
        with explained(folder):
            folder.rename(aside)
        return FrameSpool.open(folder, region, durability=durability, max_bytes=max_bytes)


def give_up_oldest(state_dir: Path, in_use: Iterable[str]) -> None:
    """Remove all but the newest folders of jobs that are not in use. Raises: StorageError."""
    folders = state_dir / "spools"
    used = {folder_of(state_dir, job_id).name for job_id in in_use}
    with explained(folders):
        found = [path for path in folders.iterdir() if path.name not in used] if folders.is_dir() else []
        left = sorted(found, key=lambda path: path.stat().st_mtime)
    for path in left[:-KEPT_FOLDERS]:
        event(log, logging.WARNING, "spool_given_up", folder=path)
        shutil.rmtree(path, ignore_errors=True)


def remove_if_empty(state_dir: Path) -> None:
    """The folders around spools, as far as nothing is in them."""
    for folder in (state_dir / "spools", state_dir, *([state_dir.parent] if state_dir.parent.name == STATE else [])):
        with contextlib.suppress(OSError):  # something is
            folder.rmdir()


def _recover(spool: Spool, position: Position, data: bytes, pending: dict[FrameKey, Position]) -> None:
    try:
        key, _ = unpack_keyed(data, max_payload_bytes=rpc.MAX_MESSAGE_BYTES)
    except (CorruptFrame, UnknownCodec) as error:
        event(log, logging.ERROR, "frame_lost", folder=spool.folder, position=position, why=error)
        spool.retire(position)
        return
    if pending.setdefault(key, position) != position:
        spool.retire(position)


def _free_name(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}{DAMAGED}{number}")).exists():
        number += 1
    return aside
