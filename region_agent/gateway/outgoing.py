"""What waits to go up, in order: messages that are only here, and keys of frames that lie in the spool.

Messages are bounded: who puts one more waits. Frames are bounded by their spool, so putting one never waits; at most
`FRAMES_AHEAD` of them stand in the line, the others behind it, so that a backlog on a slow way up does not hold up
what workers have to say. Up to that many frames the order is that of arrival.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from periplus.pb.v1 import gateway_pb2
from periplus.values.transport_keys import FrameKey

UP_MESSAGES = 256
"""Requests, proofs and relayed frames waiting to go up: some seconds of a region's, then who sent them waits."""

FRAMES_AHEAD = 32
"""A few hundred milliseconds of a fast link."""


class Outgoing:
    """One reader, any number of writers."""

    def __init__(self) -> None:
        self._line: deque[gateway_pb2.TrainerDown | FrameKey] = deque()
        self._behind: deque[FrameKey] = deque()
        self._num_messages = 0
        self._filled = asyncio.Event()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._line) + len(self._behind)

    async def put(self, message: gateway_pb2.TrainerDown) -> None:
        """Behind what waits already; waits itself while too much does."""
        while self._num_messages >= UP_MESSAGES:
            self._room.clear()
            await self._room.wait()
        self.put_request(message)

    def put_request(self, message: gateway_pb2.TrainerDown) -> None:
        """The same without waiting, for what stands here once at most."""
        self._num_messages += 1
        self._line.append(message)
        self._filled.set()

    def put_frame(self, key: FrameKey) -> None:
        self._behind.append(key)
        self._advance()

    async def get(self) -> gateway_pb2.TrainerDown | FrameKey:
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
        """Forget everything; frames are still in their spool."""
        self._line.clear()
        self._behind.clear()
        self._num_messages = 0
        self._room.set()

    def send_again(self, keys: Iterable[FrameKey]) -> None:
        """These frames wait, and no others; messages keep their place, before them."""
        self._line = deque(item for item in self._line if not isinstance(item, FrameKey))
        self._behind = deque(keys)
        self._advance()

    def _advance(self) -> None:
        while self._behind and len(self._line) - self._num_messages < FRAMES_AHEAD:
            self._line.append(self._behind.popleft())
            self._filled.set()
