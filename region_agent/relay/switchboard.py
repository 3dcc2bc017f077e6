"""Joins the two ends of each connection at a gateway that relays, and passes bytes on between them.

A region that cannot be dialled has a call of `Listen` open. Another region opens a call of `Relay` that names it; the
listening region is told the number of the connection, and opens the other end, a call of `Relay` with that number. The
bytes of each end are written to the other one as they come. A chunk is read only once the one before it is written, so
that an end that does not read holds the other one up, and at most two chunks of a direction lie here. When a direction
ends, its receiver is told; when an end is gone, the other one's call fails.

Who listens, calls and accepts is known by certificate, or by metadata in a fleet without identities, and never by what
a message says. Bytes are counted as traffic of this gateway, but those of connections of its own region, which counts
them itself.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import grpc.aio

from periplus.errors import Denied, NotFound, Overloaded, StateError, TimedOut, Unreachable
from periplus.pb.v1 import gateway_pb2
from region_agent.gateway.traffic import Traffic

LISTEN_S = 5.0
"""Seconds for which a caller waits for a region that does not listen: that one may have been told to at the moment at
which the caller was told that it does, or be dialling again. Chosen by hand."""

ACCEPT_S = 5.0
"""Seconds within which the listening region must accept a connection: three intercontinental round trips, and slack.
Chosen by hand."""

MAX_UNTOLD = 64
"""Connections of which a listening region is not told yet, at most. Chosen by hand: a region has a few at a time."""

MAX_CHUNK_BYTES = 1 << 20
"""Largest chunk that is passed on; ends send far smaller ones (`pipe.CHUNK_BYTES`). Chosen by hand."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True, eq=False)
class _Connection:
    """Its ends are those of `regions`: the one that called, and the one that listens."""

    regions: tuple[str, str]
    contexts: list[Context]
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    num_open: int = 2  # directions


class Switchboard:
    """The relay of the gateway of `region`. `refusal` returns why it relays no more bytes for now, or an empty text."""

    def __init__(self, region: str, traffic: Traffic, refusal: Callable[[], str] = lambda: "") -> None:
        self._region, self._traffic, self._refusal = region, traffic, refusal
        self._listening: dict[str, asyncio.Queue[int]] = {}
        self._begun = asyncio.Condition()  # a region has begun to listen
        self._waiting: dict[int, _Connection] = {}
        self._numbers = count(1)

    async def listen(self, region: str, context: Context) -> None:
        """Tell a region the numbers of connections to it until its call ends. A newer call of it replaces this one."""
        numbers = self._listening[region] = asyncio.Queue(MAX_UNTOLD)
        try:
            await context.write(gateway_pb2.RelayedConnection())
            async with self._begun:
                self._begun.notify_all()
            while True:
                await context.write(gateway_pb2.RelayedConnection(connection_id=await numbers.get()))
        finally:
            if self._listening.get(region) is numbers:
                del self._listening[region]

    async def connect(
        self, region: str, dst_region: str, chunks: AsyncIterator[gateway_pb2.RelayChunk], context: Context
    ) -> None:
        """Serve the end of the region that calls until the connection is over.

        Raises: Unreachable if the other region does not listen here or its end is gone, TimedOut if it does not accept,
        Overloaded if too many wait for it, Denied if the relay may send no more.
        """
        if why := self._refusal():
            raise Denied(why)
        try:
            async with asyncio.timeout(LISTEN_S), self._begun:
                await self._begun.wait_for(lambda: dst_region in self._listening)
        except TimeoutError as error:
            where = f"at the relay of {self._region}"
            raise Unreachable(f"{dst_region[:80]} does not listen {where}; is its agent there?") from error
        numbers = self._listening[dst_region]
        number, connection = next(self._numbers), _Connection((region, dst_region), [context])
        self._waiting[number] = connection
        try:
            numbers.put_nowait(number)
            async with asyncio.timeout(ACCEPT_S):
                await connection.accepted.wait()
        except asyncio.QueueFull as error:
            raise Overloaded(f"{MAX_UNTOLD} connections wait for {dst_region} at {self._region}; try again") from error
        except TimeoutError as error:
            raise TimedOut(f"{dst_region} took no connection at {self._region} within {ACCEPT_S:.0f} s") from error
        finally:
            self._waiting.pop(number, None)
        await self._carry(connection, 0, chunks)

    async def accept(
        self, region: str, number: int, chunks: AsyncIterator[gateway_pb2.RelayChunk], context: Context
    ) -> None:
        """Serve the end of the region that listens until the connection is over.

        Raises: NotFound for a connection that is not the region's, or that nobody waits for; Unreachable, Denied.
        """
        connection = self._waiting.get(number)
        if connection is None or connection.regions[1] != region:
            raise NotFound(f"no connection {number} waits for {region} at {self._region}; its caller may have left")
        del self._waiting[number]
        connection.contexts.append(context)
        # Nobody else writes to either end before both are told.
        with contextlib.suppress(grpc.aio.BaseError):  # the caller has left; its end says so below
            for each in connection.contexts:
                await each.write(gateway_pb2.RelayChunk())
        connection.accepted.set()
        await self._carry(connection, 1, chunks)

    async def _carry(self, connection: _Connection, end: int, chunks: AsyncIterator[gateway_pb2.RelayChunk]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                passing = tasks.create_task(self._pass_on(connection, end, chunks))
                await connection.over.wait()
                passing.cancel()
        finally:
            connection.over.set()
        if connection.num_open:
            there = connection.regions[1 - end]
            raise Unreachable(f"the end of {there} of a connection at the relay of {self._region} is gone")

    async def _pass_on(self, connection: _Connection, end: int, chunks: AsyncIterator[gateway_pb2.RelayChunk]) -> None:
        there, dst = connection.contexts[1 - end], connection.regions[1 - end]
        with contextlib.suppress(grpc.aio.BaseError):  # the call of the other end is over
            async for chunk in chunks:
                if why := self._refusal():
                    raise Denied(why)
                if len(chunk.data) > MAX_CHUNK_BYTES:
                    raise StateError(f"a chunk of {len(chunk.data):,} bytes; a relay takes {MAX_CHUNK_BYTES:,} at most")
                if self._region not in connection.regions:
                    self._traffic.sent(dst, chunk.ByteSize())
                await there.write(chunk)
                if chunk.is_end:
                    connection.num_open -= 1
                    if connection.num_open:
                        return  # the other direction goes on
                    break
        connection.over.set()
