"""Intake of frames: decode them, validate their trajectories and store them on disk, before the ledger sees any.

    gateway -> put -> [decode, validate | append to the store | sync]  -> take -> ledger -> audit -> acknowledgement

A *frame* is the compressed batch of trajectories that a worker sends at once. Its transport key (worker, epoch,
sequence) identifies it permanently. The *store* is a spool, an append-only log on disk.

- **Group commit.** All frames that arrived while the last commit was under way are committed together, with one hop to
  a thread and one sync. So a slow disk makes commits larger, but does not lower the rate of frames.
- **Resends.** A frame whose key was seen before is not decoded or stored again. It is acknowledged again, because its
  sender may not know that it arrived.
- **Refusals.** A frame that cannot be read is refused with its error and acknowledged too, because sending it again
  would not help. In a frame that can be read, only samples that break a limit or fail a check of the job (their prompt,
  the range of their reward) are refused. The others are kept, in a new frame of their own.
- **Bounds.** Frames that wait are bounded in bytes, and `put` waits while there are too many. While the disk is full
  nothing is acknowledged, so nothing is lost: the gateways' spools keep the frames.

This module does not know what a lease is.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame, pack
from periplus.codec.registry import columns_decoder
from periplus.errors import CorruptFrame, WireError
from periplus.spool.spool import Spool
from periplus.values.trajectories import Trajectories, validate_all
from periplus.values.trajectory import Trajectory, TrajectoryLimits, validate
from periplus.values.transport_keys import FrameKey, SeenFrames
from trainer.disk_wait import DiskWait
from trainer.intake.committed import Committed, KeptTrajectory, RefusedSample, kept

SampleCheck = Callable[[Trajectory], None]
"""Raises WireError for a sample that the job refuses."""

MAX_FRAME_CONTENT_BYTES = 64 << 20
"""Largest size of one decoded frame. Chosen by hand: a generated batch of long completions has about a tenth of it."""

MAX_FRAME_BYTES = 64 << 20
"""Largest size of one packed frame, the same as decoded: a frame that is larger compressed makes no sense."""

WAITING_BYTES = 256 << 20
"""Bytes of frames that may wait for a commit; beyond, the gateway's stream is not read. Chosen by hand: about a second
of the fastest intake."""

COMMIT_TOKENS = 16 << 20
"""Number of tokens after which a commit takes no further frame. It bounds memory, at about 150 MB of decoded columns,
since compressed frames may be very small. Chosen by hand."""


class FrameIntake:
    """The queue of one trainer between its gateway's stream and the store.

    `put` and `take` are called on the event loop; decoding and writing run in a thread. `checks` are those of the job,
    beside the limits: each raises WireError for a sample that is refused.
    """

    def __init__(
        self, store: Spool, limits: TrajectoryLimits, disk: DiskWait, checks: Sequence[SampleCheck] = ()
    ) -> None:
        self._store = store
        self._checks = checks
        self._disk = disk
        self._limits = limits
        self._waiting: list[tuple[FrameKey, str, Frame]] = []
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._seen = SeenFrames()

    async def put(self, key: FrameKey, region: str, frame: Frame) -> None:
        """Queue a frame that is spooled in `region`. It waits while WAITING_BYTES or more are queued."""
        await self._room.wait()
        self._waiting.append((key, region, frame))
        self._waiting_bytes += len(frame.payload)
        if self._waiting_bytes >= WAITING_BYTES:
            self._room.clear()
        self._changed.set()

    async def take(self) -> tuple[Committed, ...]:
        """Commit frames in the order of arrival, at least one, and return them; wait until there is one.

        Frames beyond COMMIT_TOKENS stay queued for the next call.
        """
        await self._changed.wait()
        self._changed.clear()
        # Take all that waits, so that `put` goes on while the thread works.
        uncommitted, self._waiting, self._waiting_bytes = deque(self._waiting), [], 0
        self._room.set()
        done: list[Committed] = []
        await self._disk.write_in_thread(lambda: self._commit(uncommitted, done), patiently=True)
        if uncommitted:
            # The commit was full. What is left goes back in front of what has come meanwhile.
            self._waiting[:0] = uncommitted
            self._waiting_bytes += sum(len(frame.payload) for _, _, frame in uncommitted)
            self._changed.set()
        return tuple(done)

    def _commit(self, uncommitted: deque[tuple[FrameKey, str, Frame]], done: list[Committed]) -> None:
        """Commit frames from the front of `uncommitted` to `done`, up to COMMIT_TOKENS, and sync the store.

        On a full disk it is called again with the same lists, and goes on where it stopped.
        """
        num_tokens = 0
        while uncommitted and num_tokens < COMMIT_TOKENS:
            # The frame leaves the queue only after it is stored, because a full disk raises here.
            committed = self._committed(*uncommitted[0])
            uncommitted.popleft()
            done.append(committed)
            num_tokens += sum(len(k.trajectory.prompt_ids) + len(k.trajectory.completion_ids) for k in committed.kept)
        # One sync for all of them, which is what makes the commit cheap.
        self._store.sync()

    def _committed(self, key: FrameKey, region: str, frame: Frame) -> Committed:
        if key in self._seen:
            return Committed(key=key, region=region, num_bytes=len(frame.payload))
        num_bytes = len(frame.payload)
        try:
            frame, trajectories, refused = _valid(frame, key, self._limits, self._checks)
        except WireError as error:
            return Committed(key=key, region=region, num_bytes=num_bytes, refusal=error)
        kept = self._keep(frame, trajectories) if trajectories else ()
        # Only now: a frame that found no room comes here again, and must not pass for a resend.
        self._seen.add(key)
        refusal = refused[0].why if refused else None
        return Committed(key=key, region=region, num_bytes=num_bytes, kept=kept, refusal=refusal, refused=refused)

    def _keep(self, frame: Frame, trajectories: tuple[Trajectory, ...]) -> tuple[KeptTrajectory, ...]:
        return kept(self._store.append(pack(frame)), trajectories)


def _valid(
    frame: Frame, key: FrameKey, limits: TrajectoryLimits, checks: Sequence[SampleCheck]
) -> tuple[Frame, tuple[Trajectory, ...], tuple[RefusedSample, ...]]:
    """Return a frame that holds only the valid trajectories, these trajectories, and the samples that are refused.

    A trajectory of another worker than the frame's sender is refused too.

    Raises: WireError if the frame cannot be read.
    """
    # Almost all frames are valid as a whole. That is checked by columns, which is faster than sample by sample.
    columns = _columns(frame)
    with contextlib.suppress(WireError):  # it only says that some sample is not valid: find out below which
        validate_all(columns, limits)
        views = columns.views()
        for t in views:
            for check in checks:
                check(t)
        if all(columns.texts[worker] == key.worker_id for worker in columns.rows.worker):
            return frame, views, ()
    valid: list[Trajectory] = []
    refused: list[RefusedSample] = []
    for t in columns.views():
        try:
            validate(t, limits)
            if t.worker_id != key.worker_id:  # else a worker could end the leases of another one
                raise CorruptFrame(
                    f"bad worker_id: {t.worker_id!r} in a frame of another worker, {key.worker_id!r}; drop it"
                )
            for check in checks:
                check(t)
            valid.append(t)
        except WireError as error:
            refused.append(RefusedSample(lease_id=t.lease_id, group=t.group, sample=t.sample, why=error))
    return Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode(valid)), tuple(valid), tuple(refused)


def _columns(frame: Frame) -> Trajectories:
    return columns_decoder(frame.codec)(frame.payload, max_content_bytes=MAX_FRAME_CONTENT_BYTES)


def decode(frame: Frame, limits: TrajectoryLimits) -> tuple[Trajectory, ...] | WireError:
    """Return the frame's trajectories if all of them are valid; else the first error, which is returned, not raised."""
    try:
        columns = _columns(frame)
        validate_all(columns, limits)
    except WireError as error:
        return error
    return columns.views()
