"""One directed link between two regions, as a state machine without a clock.

Items go in, and come out when they are due. An item is a piece of a TCP stream, or a *mark* of size 0 (opening, end,
reset). It waits in the queue, is put on the line at the link's rate, and arrives half a round-trip time after its last
bit left:

    start     = max(offered, line free)
    departure = max(start + size / rate, egress cap's clock, ingress cap's clock)      caps: first come, first served
    arrival   = max(departure + rtt / 2, arrival of the item before)

Time is virtual: a caller that calls `due()` late loses no rate. Invariants, whatever the order of events: items arrive
once, in order, and never earlier than they could; bytes offered = bytes arrived + bytes held; queued bytes never exceed
the limit (marks are free), except for what a cut put back. The payload is TCP, so a full queue loses nothing: `room()`
becomes false, the relay stops reading, and the sender is limited by the network.

A dropped link delivers nothing, and still accepts what it has room for. Items that had not arrived when it was cut
return to the front of the queue, as TCP would have to send them again.
"""

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")

CHUNK_MAX_BYTES = 64 << 10
"""Most bytes that one connection puts on a link in its turn, for fairness. Chosen by hand."""

_CHUNK_MIN_BYTES = 4 << 10
"""Smallest chunk. Below it the cost of a system call per chunk outweighs smoothness. Chosen by hand."""

_CHUNK_S = 0.005
"""Seconds for which a chunk occupies a slow line, far below every round-trip time, so that bytes flow evenly."""

_QUEUE_S = 0.05
"""Depth of a link's queue in seconds at its rate. It covers the relay's own wake-up delays, and a router's buffer is of
this order."""

_QUEUE_MIN_CHUNKS = 4
"""Smallest queue limit in chunks."""

HELD_MAX_BYTES = 64 << 20
"""Most bytes that a link holds in queue and line together. If rate x rtt/2 is larger, the effective rate falls to this
many bytes per delay."""


