"""Queue of one hub's messages that go up: messages that exist only here, and keys of frames that lie in the spool.

Messages are bounded: who puts one more than `UP_MESSAGES` waits, and is served in turn. Without turns, a worker's next
hello could overtake the report that the worker was lost, and the trainer would grant no leases to a worker that is
there. Clearing the queue also drops the messages of those who wait: they are about streams of a connection that is
over, and the next one must not hear of a worker before its hello there.

Frames are bounded by their spool, so putting one never waits. At most `FRAMES_AHEAD` frames stand in the queue, and the
others wait behind it. So frames that pile up on a slow connection do not delay the workers' messages. As long as no
frame waits behind, the order is that of arrival.

Nothing is kept here after it has left the queue: after a lost connection the caller names the frames to send again. The
queue does not look into messages: it is generic over their type.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from periplus.values.transport_keys import FrameKey

Message = TypeVar("Message")

UP_MESSAGES = 256
"""Limit of requests, proofs and relayed frames in the queue: some seconds of one region's messages. Chosen by hand."""

FRAMES_AHEAD = 32
"""Limit of frames in the queue ahead of a new message: a few hundred milliseconds of a fast link. Chosen by hand."""


class Outgoing(Generic[Message]):
    """The queue, for one reader and any number of writers. `len` counts frames that wait behind it, too."""

    def __init__(self) -> None:
        self._line: deque[Message | FrameKey] = deque()
        self._behind: deque[FrameKey] = deque()
        self._num_messages = 0
        self._num_cleared = 0
        self._turn = asyncio.Lock()  # whoever waits for room is served first
        self._filled = asyncio.Event()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._line) + len(self._behind)

    async def put(self, message: Message) -> None:
        """Append a message, waiting while `UP_MESSAGES` messages are queued.

        It is dropped if the queue is cleared meanwhile.
        """
        num_cleared = self._num_cleared
        async with self._turn:
            while self._num_messages >= UP_MESSAGES and self._num_cleared == num_cleared:
                self._room.clear()
                await self._room.wait()
            if self._num_cleared == num_cleared:
                self.put_request(message)

    def put_request(self, message: Message) -> None:
        """Append a message without waiting. The caller sees to it that only one such message is queued at a time."""
        self._num_messages += 1
        self._line.append(message)
        self._filled.set()

    def put_frame(self, key: FrameKey) -> None:
        """Append the key of a spooled frame."""
        self._behind.append(key)
        self._advance()

    async def get(self) -> Message | FrameKey:
        """Wait for the next message or frame key, and remove it from the queue."""
        while not self._line:
            self._filled.clear()
            await self._filled.wait()
        item = self._line.popleft()
        if not isinstance(item, FrameKey):
            self._num_messages -= 1
            self._room.set()
        self._advance()
        return item

    def clear(self) -> None:
        """Remove everything, also what waits for room. Frames are still in their spool."""
        self._line.clear()
        self._behind.clear()
        self._num_messages = 0
        self._num_cleared += 1
        self._room.set()

    def send_again(self, keys: Iterable[FrameKey]) -> None:
        """Replace the queued frames by these. Messages keep their order, and precede the frames."""
        self._line = deque(item for item in self._line if not isinstance(item, FrameKey))
        self._behind = deque(keys)
        self._advance()

    def _advance(self) -> None:
        # Frames in the line are all its items but the messages.
        while self._behind and len(self._line) - self._num_messages < FRAMES_AHEAD:
            self._line.append(self._behind.popleft())
            self._filled.set()
