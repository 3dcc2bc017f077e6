"""Sockets around the emulated links: one listener on 127.0.0.1 per (source region, destination address).

A relayed connection has two sockets: the *near* one that the client dialled, and the *far* one to the destination. Each
is an *end*. What an end reads goes into its outgoing link in chunks; what arrives from the link is written to the other
end's socket. Opening, end of stream and reset travel as marks in the same order. So a handshake takes one round-trip
time, a half-close follows the last byte, a refused connection resets the client, and a dropped link stalls all of them.

Bounds: an end reads only while its link has room and little unwritten data waits at the other end. So a slow receiver
or link stops the sender through TCP. Ends that found their link full wait in line, and get one chunk per turn. Bytes
count as delivered when they leave the link towards an end that is still open.

Everything runs in callbacks of one event loop, on non-blocking sockets, without a task or a copy per chunk.
"""

import asyncio
import ipaddress
import logging
import math
import select
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum

from periplus import errors
from periplus.wan.grid import EmulatedNetwork, unknown_region
from periplus.wan.shaping import DirectedLink, LinkCount, LinkProperty, LinkSpec, NodeCap

log = logging.getLogger(__name__)

_TIMER_SLACK_S = 0.00015
"""Seconds by which timers are set early. A sleeping process wakes this late (measured: 0.1 to 0.2 ms), so the mean is
right."""

_BACKLOG_BYTES = 256 << 10
"""Most bytes that arrived but were not yet taken by the receiving socket. An end whose peer has more stops reading."""

_SOCKET_BUFFER_BYTES = 1 << 20
"""The relay's receive buffer in bytes: what a sender can have written beyond the link's own queue. It is kept far below
the kernel's 32 MB, and is large enough to sleep 1 ms at 1 GB/s."""

