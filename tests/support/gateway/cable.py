"""A TCP connection that a test can cut: it passes bytes on to an address, and breaks and refuses them when told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Cable:
    """Passes bytes between `address`, where clients connect, and a server. `cut` breaks what is open."""

    def __init__(self, server: str) -> None:
        self._host, _, self._port = server.rpartition(":")
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.address = ""

    def cut(self) -> None:
        """Break all connections and refuse new ones until `mend`."""
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        """Take connections again."""
        self._is_cut = False

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._host, self._port)
        self._open |= {writer, back}
        try:
            await asyncio.gather(_pass(reader, back), _pass(there, writer))
        finally:
            self._open -= {writer, back}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def cable_to(server: str) -> AsyncIterator[Cable]:
    """Return a cable to the server at `host:port`."""
    cable = Cable(server)
    listening = await asyncio.start_server(cable.connected, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    cable.address = f"{host}:{port}"
    try:
        yield cable
    finally:
        cable.cut()
        listening.close()
