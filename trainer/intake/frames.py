"""Frames on their way into the ledger: decoded, validated, kept on disk, and only then judged.

    gateway -> put -> [decode, validate | append to the store | sync]  -> take -> ledger -> audit -> acknowledgement

Everything that waits is committed together (group commit): one thread hop and one sync serve all frames that arrived
while the last commit was under way, so a slow disk makes commits larger, not rarer. A frame that was seen before, by
its transport key (worker, epoch, sequence), is not decoded again; it is acknowledged again, for its sender may not
know. A frame that is no good is refused with its error and acknowledged too: sending it again makes it no better. Of a
frame that can be read, only the samples that break a limit are refused; the others are kept, as a frame of their own.

It does not know what a lease is. What waits is bounded in bytes; who puts more waits. While the disk is full nothing is
acknowledged, so nothing is lost: the gateways' spools hold it.
"""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame, pack
from periplus.codec.registry import columns_decoder
from periplus.errors import CorruptFrame, WireError
from periplus.spool.format import Position
from periplus.spool.spool import Spool
from periplus.values.trajectories import Trajectories, validate_all
from periplus.values.trajectory import Trajectory, TrajectoryLimits, content_digest, validate
from periplus.values.transport_keys import FrameKey, SeenFrames
from trainer.disk_wait import DiskWait

MAX_FRAME_CONTENT_BYTES = 64 << 20
"""Cap of one decoded frame: a decode batch of long completions is a tenth of it."""

MAX_FRAME_BYTES = 64 << 20
"""Cap of one packed frame, as MAX_FRAME_CONTENT_BYTES: what is larger compressed is no better."""

WAITING_BYTES = 256 << 20
"""Frames put and not taken: a second of the fastest intake; beyond, the gateway's stream is not read."""

COMMIT_TOKENS = 16 << 20
"""Tokens of one commit: some 150 MB of columns, whatever little a frame takes compressed."""


@dataclass(frozen=True, slots=True)
class KeptTrajectory:
    """A trajectory that is on disk, and where."""

    trajectory: Trajectory
    digest: bytes
    frame: Position
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSample:
    """A trajectory that breaks a limit, and which one."""

    lease_id: int
    group: int
    sample: int
    why: WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A frame that may be acknowledged, to the region that spools it, once its trajectories are judged. `kept` is empty
    for a resend, or if nothing of the frame is valid. `refusal` is the first thing that is wrong with it, `refused` are
    its invalid samples, as far as it could be read."""

    key: FrameKey
    region: str
    num_bytes: int
    kept: tuple[KeptTrajectory, ...] = ()
    refusal: WireError | None = None
    refused: tuple[RefusedSample, ...] = ()


class FrameIntake:
    """One trainer's. `put` and `take` are called on the event loop."""

    def __init__(self, store: Spool, limits: TrajectoryLimits, disk: DiskWait) -> None:
        self._store = store
        self._disk = disk
        self._limits = limits
        self._waiting: list[tuple[FrameKey, str, Frame]] = []
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._seen = SeenFrames()

    async def put(self, key: FrameKey, region: str, frame: Frame) -> None:
        """Queue a frame that is spooled in `region`; waits while too much is queued."""
        await self._room.wait()
        self._waiting.append((key, region, frame))
        self._waiting_bytes += len(frame.payload)
        if self._waiting_bytes >= WAITING_BYTES:
            self._room.clear()
        self._changed.set()

    async def take(self) -> tuple[Committed, ...]:
        """Commit what waits, at least one frame, in the order of arrival; what is too much at once, next time."""
        await self._changed.wait()
        self._changed.clear()
        todo, self._waiting, self._waiting_bytes = deque(self._waiting), [], 0
        self._room.set()
        done: list[Committed] = []
        await self._disk.write_in_thread(lambda: self._commit(todo, done), patiently=True)
        if todo:
            self._waiting[:0] = todo
            self._waiting_bytes += sum(len(frame.payload) for _, _, frame in todo)
            self._changed.set()
        return tuple(done)

    def _commit(self, todo: deque[tuple[FrameKey, str, Frame]], done: list[Committed]) -> None:
        """Work through `todo`; what is done stays done when the disk is full, and what is too much at once waits."""
        num_tokens = 0
        while todo and num_tokens < COMMIT_TOKENS:
            committed = self._committed(*todo[0])
            todo.popleft()
            done.append(committed)
            num_tokens += sum(len(k.trajectory.prompt_ids) + len(k.trajectory.completion_ids) for k in committed.kept)
        self._store.sync()

    def _committed(self, key: FrameKey, region: str, frame: Frame) -> Committed:
        if key in self._seen:
            return Committed(key=key, region=region, num_bytes=len(frame.payload))
        num_bytes = len(frame.payload)
        try:
            frame, trajectories, refused = _valid(frame, key, self._limits)
        except WireError as error:
            return Committed(key=key, region=region, num_bytes=num_bytes, refusal=error)
        kept = self._keep(frame, trajectories) if trajectories else ()
        self._seen.add(key)
        refusal = refused[0].why if refused else None
        return Committed(key=key, region=region, num_bytes=num_bytes, kept=kept, refusal=refusal, refused=refused)

    def _keep(self, frame: Frame, trajectories: tuple[Trajectory, ...]) -> tuple[KeptTrajectory, ...]:
        return kept(self._store.append(pack(frame)), trajectories)


def kept(frame: Position, trajectories: tuple[Trajectory, ...]) -> tuple[KeptTrajectory, ...]:
    """The trajectories of a frame that is on disk."""
    return tuple(KeptTrajectory(t, content_digest(t), frame, index) for index, t in enumerate(trajectories))


def _valid(
    frame: Frame, key: FrameKey, limits: TrajectoryLimits
) -> tuple[Frame, tuple[Trajectory, ...], tuple[RefusedSample, ...]]:
    """The trajectories of a frame that are valid and its sender's own, in a frame that holds nothing else; and the
    others with what is wrong with them.

    Raises: WireError if the frame cannot be read.
    """
    columns = _columns(frame)
    with contextlib.suppress(WireError):  # which says no more than that some sample is not valid
        validate_all(columns, limits)
        if all(columns.texts[worker] == key.worker_id for worker in columns.rows.worker):
            return frame, columns.views(), ()
    valid: list[Trajectory] = []
    refused: list[RefusedSample] = []
    for t in columns.views():
        try:
            validate(t, limits)
            if t.worker_id != key.worker_id:  # it would end leases of another worker
                raise CorruptFrame(f"bad worker_id: {t.worker_id!r} in a frame of {key.worker_id!r}; drop it")
            valid.append(t)
        except WireError as error:
            refused.append(RefusedSample(lease_id=t.lease_id, group=t.group, sample=t.sample, why=error))
    return Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode(valid)), tuple(valid), tuple(refused)


def _columns(frame: Frame) -> Trajectories:
    return columns_decoder(frame.codec)(frame.payload, max_content_bytes=MAX_FRAME_CONTENT_BYTES)


def decode(frame: Frame, limits: TrajectoryLimits) -> tuple[Trajectory, ...] | WireError:
    """The frame's trajectories, all of them valid, or what is wrong with it."""
    try:
        columns = _columns(frame)
        validate_all(columns, limits)
    except WireError as error:
        return error
    return columns.views()
