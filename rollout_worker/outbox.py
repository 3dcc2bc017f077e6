"""Queue of the messages that a worker sends to its gateway, in order, over however many successive streams it takes.

Each frame gets a transport key here: (worker id, epoch, sequence number), where the epoch is this start of the process.
A frame is kept until the worker's own gateway says that it is spooled. After a stream broke, the frames that were not
acknowledged are sent first over the next one. Other messages are sent once, because a new hello makes them obsolete.
Bounds are back-pressure: putting waits while too much is kept, and so does generation.

The queue does not look into the other messages: it is generic over their type. A gateway's queue (`Outgoing`) is
another thing: frames on their way through a gateway are kept by its spool on disk, and messages overtake them.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from periplus.codec.frame import Frame
from periplus.values.transport_keys import FrameKey, KeyedFrame

Message = TypeVar("Message")

OUT_FRAMES = 64
"""Largest number of frames that the gateway has not spooled yet. It takes milliseconds for each on a local network.
Chosen by hand.
"""

OUT_BYTES = 64 << 20
"""Limit of their payload bytes: what a worker can spare in memory while its gateway is away. Chosen by hand."""

OUT_MESSAGES = 1024
"""Largest number of messages not written yet: more than the leases that a worker holds. Chosen by hand."""


class Outbox(Generic[Message]):
    """The queue. It has one reader, which calls `begin` for each new stream."""

    def __init__(self, worker_id: str, epoch: int) -> None:
        if epoch < 1:
            raise ValueError(f"epoch is {epoch}; 0 is for frames without one")
        self._worker_id = worker_id
        self._epoch = epoch
        self._next = 0
        self._line: deque[Message | KeyedFrame] = deque()
        self._kept: dict[int, KeyedFrame] = {}  # by sequence number
        self._kept_bytes = 0
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._written = asyncio.Event()

    @property
    def num_kept(self) -> int:
        """Number of frames that are not acknowledged."""
        return len(self._kept)

    async def put(self, message: Message) -> None:
        """Append a message other than a frame. Wait while `OUT_MESSAGES` are queued."""
        while len(self._line) >= OUT_MESSAGES:
            await self._wait_for_room()
        self._add(message)

    async def put_frame(self, frame: Frame) -> None:
        """Number a frame, keep it and append it. Wait while `OUT_FRAMES` or `OUT_BYTES` are kept."""
        while len(self._kept) >= OUT_FRAMES or self._kept_bytes >= OUT_BYTES:
            await self._wait_for_room()
        key = FrameKey(worker_id=self._worker_id, epoch=self._epoch, sequence=self._next)
        kept = self._kept[self._next] = KeyedFrame(key, frame)
        self._kept_bytes += len(frame.payload)
        self._next += 1
        self._add(kept)

    def acknowledge(self, epoch: int, sequences: Iterable[int]) -> None:
        """Forget frames that the gateway has spooled. A repeat, or the epoch of an earlier process, is harmless."""
        if epoch != self._epoch:
            return
        for sequence in sequences:
            kept = self._kept.pop(sequence, None)
            if kept is not None:
                self._kept_bytes -= len(kept.frame.payload)
        self._room.set()

    def begin(self) -> None:
        """Prepare for a new stream: put the frames that were written to the last one but not acknowledged in front."""
        # Frames that still wait in the line were not written to the last stream, so they are not put there twice. The
        # others go in front, oldest first.
        unsent = {item.key.sequence for item in self._line if isinstance(item, KeyedFrame)}
        again = [kept for sequence, kept in self._kept.items() if sequence not in unsent]
        self._line.extendleft(reversed(again))
        if self._line:
            self._filled.set()

    async def written(self) -> None:
        """Return when everything that was put has been written to a stream."""
        await self._written.wait()

    async def next(self) -> Message | KeyedFrame:
        """Wait for the next message or frame to write, and return it. Skip frames that were acknowledged meanwhile.

        A call means that what the previous call returned was written.
        """
        while True:
            # The reader comes back only after it has written the previous item, so an empty line means that all is
            # written.
            while not self._line:
                self._written.set()
                self._filled.clear()
                await self._filled.wait()
            item = self._line.popleft()
            self._room.set()
            if not isinstance(item, KeyedFrame) or item.key.sequence in self._kept:
                return item

    def _add(self, item: Message | KeyedFrame) -> None:
        self._line.append(item)
        self._written.clear()
        self._filled.set()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()