class LinkProperty(StrEnum):
    """Property of a link that can be set at run time."""

    RATE = "rate"
    RTT = "rtt"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """Rate and round-trip time of a directed link. An infinite rate means no limit."""

    rate_bits_per_s: float = math.inf
    rtt_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate_bits_per_s > 0:
            raise ValueError(f"rate_bits_per_s is {self.rate_bits_per_s}; it must be above 0 (infinity: no limit)")
        if not 0 <= self.rtt_s < math.inf:
            raise ValueError(f"rtt_s is {self.rtt_s}; it must be finite and at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCount:
    """Counters and current settings of a directed link. Rates are emulated ones, after scaling."""

    src_region: str
    dst_region: str
    delivered_bytes: int
    queued_bytes: int  # accepted and not yet delivered: queue and line
    rate_bits_per_s: float
    rtt_s: float
    dropped: bool


class NodeCap:
    """A rate that all links out of (or into) a region share."""

    __slots__ = ("free_at_s", "rate_bytes_per_s")

    def __init__(self, rate_bits_per_s: float = math.inf) -> None:
        self.rate_bytes_per_s = rate_bits_per_s / 8
        self.free_at_s = -math.inf

    def take(self, size_bytes: int, start_s: float) -> float:
        """Occupy the node for `size_bytes` from `start_s` on, and return the time at which it is free again."""
        self.free_at_s = max(start_s, self.free_at_s) + size_bytes / self.rate_bytes_per_s
        return self.free_at_s


@dataclass(slots=True)
class _Waiting(Generic[T]):
    item: T
    size_bytes: int
    offered_s: float


@dataclass(slots=True)
class _OnLine(Generic[T]):
    waiting: _Waiting[T]
    departs_s: float
    arrives_s: float


class DirectedLink(Generic[T]):
    """State machine of one directed link; the module's docstring defines it.

    `now_s` may stand still but not go back.
    """

    def __init__(self, spec: LinkSpec, *, egress: NodeCap, ingress: NodeCap) -> None:
        self._egress = egress
        self._ingress = ingress
        self._queue: deque[_Waiting[T]] = deque()
        self._line: deque[_OnLine[T]] = deque()
        self._free_at_s = -math.inf
        self._last_arrival_s = -math.inf
        self.dropped = False
        self.queued_bytes = 0
        self.line_bytes = 0
        self._apply(spec)

    def _apply(self, spec: LinkSpec) -> None:
        self.spec = spec
        self._rate_bytes_per_s = spec.rate_bits_per_s / 8
        self._delay_s = spec.rtt_s / 2
        self.chunk_bytes = int(min(CHUNK_MAX_BYTES, max(_CHUNK_MIN_BYTES, self._rate_bytes_per_s * _CHUNK_S)))
        self.queue_limit_bytes = int(
            min(HELD_MAX_BYTES, max(_QUEUE_MIN_CHUNKS * self.chunk_bytes, self._rate_bytes_per_s * _QUEUE_S))
        )

    def room(self) -> bool:
        """Return whether a chunk may be offered now."""
        return (
            self.queued_bytes + self.chunk_bytes <= self.queue_limit_bytes
            and self.queued_bytes + self.line_bytes + self.chunk_bytes <= HELD_MAX_BYTES
        )

    def offer(self, item: T, size_bytes: int, now_s: float) -> None:
        """Put an item at the end of the queue. A mark (size 0) always fits; a chunk needs `room()`."""
        assert size_bytes == 0 or (size_bytes <= self.chunk_bytes and self.room()), "offered without room"
        self._queue.append(_Waiting(item, size_bytes, now_s))
        self.queued_bytes += size_bytes

    def due(self, now_s: float) -> list[tuple[T, int]]:
        """Remove and return the items that have arrived by `now_s`, in order, with their sizes."""
        if self.dropped:
            return []
        self._send(now_s)
        arrived = []
        line = self._line
        while line and line[0].arrives_s <= now_s:
            waiting = line.popleft().waiting
            self.line_bytes -= waiting.size_bytes
            arrived.append((waiting.item, waiting.size_bytes))
        return arrived

    def _send(self, now_s: float) -> None:
        """Move items from the queue to the line whose transmission starts by `now_s`."""
        queue = self._queue
        while queue:
            # Virtual time: an item starts when the line was free, even if this is called later.
            start_s = max(queue[0].offered_s, self._free_at_s)
            if start_s > now_s:
                return
            waiting = queue.popleft()
            size_bytes = waiting.size_bytes
            departs_s = start_s
            # Marks take no time on the line and no share of the caps.
            if size_bytes:
                departs_s = max(
                    start_s + size_bytes / self._rate_bytes_per_s,
                    self._egress.take(size_bytes, start_s),
                    self._ingress.take(size_bytes, start_s),
                )
            self._free_at_s = departs_s
            # After the delay has become shorter, an item must not overtake the one before it.
            self._last_arrival_s = max(departs_s + self._delay_s, self._last_arrival_s)
            self._line.append(_OnLine(waiting, departs_s, self._last_arrival_s))
            self.queued_bytes -= size_bytes
            self.line_bytes += size_bytes

    def next_s(self) -> float | None:
        """Return the next time at which `due()` has work if no event comes before, or None if there is none."""
        if self.dropped:
            return None
        start_s = max(self._queue[0].offered_s, self._free_at_s) if self._queue else math.inf
        arrival_s = self._line[0].arrives_s if self._line else math.inf
        next_s = min(start_s, arrival_s)
        return None if next_s == math.inf else next_s

    def set_spec(self, spec: LinkSpec, now_s: float) -> None:
        """Change rate or round-trip time.

        An item that has left keeps its arrival; an item in transmission starts again.
        """
        self._take_back(now_s, departed_too=False)
        self._apply(spec)

    def set_dropped(self, dropped: bool, now_s: float) -> None:
        """Cut the link, or lift the cut. Repeating a call changes nothing."""
        if dropped and not self.dropped:
            self._take_back(now_s, departed_too=True)
            # Nothing is on the line any more that the next item could overtake.
            self._last_arrival_s = -math.inf
        if self.dropped and not dropped:
            # The time of the cut is lost: transmission starts anew when it is lifted.
            self._free_at_s = max(self._free_at_s, now_s)
        self.dropped = dropped

    def _take_back(self, now_s: float, departed_too: bool) -> None:
        """Return items that are still in transmission to the queue; with `departed_too`, all items on the line."""
        # From the newest back to the oldest, so that the queue keeps its order.
        while self._line and (departed_too or self._line[-1].departs_s > now_s):
            waiting = self._line.pop().waiting
            self._queue.appendleft(waiting)
            self.line_bytes -= waiting.size_bytes
            self.queued_bytes += waiting.size_bytes
            self._free_at_s = now_s
        if not departed_too:
            self._last_arrival_s = self._line[-1].arrives_s if self._line else -math.inf
