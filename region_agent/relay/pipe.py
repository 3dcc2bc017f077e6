"""One end of a relayed connection: a call of the relay's gateway, and a TCP connection whose bytes it carries.

Each direction reads the next bytes only once those before are taken, so that at most a chunk and a socket's buffer wait
here. A direction that ends is ended at the other end too.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from periplus.errors import TimedOut, Unreachable
from periplus.net import rpc
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from region_agent.gateway.service import REGION_KEY

CHUNK_BYTES = 64 << 10
"""Most bytes of one message. Chosen by hand, as the chunks of a measurement."""

OPEN_S = 12.0
"""Seconds until the other end must be there: what the relay waits for it (`switchboard`), and the round trips there."""


@dataclass(frozen=True, slots=True)
class RelayedEnd:
    """An end that is open: its call, and what comes from the other end."""

    call: "grpc.aio.StreamStreamCall[gateway_pb2.RelayChunk, gateway_pb2.RelayChunk]"
    chunks: AsyncIterator[gateway_pb2.RelayChunk]


@asynccontextmanager
async def relayed_end(
    address: str, secured: rpc.Secured | None, region: str, first: gateway_pb2.RelayChunk
) -> AsyncIterator[RelayedEnd]:
    """Open an end of `region` at the relay at `address`, and close it with the context; `first` names the other end.

    Raises: what `Switchboard` raises, Unreachable if the relay or the other end is gone, TimedOut.
    """
    with rpc.remote_errors(address):
        async with rpc.channel(address, secured) as channel:
            call = gateway_pb2_grpc.GatewayStub(channel).Relay(metadata=((REGION_KEY, region),))
            chunks = aiter(call)
            try:
                async with asyncio.timeout(OPEN_S):
                    await call.write(first)
                    await _next(chunks)
            except TimeoutError as error:
                raise TimedOut(f"the relay at {address} did not connect within {OPEN_S:.0f} s") from error
            yield RelayedEnd(call, chunks)


async def pipe(end: RelayedEnd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes in both directions until both have ended, and close the TCP connection.

    Raises: Unreachable if either side breaks.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_send(reader, end))
            tasks.create_task(_receive(end, writer))
        await end.call.done_writing()
        with _breaks():
            writer.close()
            await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _send(reader: asyncio.StreamReader, end: RelayedEnd) -> None:
    with _breaks():
        while data := await reader.read(CHUNK_BYTES):
            await end.call.write(gateway_pb2.RelayChunk(data=data))
    await end.call.write(gateway_pb2.RelayChunk(is_end=True))


async def _receive(end: RelayedEnd, writer: asyncio.StreamWriter) -> None:
    with _breaks():
        while not (chunk := await _next(end.chunks)).is_end:
            writer.write(chunk.data)
            await writer.drain()
        writer.write_eof()


async def _next(chunks: AsyncIterator[gateway_pb2.RelayChunk]) -> gateway_pb2.RelayChunk:
    async for chunk in chunks:
        return chunk
    raise Unreachable("the relay ended the connection")


@contextlib.contextmanager
def _breaks() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unreachable(f"the connection on this machine broke: {error.strerror or error}") from error