_LISTEN_BACKLOG = 1024
"""Connections that a listener's socket queues before they are accepted."""
_ACCEPT_PAUSE_S = 1.0
"""Seconds without accepting after the process ran out of file descriptors."""
_CLOSE_WITH_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on with zero seconds: closing the socket sends a reset."""


class _PreciseSelector(selectors.EpollSelector):
    """Selector with microsecond timeouts: epoll waits whole milliseconds, too coarse for the delay of a near pair."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for a relay.

    Any loop works; with this one delays are right to a fraction of a millisecond.
    """
    return asyncio.SelectorEventLoop(_PreciseSelector())


class _Mark(Enum):
    """Event of a connection that travels along a link like data, without size."""

    OPEN = "dial the destination"
    OPENED = "the destination answered"
    END = "no more bytes will come"
    RESET = "the connection broke"


_Item = tuple["_End", bytes | _Mark]


class _Link:
    """A directed link with its timer, its counter, and the ends that wait for room."""

    def __init__(self, loop: asyncio.AbstractEventLoop, machine: DirectedLink[_Item]) -> None:
        self.machine = machine
        self.delivered_bytes = 0
        self.waiting: deque[_End] = deque()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._pumping = False

    def send(self, to: "_End", what: bytes | _Mark) -> None:
        self.machine.offer((to, what), len(what) if isinstance(what, bytes) else 0, self._loop.time())

    def pump(self) -> None:
        """Deliver what is due, let waiting ends fill the room, and set the timer for the next event."""
        # Delivered items may call back here (a reset, or a read): the outer call then does the work.
        if self._pumping:
            return
        self._pumping = True
        try:
            self._move()
        finally:
            self._pumping = False
            self._arm()

    def _move(self) -> None:
        machine = self.machine
        # Delivery makes room, and a chunk that is read into the room may be due at once: repeat until neither happens.
        while True:
            for (end, what), size_bytes in machine.due(self._loop.time() + _TIMER_SLACK_S):
                if size_bytes and end.open:
                    self.delivered_bytes += size_bytes
                end.receive(what)
            if not (self.waiting and machine.room()):
                return
            self.waiting.popleft().read_in_turn()

    def _arm(self) -> None:
        next_s = self.machine.next_s()
        wanted_s = math.inf if next_s is None else next_s - _TIMER_SLACK_S
        # Most events leave the next time as it was.
        if wanted_s == self._timer_s:
            return
        self.stop()
        if wanted_s < math.inf:
            self._timer_s = wanted_s
            self._timer = self._loop.call_at(wanted_s, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_s = None, math.inf
        self.pump()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = None, math.inf


class _End:
    """One of a connection's two sockets: reads into its outgoing link, writes what arrives from the other end."""

    def __init__(self, relay: "Relay", outgoing: _Link, dials: tuple[str, int] | None = None) -> None:
        self.other: _End = self  # until the listener pairs two
        self.open = True
        self.backlog_bytes = 0
        self._relay = relay
        self._loop = relay.loop
        self._outgoing = outgoing
        self._dials = dials
        self._socket: socket.socket | None = None
        self._backlog: deque[memoryview] = deque()
        self._reading = False
        self._queued_for_room = False
        self._held_by_backlog = False
        self._opened = False
        self._read_ended = False
        self._write_ends = False
        self._write_ended = False

    def take(self, socket_: socket.socket) -> None:
        socket_.setblocking(False)
        socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = socket_
        self._relay.ends.add(self)

    def receive(self, what: bytes | _Mark) -> None:
        # What was on the way when an end closed is lost, as on a real network.
        if not self.open:
            return
        if isinstance(what, bytes):
            self._write(what)
        elif what is _Mark.OPEN:
            self._dial()
        # Only now may the client's bytes be read: its handshake took one round-trip time.
        elif what is _Mark.OPENED:
            self._opened = True
            self._resume()
        elif what is _Mark.END:
            self._write_ends = True
            self._end_write_when_drained()
        else:
            self._close(reset=True)

    # --- towards the link -------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        if self.open and self._opened and not (self._reading or self._read_ended or self._queued_for_room):
            assert self._socket is not None
            self._reading = True
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def _pause(self) -> None:
        if self._reading:
            assert self._socket is not None
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _readable(self) -> None:
        if self._may_read() and self._read():
            self._outgoing.pump()

    def read_in_turn(self) -> None:
        """Read one chunk. The link calls this when it has room."""
        self._queued_for_room = False
        if not self.open or not self._may_read():
            return
        if self._read() and self.open and not self._read_ended and not self._outgoing.machine.room():
            self._wait_for_room()  # more is likely: stay in line, which saves two selector calls per chunk
        else:
            self._resume()

    def _may_read(self) -> bool:
        """Return whether to read now; otherwise arrange to be called when the other end or the link has room."""
        if self.other.backlog_bytes >= _BACKLOG_BYTES:
            self._held_by_backlog = True
            self._pause()
            return False
        if (self._reading and self._outgoing.waiting) or not self._outgoing.machine.room():
            self._wait_for_room()
            return False
        return True

    def _wait_for_room(self) -> None:
        self._pause()
        self._queued_for_room = True
        self._outgoing.waiting.append(self)

    def _read(self) -> bool:
        """Read one chunk into the link. Return False if the socket had nothing."""
        assert self._socket is not None
        try:
            data = self._socket.recv(self._outgoing.machine.chunk_bytes)
        except BlockingIOError:
            return False
        # The socket is broken, for example by a reset of its peer, which then travels along the link.
        except OSError:
            self._break()
            return True
        if data:
            self._outgoing.send(self.other, data)
        else:
            # End of stream: it travels behind the last byte, while the other direction stays open.
            self._read_ended = True
            self._pause()
            self._outgoing.send(self.other, _Mark.END)
            self._close_when_ended()
        return True

    def backlog_fell(self) -> None:
        """Resume reading. The other end calls this when it has written most of its waiting data."""
        if self._held_by_backlog:
            self._held_by_backlog = False
            self._resume()

    # --- towards the socket -----------------------------------------------------------------------------------------

    def _dial(self) -> None:
        assert self._dials is not None
        socket_ = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # The buffer's size must be set before connecting, because it decides the window that TCP offers.
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self.take(socket_)
        try:
            socket_.connect(self._dials)
        # The connection is being made; the socket becomes writable when it is decided.
        except BlockingIOError:
            self._loop.add_writer(socket_.fileno(), self._dialled)
        except OSError:
            self._break_and_pump()
        else:
            self._dialled()

    def _dialled(self) -> None:
        assert self._socket is not None
        self._loop.remove_writer(self._socket.fileno())
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._break()
        else:
            self._outgoing.send(self.other, _Mark.OPENED)
            self._opened = True
            self._resume()
        self._outgoing.pump()

    def _write(self, data: bytes) -> None:
        sent = 0
        # With bytes waiting, new ones must wait behind them.
        if not self._backlog:
            assert self._socket is not None
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                self._break_and_pump()
                return
            if sent == len(data):
                return
            # The rest is written as soon as the socket takes more.
            self._loop.add_writer(self._socket.fileno(), self._writable)
        self._backlog.append(memoryview(data)[sent:])
        self.backlog_bytes += len(data) - sent

    def _writable(self) -> None:
        assert self._socket is not None
        try:
            while self._backlog:
                sent = self._socket.send(self._backlog[0])
                self.backlog_bytes -= sent
                if sent < len(self._backlog[0]):
                    self._backlog[0] = self._backlog[0][sent:]
                    break
                self._backlog.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._break_and_pump()
            return
        # Let the other end read again well before the backlog is empty, so that the flow does not stop.
        if self.backlog_bytes <= _BACKLOG_BYTES // 2:
            self.other.backlog_fell()
        # An idle socket is always writable: without removal the loop would spin.
        if not self._backlog:
            self._loop.remove_writer(self._socket.fileno())
            self._end_write_when_drained()

    def _end_write_when_drained(self) -> None:
        if self._write_ends and not self._backlog and not self._write_ended:
            assert self._socket is not None
            self._write_ended = True
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self._break_and_pump()
                return
            self._close_when_ended()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _close_when_ended(self) -> None:
        if self._read_ended and self._write_ended:
            self._close(reset=False)

    def _break(self) -> None:
        self._close(reset=False)
        self._outgoing.send(self.other, _Mark.RESET)

    def _break_and_pump(self) -> None:
        self._break()
        self._outgoing.pump()

    def _close(self, reset: bool) -> None:
        self.open = False
        self._backlog.clear()
        self.backlog_bytes = 0
        self._relay.ends.discard(self)
        if self._socket is not None:
            # The loop must forget the descriptor before it is closed, since its number may be given to a new socket at
            # once.
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            if reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITH_RESET)
            self._socket.close()
        self._reading = False
        # The other end must not wait for a backlog that no longer exists.
        self.other.backlog_fell()

    def close(self) -> None:
        """Reset the connection. The relay calls this when it stops."""
        self._close(reset=True)


