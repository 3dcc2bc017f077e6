"""Frame spool: trajectory frames of the region's own workers on disk, until the trainer's ledger has committed them.

    worker --frame--> take -> [append] -> acknowledged once durable -> the worker forgets it
                                       -> sent up, again after every lost connection, until commit -> retired

There is one spool per job. A frame is identified by its key: worker id, start of the worker's process, sequence number.
Invariants:

- An acknowledged frame stays here until the trainer says that its ledger has it.
- A key is taken only once. After a restart this holds for the keys that are still here.
- If the spool or the disk is full, `take` waits. Then the gateway stops reading the worker's stream, and in the end the
  worker stops generating.
- Nothing here ends a lease.

A spool's folder is removed when the job is done, or when it has left the region and nothing is uncommitted. Other
folders stay for the job's resumption (state_directory.py). A damaged spool is renamed as a whole, and an error is
logged. Its frames are lost and their leases expire, but the job goes on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

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
from periplus.process.telemetry import event
from periplus.spool.files import explained
from periplus.spool.format import Durability, Position
from periplus.spool.spool import Spool
from periplus.values.transport_keys import FrameKey, KeyedFrame, SeenFrames, pack_keyed, unpack_keyed

log = logging.getLogger(__name__)

FULL_RETRY_S = 1.0
"""Seconds until a frame that found no room is tried again. A disk may get room that nobody here has freed; a spool gets
room only by commits, which wake the waiting task. Chosen by hand.
"""

DAMAGED = ".damaged-"
"""Infix in the new name of a damaged spool's folder; a number follows."""


class FrameSpool:
    """The spool of one job. All methods but `durable` and `take` return at once."""

    def __init__(self, spool: Spool, durability: Durability, pending: dict[FrameKey, Position]) -> None:
        self._spool = spool
        self._durability = durability
        self._pending = pending  # in the order of positions
        self._seen = SeenFrames()
        for key in pending:
            self._seen.add(key)
        self._room = asyncio.Event()
        self._syncing = asyncio.Lock()
        self.obstacle = ""
        """Why a frame waits for room, as a sentence; empty if none does."""

    @classmethod
    def open(cls, folder: Path, *, durability: Durability, max_bytes: int) -> "FrameSpool":
        """Open a spool; frames that an earlier process left there are pending again. It reads all of them.

        Raises: CorruptSpool, Conflict if another process has it open, StorageError.
        """
        spool = Spool.open(folder, durability=durability, max_bytes=max_bytes)
        # Frames that were committed just before a crash may come again. The trainer knows them by their keys.
        pending: dict[FrameKey, Position] = {}
        try:
            for record in spool.records():
                _recover(spool, record.position, record.data, pending)
        except BaseException:
            spool.close()
            raise
        return cls(spool, durability, pending)

    @property
    def pending(self) -> tuple[FrameKey, ...]:
        """Keys of the frames that the ledger has not committed, oldest first."""
        return tuple(self._pending)

    @property
    def num_bytes(self) -> int:
        """Bytes of the spool on disk."""
        return self._spool.num_bytes

    @property
    def max_bytes(self) -> int:
        """Bytes that the spool may have on disk."""
        return self._spool.max_bytes

    async def take(self, key: FrameKey, frame: Frame) -> bool:
        """Append a frame, waiting for room. Return False if its key was taken before. Raises: StorageError."""
        while key not in self._seen:
            try:
                position = self._spool.append(*pack_keyed(key, frame))
            except (SpoolFull, DiskFull) as error:
                await self._wait_for_room(error)
                continue
            # Nothing is awaited since the append, so spool and keys agree.
            self._seen.add(key)
            self._pending[key] = position
            self._log_full(None)
            return True
        return False

    async def durable(self) -> None:
        """Return when all frames taken so far are as durable as the job asks, and may be acknowledged.

        Raises: StorageError.
        """
        if self._durability is Durability.PROCESS:
            return  # an appended frame survives this process already
        async with self._syncing:
            # One sync at a time. Whoever waited for the lock gets a sync of its own, which covers what it has appended.
            await asyncio.to_thread(self._spool.sync)

    def commit(self, keys: Iterable[FrameKey]) -> None:
        """Free the frames that the ledger has committed. A repeated or unknown key is harmless."""
        for key in keys:
            position = self._pending.pop(key, None)
            if position is None:
                continue
            try:
                self._spool.retire(position)
            except StorageError as error:
                event(log, logging.ERROR, "spool_not_freed", folder=self._spool.folder, why=error)
        self._room.set()

    def read(self, key: FrameKey) -> KeyedFrame | None:
        """Return a frame to be sent up; None if it was committed meanwhile or can no longer be read.

        A frame that cannot be read is lost: that is logged, and the frame is freed.
        """
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
            # It can never be sent, so keep no room for it. Its leases expire.
            self.commit([key])
            return None
        return KeyedFrame(key, frame)

    def close(self, *, job_is_done: bool = False) -> bool:
        """Close the spool. Remove its folder, unless frames are uncommitted and the job is not done.

        Return whether the folder stays. Raises: StorageError.
        """
        if self._pending and not job_is_done:
            self._spool.close()
            return True
        self._spool.remove()
        return False

    async def _wait_for_room(self, error: StorageError) -> None:
        self._log_full(error)
        self._room.clear()
        with contextlib.suppress(TimeoutError):  # then try again: the disk may have room
            async with asyncio.timeout(FULL_RETRY_S):
                await self._room.wait()

    def _log_full(self, error: StorageError | None) -> None:
        if error is not None and not self.obstacle:
            event(log, logging.WARNING, "spool_full", folder=self._spool.folder, frames=len(self._pending), why=error)
        elif error is None and self.obstacle:
            event(log, logging.INFO, "spool_has_room", folder=self._spool.folder)
        self.obstacle = str(error) if error is not None else ""


def open_frames(folder: Path, *, durability: Durability, max_bytes: int) -> FrameSpool:
    """Open a job's spool. A damaged one is renamed first, and a new one is made. Raises: Conflict, StorageError."""
    try:
        return FrameSpool.open(folder, durability=durability, max_bytes=max_bytes)
    except CorruptSpool as error:
        aside = _free_name(folder)
        event(log, logging.ERROR, "spool_damaged", set_aside=aside, why=error)
        with explained(folder):
            folder.rename(aside)
        return FrameSpool.open(folder, durability=durability, max_bytes=max_bytes)


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
