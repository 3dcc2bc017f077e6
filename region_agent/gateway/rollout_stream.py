"""One rollout stream below a gateway, as the queues between its RPC handler and the hub.

    hub      put -> [messages] -> next_down, written      handler
    hub     took -> [frame keys] -> next_taken            handler, which calls acknowledge once they are durable

Both queues are bounded, and bounds are back-pressure. Messages still in the queue when the stream is to end are written
first (`flushed`), because the last one may say that the job is done.
"""

import asyncio

from periplus.values.transport_keys import FrameKey
from region_agent.gateway.messages import SpoolReceipt, ToBelow
from region_agent.gateway.routes import StreamId

DOWN_QUEUE_MESSAGES = 64
"""Messages that wait for one stream below. The ledger grants no more leases than workers asked for, so the queue hardly
ever fills. Chosen by hand.
"""

TAKEN_FRAMES = 1024
"""Limit of frames of one stream that are taken and not yet acknowledged. An honest worker has at most 64 unacknowledged
frames; a worker that keeps sending without reading its acknowledgements is no longer read. Chosen by hand.
"""


class RolloutStream:
    """The queues of one stream. It ends when `end` is called; the handler then ends the RPC."""

    def __init__(self, stream_id: StreamId) -> None:
        self.stream_id = stream_id
        self._down: asyncio.Queue[ToBelow] = asyncio.Queue(DOWN_QUEUE_MESSAGES)
        self._ended = asyncio.Event()
        self._taken: list[FrameKey] = []
        self._has_taken = asyncio.Event()
        self._has_room = asyncio.Event()

    # ---- messages down --------------------------------------------------------------------------------------------

    async def put(self, message: ToBelow) -> None:
        """Queue a message, waiting for room."""
        await self._down.put(message)

    async def next_down(self) -> ToBelow:
        """Wait for the next message to write, and return it. Call `written` after it was written."""
        return await self._down.get()

    def written(self) -> None:
        """Note that the message which `next_down` returned last was written."""
        self._down.task_done()

    async def flushed(self) -> None:
        """Wait until all queued messages were written."""
        await self._down.join()

    def discard(self) -> None:
        """Drop all queued messages, so that nobody waits for room any more."""
        while not self._down.empty():
            self._down.get_nowait()

    # ---- the end --------------------------------------------------------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """Whether the stream must end, or has ended."""
        return self._ended.is_set()

    def end(self) -> None:
        """Make the handler end the stream."""
        self._ended.set()

    async def until_ended(self) -> None:
        """Wait until the stream must end, because `end` was called."""
        await self._ended.wait()

    # ---- frames to acknowledge ------------------------------------------------------------------------------------

    @property
    def num_taken(self) -> int:
        """Number of frames that were taken and not yet handed out by `next_taken`."""
        return len(self._taken)

    async def took(self, key: FrameKey) -> None:
        """Note that a frame is to be acknowledged to its worker once it is durable.

        Wait while `TAKEN_FRAMES` of them are open.
        """
        while len(self._taken) >= TAKEN_FRAMES:
            self._has_room.clear()
            await self._has_room.wait()
        self._taken.append(key)
        self._has_taken.set()

    async def next_taken(self) -> tuple[FrameKey, ...]:
        """Return the keys of all frames taken since the last call, waiting for at least one."""
        await self._has_taken.wait()
        self._has_taken.clear()
        keys, self._taken = tuple(self._taken), []
        self._has_room.set()
        return keys

    async def acknowledge(self, keys: tuple[FrameKey, ...]) -> None:
        """Queue the receipt of durable frames, waiting for room."""
        await self._down.put(SpoolReceipt(keys))