class _Listener:
    """Accepts connections on a free port of 127.0.0.1."""

    def __init__(self, loop: asyncio.AbstractEventLoop, accepted: Callable[[socket.socket], None]) -> None:
        self._loop = loop
        self._accepted = accepted
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)  # accepted ones inherit it
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(_LISTEN_BACKLOG)
        self._resuming: asyncio.TimerHandle | None = None
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._listen()

    def _listen(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            socket_, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # out of descriptors: the pending connection would wake the loop for ever
            log.error("wan accept failed", extra={"address": self.address, "error": str(error)})
            self._loop.remove_reader(self._socket.fileno())
            self._resuming = self._loop.call_later(_ACCEPT_PAUSE_S, self._listen)
            return
        self._accepted(socket_)

    def close(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()


class Relay:
    """All links, listeners and connections of one emulated network.

    Every method runs on the loop that the relay was built for.
    """

    def __init__(self, network: EmulatedNetwork, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.factor = network.factor
        self.ends: set[_End] = set()
        self._regions = network.regions
        egress = {region: NodeCap(network.egress_bits_per_s[region]) for region in network.regions}
        ingress = {region: NodeCap(network.ingress_bits_per_s[region]) for region in network.regions}
        self._links: Mapping[tuple[str, str], _Link] = {
            (src, dst): _Link(loop, DirectedLink(spec, egress=egress[src], ingress=ingress[dst]))
            for (src, dst), spec in network.links.items()
        }
        self._region_of: dict[str, str] = {}
        self._listeners: dict[tuple[str, str], _Listener] = {}

    def attach(self, region: str, address: str) -> None:
        """Record that `address` (host:port) lies in `region`. The last call counts, because ports are reused.

        Raises: NotFound for an unknown region, ConfigError for a malformed address.
        """
        self._check_region(region)
        _host_port(address)
        if self._region_of.get(address, region) != region:
            for key in [key for key in self._listeners if key[1] == address]:
                self._listeners.pop(key).close()
        self._region_of[address] = region

    def route(self, src_region: str, address: str) -> tuple[str, str]:
        """Return the address that a process in `src_region` dials to reach `address`, and the region of `address`.

        Raises: NotFound for an unknown region, or an address that nobody attached.
        """
        self._check_region(src_region)
        dst_region = self._region_of.get(address)
        if dst_region is None:
            raise errors.NotFound(
                f"address {address} lies in no region; the process that serves it must attach it first, spelled so"
            )
        # Within a region nothing is emulated: the process dials the address itself.
        if dst_region == src_region:
            return address, dst_region
        key = (src_region, address)
        if key not in self._listeners:
            self._listeners[key] = self._listener(src_region, dst_region, address)
        return self._listeners[key].address, dst_region

    def _listener(self, src_region: str, dst_region: str, address: str) -> _Listener:
        forth = self._links[src_region, dst_region]
        back = self._links[dst_region, src_region]

        def accepted(near_socket: socket.socket) -> None:
            near = _End(self, forth)
            far = _End(self, back, dials=_host_port(address))
            near.other, far.other = far, near
            near.take(near_socket)
            forth.send(far, _Mark.OPEN)
            forth.pump()

        return _Listener(self.loop, accepted)

    def set_link(self, src_region: str, dst_region: str, property_: LinkProperty, value: float) -> None:
        """Change one property of a directed link.

        The value is a rate in bits per second (infinity: unlimited), an rtt in seconds, or drop (1 or 0).

        Raises: NotFound for an unknown region, ConfigError for a value out of range.
        """
        self._check_region(src_region)
        self._check_region(dst_region)
        if src_region == dst_region:
            raise errors.ConfigError(f"{src_region} to itself is no link; name two regions")
        link = self._links[src_region, dst_region]
        now_s = self.loop.time()
        if property_ is LinkProperty.DROP:
            link.machine.set_dropped(bool(value), now_s)
        else:
            link.machine.set_spec(_changed(link.machine.spec, property_, value), now_s)
        log.info(
            "wan link set", extra={"src": src_region, "dst": dst_region, "property": property_.value, "value": value}
        )
        # The change may have made items due, or moved the time of the next one.
        link.pump()

    def counts(self) -> tuple[LinkCount, ...]:
        """Return the current counters and settings of every directed link."""
        return tuple(
            LinkCount(
                src_region=src,
                dst_region=dst,
                delivered_bytes=link.delivered_bytes,
                queued_bytes=link.machine.queued_bytes + link.machine.line_bytes,
                rate_bits_per_s=link.machine.spec.rate_bits_per_s,
                rtt_s=link.machine.spec.rtt_s,
                dropped=link.machine.dropped,
            )
            for (src, dst), link in self._links.items()
        )

    def close(self) -> None:
        """Stop listening, and reset every connection."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for link in self._links.values():
            link.stop()
        for end in tuple(self.ends):
            end.close()

    def _check_region(self, region: str) -> None:
        if region not in self._regions:
            raise errors.NotFound(unknown_region(region, self._regions))


def _changed(spec: LinkSpec, property_: LinkProperty, value: float) -> LinkSpec:
    try:
        if property_ is LinkProperty.RATE:
            return replace(spec, rate_bits_per_s=value)
        return replace(spec, rtt_s=value)
    except ValueError as error:
        raise errors.ConfigError(str(error)) from error


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    try:
        ip = ipaddress.IPv4Address("127.0.0.1" if host == "localhost" else host)  # no name lookup: it would block
        if port.isdecimal() and 0 < int(port) < 1 << 16:
            return str(ip), int(port)
    except ValueError:
        pass
    raise errors.ConfigError(
        f"address {address!r} is not IPV4:PORT with a port from 1 to 65535; give a numeric address"
    )
