"""Frames on their way into the ledger: decoded, validated, kept on disk, and only then judged.

    gateway -> put -> [decode, validate | append to the store | sync]  -> take -> ledger -> audit -> acknowledgement

Everything that waits is committed together (group commit): one thread hop and one sync serve all frames that arrived
while the last commit was under way, so a slow disk makes commits larger, not rarer. A frame that was seen before, by
its transport key (worker, epoch, sequence), is not decoded again; it is acknowledged again, for its sender may not
know. A frame that is no good is refused with its error and acknowledged too: sending it again makes it no better.

It does not know what a lease is. What waits is bounded in bytes; who puts more waits. While the disk is full nothing is
acknowledged, so nothing is lost: the gateways' spools hold it.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from periplus.codec.frame import Frame, pack
from periplus.codec.registry import columns_decoder
from periplus.errors import WireError
from periplus.spool.format import Position
from periplus.spool.spool import Spool
from periplus.trajectories import validate_all
from periplus.trajectory import Limits, Trajectory, content_digest
from periplus.transport import FrameKey, SeenFrames
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
class Kept:
    """A trajectory that is on disk, and where."""

    trajectory: Trajectory
    digest: bytes
    frame: Position
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A frame that may be acknowledged, to the region that spools it, once its trajectories are judged. `kept` is empty
    for a resend or a refusal."""

    key: FrameKey
    region: str
    num_bytes: int
    kept: tuple[Kept, ...] = ()
    refusal: WireError | None = None


class Intake:
    """One trainer's. `put` and `take` are called on the event loop."""

    def __init__(self, store: Spool, limits: Limits, disk: DiskWait) -> None:
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
        trajectories = decode(frame, self._limits)
        if isinstance(trajectories, WireError):
            return Committed(key=key, region=region, num_bytes=len(frame.payload), refusal=trajectories)
        kept = self._keep(frame, trajectories)
        self._seen.add(key)
        return Committed(key=key, region=region, num_bytes=len(frame.payload), kept=kept)

    def _keep(self, frame: Frame, trajectories: tuple[Trajectory, ...]) -> tuple[Kept, ...]:
        return kept(self._store.append(pack(frame)), trajectories)


def kept(frame: Position, trajectories: tuple[Trajectory, ...]) -> tuple[Kept, ...]:
    """The trajectories of a frame that is on disk."""
    return tuple(Kept(t, content_digest(t), frame, index) for index, t in enumerate(trajectories))


def decode(frame: Frame, limits: Limits) -> tuple[Trajectory, ...] | WireError:
    """The frame's trajectories, all of them valid, or what is wrong with it."""
    try:
        columns = columns_decoder(frame.codec)(frame.payload, max_content_bytes=MAX_FRAME_CONTENT_BYTES)
        validate_all(columns, limits)
    except WireError as error:
        return error
    return columns.views()
