"""One derived publication (a fold or a full state) that any number of readers receive while it is being made.

Its parts are kept for readers that come later: the first `MEMORY_BYTES` in memory, the rest in a file. Each reader has
its own speed, and making does not wait for any of them.

    thread   make(...)                         event loop   async for record in made.records()
             add(chunk) -> notify  ----------->             wakes, reads on
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from periplus.errors import CorruptSpool, PeriplusError, StateError, StorageError, Unreachable
from periplus.publication import Chunk, Closing, DerivedWriter, Opening, PublicationRecord
from periplus.spool.files import AppendFile, explained
from periplus.values.policy import Policy
from region_agent.weights.disk.blocks import HEADER_BYTES, block, whole_data
from region_agent.weights.disk.files import WeightFiles

MEMORY_BYTES = 64 << 20
"""Bytes of one derived publication that are kept in memory. Most folds, and all of a small state, never reach the
disk.
"""

_PART = b"PART"


class DerivedPublication:
    """Opening, chunks and closing of a derived publication, as far as they are made.

    `make` runs in its own thread; all other methods are called from the event loop. `failure` says why the publication
    will not be completed.
    """

    def __init__(self, writer: DerivedWriter, layer: WeightFiles, path: Path) -> None:
        self.opening: Opening = writer.opening
        self.num_readers = 0
        self.num_bytes = 0
        self.closing: Closing | None = None
        self.failure: PeriplusError | None = None
        self._writer = writer
        self._layer = layer
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._chunks: list[Chunk | int] = []  # an int is the offset of the chunk's data in the file
        self._file: AppendFile | None = None
        self._file_bytes = 0

    @property
    def policy(self) -> Policy:
        """Version to which the publication leads."""
        return self.opening.policy

    def make(self, parts: Iterable[bytes]) -> None:
        """Make the whole publication from the parts. It runs in a thread of its own."""
        try:
            for part in parts:
                self._add(self._writer.chunk(part))
            self.closing = self._writer.closing()
        except PeriplusError as error:
            self.failure = error
        except ValueError as error:  # readers would refuse what exceeds the caps
            self.failure = StateError(f"{self.opening} cannot be made: {error}")
        finally:
            if self._file is not None:
                self._file.close()
            self._loop.call_soon_threadsafe(self._notify)

    async def records(self) -> AsyncIterator[PublicationRecord]:
        """Yield the records from the opening on, waiting for those that are not made yet.

        Raises: Unreachable if it will not be completed; the reader then starts anew.
        """
        yield self.opening
        index = 0
        while True:
            # Take the event before looking at the chunks, so that none that is added meanwhile is missed.
            changed = self._changed
            while index < len(self._chunks):
                yield await self._chunk(index)
                index += 1
            if self.failure is not None:
                raise Unreachable(f"{self.opening} was given up: {self.failure}")
            if self.closing is not None and index == len(self._chunks):
                yield self.closing
                return
            await changed.wait()

    def give_up(self, why: str) -> None:
        """Say that the publication will not be completed, and wake its readers."""
        self.failure = Unreachable(why)
        self._notify()

    def remove(self) -> None:
        """Remove its file, if it has one."""
        with contextlib.suppress(OSError):  # the next start removes it
            self._layer.unlink(self._path)

    async def _chunk(self, index: int) -> Chunk:
        held = self._chunks[index]
        if isinstance(held, Chunk):
            return held
        try:
            return Chunk(index, await asyncio.to_thread(self._read, held))
        except StorageError as error:
            self.give_up(str(error))
            raise

    def _read(self, offset: int) -> bytes:
        with explained(self._path):
            data = whole_data(lambda at, size: self._layer.read(self._path, at, size), offset)
        if data is None:
            raise CorruptSpool(f"{self._path} is damaged at byte {offset}; subscribe again")
        return data

    def _add(self, chunk: Chunk) -> None:
        self.num_bytes += len(chunk.data)
        if self.num_bytes <= MEMORY_BYTES:
            self._chunks.append(chunk)
        else:
            with explained(self._path):
                if self._file is None:
                    self._file = self._layer.create(self._path)
                self._file.append(block(_PART, chunk.data))
            self._chunks.append(self._file_bytes + HEADER_BYTES)
            self._file_bytes += HEADER_BYTES + len(chunk.data)
        self._loop.call_soon_threadsafe(self._notify)

    def _notify(self) -> None:
        # Wake all who wait now. Whoever looks later waits for a new event, so nobody has to clear one that others still
        # need.
        self._changed.set()
        self._changed = asyncio.Event()
