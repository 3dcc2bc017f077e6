"""What a worker has to say, in order, over however many streams it takes.

Frames are numbered here: (worker, epoch, sequence) is their transport key, the epoch being this start of the process.
A frame is kept until the worker's own gateway says that it is spooled; what was not when a stream broke is sent again
over the next, first. Other messages are sent once: after a new hello they no longer matter. Bounds are back-pressure:
while too much is kept, putting waits, and with it generation.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from periplus.codec.frame import Frame
from periplus.net.convert import keyed_frame_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.values.transport_keys import FrameKey

OUT_FRAMES = 64
"""Frames that the gateway has not spooled; on the same network it takes milliseconds for each."""

OUT_BYTES = 64 << 20
"""Their bytes: what a worker's memory spares when its gateway is away."""

OUT_MESSAGES = 1024
"""Messages not written yet: more than the leases that a worker holds."""


class Outbox:
    """One reader, which calls `begin` for each new stream."""

    def __init__(self, worker_id: str, epoch: int) -> None:
        if epoch < 1:
            raise ValueError(f"epoch is {epoch}; 0 is for frames without one")
        self._worker_id = worker_id
        self._epoch = epoch
        self._next = 0
        self._line: deque[gateway_pb2.RolloutUp] = deque()
        self._kept: dict[int, gateway_pb2.RolloutUp] = {}  # frames by sequence
        self._kept_bytes = 0
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._written = asyncio.Event()

    @property
    def num_kept(self) -> int:
        """Frames that are not acknowledged."""
        return len(self._kept)

    async def put(self, message: gateway_pb2.RolloutUp) -> None:
        """A message other than a frame."""
        while len(self._line) >= OUT_MESSAGES:
            await self._wait_for_room()
        self._add(message)

    async def put_frame(self, frame: Frame) -> None:
        """Number it and keep it."""
        while len(self._kept) >= OUT_FRAMES or self._kept_bytes >= OUT_BYTES:
            await self._wait_for_room()
        key = FrameKey(worker_id=self._worker_id, epoch=self._epoch, sequence=self._next)
        message = keyed_frame_to_pb(key, frame, "")
        self._kept[self._next] = message
        self._kept_bytes += len(frame.payload)
        self._next += 1
        self._add(message)

    def acknowledge(self, epoch: int, sequences: Iterable[int]) -> None:
        """The gateway answers for these; a repeat, or an earlier start's, is harmless."""
        if epoch != self._epoch:
            return
        for sequence in sequences:
            message = self._kept.pop(sequence, None)
            if message is not None:
                self._kept_bytes -= len(message.frame.payload)
        self._room.set()

    def begin(self) -> None:
        """A new stream: what was written to the last one and not acknowledged comes first."""
        unsent = {message.frame.sequence for message in self._line if message.HasField("frame")}
        again = [message for sequence, message in self._kept.items() if sequence not in unsent]
        self._line.extendleft(reversed(again))
        if self._line:
            self._filled.set()

    async def written(self) -> None:
        """Return when everything that was put has been written to a stream: its reader asks for more."""
        await self._written.wait()

    async def next(self) -> gateway_pb2.RolloutUp:
        """What to write next; a frame that was acknowledged meanwhile is passed over. The message before is written."""
        while True:
            while not self._line:
                self._written.set()
                self._filled.clear()
                await self._filled.wait()
            message = self._line.popleft()
            self._room.set()
            if not message.HasField("frame") or message.frame.sequence in self._kept:
                return message

    def _add(self, message: gateway_pb2.RolloutUp) -> None:
        self._line.append(message)
        self._written.clear()
        self._filled.set()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()
