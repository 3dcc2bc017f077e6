"""Routes of one job in one gateway: which worker is reached over which stream, and what each message from below means.

This is a pure state machine. Calls take values and return effects, and the hub (hub.py) performs them in order. A
stream is opened below this gateway for each local worker and, in the home gateway, for each remote gateway, which
carries all workers of its region. Invariants:

- A worker id has one route: the stream over which it said hello last. The stream over which it was reached before must
  end, because a worker that still sends there must say hello again.
- Only the stream of a worker's route speaks for the worker. A message over another stream is dropped, except for a
  remote region's frames, which may come after their worker has gone.
- When a stream closes, each worker routed over it is reported as lost, once. A worker that has left is not reported.
- After `forget_workers` no worker has a route until it says hello again, and none of them is reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, assert_never

from periplus.errors import WireError
from periplus.values.trajectory import MAX_WORKER_ID_BYTES
from periplus.values.transport_keys import KeyedFrame
from region_agent.gateway.messages import FromBelow, LostWorker, RelayedUp, UpKind

StreamId = NewType("StreamId", int)
"""Number of a stream below, counted from 0 for each job; never used again."""


@dataclass(frozen=True, slots=True)
class ForwardUp:
    """Send the message up, towards the trainer."""

    message: RelayedUp


@dataclass(frozen=True, slots=True)
class SpoolFrame:
    """Put the frame into the spool, send it up from there, and acknowledge it to its worker."""

    kept: KeyedFrame


@dataclass(frozen=True, slots=True)
class EndStream:
    """End this stream, because its worker has said hello over another one."""

    stream_id: StreamId
    worker_id: str


RouteEffect = ForwardUp | SpoolFrame | EndStream


class Routes:
    """The routes. A stream id that was not opened, or that was closed, is an error of the caller (KeyError)."""

    def __init__(self) -> None:
        self._num_opened = 0
        self._peer_region: dict[StreamId, str] = {}
        self._stream_of: dict[str, StreamId] = {}  # by worker

    def open(self, peer_region: str) -> StreamId:
        """Add a stream. `peer_region` is the region of a remote gateway, and empty for a local worker."""
        stream_id = StreamId(self._num_opened)
        self._num_opened += 1
        self._peer_region[stream_id] = peer_region
        return stream_id

    def take(self, stream_id: StreamId, message: FromBelow) -> Sequence[RouteEffect]:
        """Return what a message that came over a stream leads to, in order; nothing if the message is dropped.

        Raises: WireError for a hello with an invalid worker id; then nothing has changed.
        """
        assert stream_id in self._peer_region, "a message of a stream that is not open"
        if isinstance(message, KeyedFrame):
            # A worker that has moved sends the frame again over its newest stream.
            return [SpoolFrame(message)] if self._stream_of.get(message.key.worker_id) == stream_id else []
        is_routed_here = self._stream_of.get(message.worker_id) == stream_id
        match message.kind:
            case UpKind.HELLO:
                return self._hello(stream_id, message)
            case UpKind.GATEWAY:
                return []
            case UpKind.FRAME:
                return [ForwardUp(message)]
            case UpKind.GONE | UpKind.OTHER if not is_routed_here:
                return []
            case UpKind.GONE:
                del self._stream_of[message.worker_id]
                return [ForwardUp(message)]
            case UpKind.OTHER:
                return [ForwardUp(message)]
            case _:
                assert_never(message.kind)

    def _hello(self, stream_id: StreamId, message: RelayedUp) -> Sequence[RouteEffect]:
        _check_worker_id(message.worker_id)
        previous = self._stream_of.get(message.worker_id)
        self._stream_of[message.worker_id] = stream_id
        if previous is None or previous == stream_id:
            return [ForwardUp(message)]
        return [EndStream(previous, message.worker_id), ForwardUp(message)]

    def close(self, stream_id: StreamId, reason: str) -> Sequence[LostWorker]:
        """Remove a stream that has ended, and return a report for each worker that was reached over it, by worker id.

        Before a report is sent, the caller checks with `stream_of` that the worker has not said hello again.
        """
        is_remote = bool(self._peer_region.pop(stream_id))
        lost_ids = sorted(worker_id for worker_id, route in self._stream_of.items() if route == stream_id)
        for worker_id in lost_ids:
            del self._stream_of[worker_id]
        return [LostWorker(worker_id=worker_id, reason=reason, connection_lost=is_remote) for worker_id in lost_ids]

    def forget_workers(self) -> None:
        """Remove the routes of all workers, because the connection up was lost or replaced. Streams stay open."""
        self._stream_of.clear()

    def stream_of(self, worker_id: str) -> StreamId | None:
        """Return the stream over which a worker is reached, or None if it has no route."""
        return self._stream_of.get(worker_id)

    def streams_to(self, region: str) -> Sequence[StreamId]:
        """Return the streams of a remote region's gateway; usually one, but a broken one may not have ended yet."""
        return [stream_id for stream_id, peer_region in self._peer_region.items() if peer_region == region]

    def num_workers(self, stream_id: StreamId) -> int:
        """Return the number of workers that are reached over a stream."""
        return sum(route == stream_id for route in self._stream_of.values())


class GreetedWorkers:
    """Workers whose hello went over one connection to the home gateway.

    There the connection is one stream of `Routes`, which drops messages of a worker without a hello. So they are not
    sent: they come from before the connection, and the worker will say hello again.
    """

    def __init__(self) -> None:
        self._worker_ids: set[str] = set()

    def lets_pass(self, message: RelayedUp | KeyedFrame | LostWorker) -> bool:
        """Return whether the next message is to be sent. Frames always are, because a spool keeps them."""
        match message:
            case KeyedFrame() | RelayedUp(kind=UpKind.FRAME):
                return True
            case RelayedUp(worker_id=worker_id, kind=UpKind.HELLO):
                self._worker_ids.add(worker_id)
                return True
            case RelayedUp(worker_id=worker_id, kind=UpKind.GONE) | LostWorker(worker_id=worker_id):
                # Leaving ends what the hello began: later messages of this worker wait for another hello.
                is_known = worker_id in self._worker_ids
                self._worker_ids.discard(worker_id)
                return is_known
            case RelayedUp(worker_id=worker_id):
                return worker_id in self._worker_ids
            case _:
                assert_never(message)


def _check_worker_id(worker_id: str) -> None:
    if not 0 < len(worker_id.encode()) <= MAX_WORKER_ID_BYTES:
        raise WireError(
            f"a worker says hello as {worker_id[:80]!r}, an id of {len(worker_id.encode())} bytes; an id has 1 to "
            f"{MAX_WORKER_ID_BYTES}"
        )
