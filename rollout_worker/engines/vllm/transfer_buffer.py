"""A block of memory that this process shares with vLLM's workers, and how new elements lie in it.

vLLM's calls of its workers cannot carry arrays. So arrays go through one file in the memory file system, which the
engine makes when it starts. Every worker maps it once; then the file's name is removed, so that nothing is left behind
whoever is killed, and the mappings go on. If the engine is killed before that, Python's resource tracker removes the
name. Changes are sent in loads of at most half of the block, in one half and the other in turn: while the workers write
one load, this process puts the next one into the block.

A *record* says where the elements of one update lie in the block: (name, start, number, whether there are positions,
offset in bytes). The values (16 bits each) come first, then the positions (32 bits each), which count from `start`.
"""

import asyncio
import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.staged import Update
from periplus.errors import ConfigError

FOLDER = Path("/dev/shm")
"""The memory file system of Linux, which vLLM itself needs too."""

MAX_BUFFER_BYTES = 256 << 20
"""Largest size of the block by default: 16 GB of weights then take 120 calls of the workers, of about 1 ms each."""

LEAST_BUFFER_BYTES = 32 << 20
"""Size of the block where there is little shared memory. Containers often have 64 MiB in all."""

ROOM_SHARE = 8
"""The block takes at most one part in so many of the free shared memory, but for `LEAST_BUFFER_BYTES`. By hand."""

MIN_BUFFER_BYTES = 1 << 12
"""Smallest block. Chosen by hand: an element of an update needs 6 bytes, and an update begins at a multiple of 8."""

TURNS_TO_SEND = 3
"""Turns of the event loop within which a call of the workers was sent: it is a task that starts another one. If it
takes more, the call and the next load do not overlap, and nothing else changes."""

_KIND = "shared_memory"
"""What Python's resource tracker calls such a file. It knows it by its name in FOLDER, after a slash."""

_VALUE_BYTES, _POSITION_BYTES, _ALIGNMENT = 2, 4, 8

Record = tuple[str, int, int, bool, int]
"""Name, start, number of elements, whether there are positions, offset."""


class TransferBuffer:
    """One mapping of the shared block."""

    def __init__(self, mapping: mmap.mmap, path: Path) -> None:
        self._path = path
        self._mapping = mapping
        self._bytes = np.frombuffer(mapping, np.uint8)

    @classmethod
    def create(cls, num_bytes: int | None = None, folder: Path = FOLDER) -> Self:
        """Make a new block, readable by this user alone, of a size that its folder has room for if none is given.

        Raises: ConfigError if there is no room for it.
        """
        if num_bytes is None:
            num_bytes = _size_for(folder)
        if num_bytes < MIN_BUFFER_BYTES:
            raise ValueError(f"a block of {num_bytes} bytes; take at least {MIN_BUFFER_BYTES}")
        try:
            descriptor, name = tempfile.mkstemp(prefix="periplus-", dir=folder)
        except OSError as error:
            raise ConfigError(f"cannot make a file in {folder} ({error.strerror}); vLLM needs shared memory") from error
        path = Path(name)
        if folder == FOLDER:
            resource_tracker.register(f"/{path.name}", _KIND)
        try:
            # Reserves the pages now: without them a later write would end the process with SIGBUS.
            os.posix_fallocate(descriptor, 0, num_bytes)
            return cls(mmap.mmap(descriptor, num_bytes), path)
        except OSError as error:
            _remove(path)
            raise ConfigError(
                f"{folder} has no room for {num_bytes} bytes ({error.strerror}); give the container more shared memory"
            ) from error
        finally:
            os.close(descriptor)

    @classmethod
    def private(cls, num_bytes: int) -> Self:
        """Make a block that no other process sees, for arrays that are sent as bytes (`content`)."""
        return cls(mmap.mmap(-1, num_bytes), Path())

    @classmethod
    def attach(cls, path: Path) -> Self:
        """Map a block that another process made. Raises: OSError if there is none."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), 0), path)

    @property
    def path(self) -> Path:
        """Where the block can be mapped, until `unlink`."""
        return self._path

    @property
    def num_bytes(self) -> int:
        """Size of the block."""
        return len(self._bytes)

    def unlink(self) -> None:
        """Remove the name. Mappings go on. It may be called twice."""
        _remove(self._path)

    def content(self, records: Sequence[Record]) -> bytes:
        """Return a copy of the part of the block that a load's records describe."""
        ends = [
            offset + (_padded_values(number) + _POSITION_BYTES * number if has_positions else _VALUE_BYTES * number)
            for _, _, number, has_positions, offset in records
        ]
        return self._bytes[records[0][4] : max(ends)].tobytes()

    def put(self, content: bytes, offset: int) -> None:
        """Overwrite the block from the byte `offset` on. Raises: ValueError for a part that is not in the block."""
        if offset < 0 or offset + len(content) > self.num_bytes:
            raise ValueError(f"a load of {len(content)} bytes at {offset}, for a block of {self.num_bytes}")
        self._bytes[offset : offset + len(content)] = np.frombuffer(content, np.uint8)

    def words(self, offset: int, number: int) -> npt.NDArray[np.uint16]:
        """Return `number` 16-bit elements of the block from the byte `offset` on, as a view."""
        return self._bytes[offset : offset + _VALUE_BYTES * number].view(np.uint16)

    async def send(self, updates: Iterable[Update], announce: Callable[[list[Record]], Awaitable[object]]) -> None:
        """Put updates into the block load by load, and `announce` the records of each, which returns when it was read.

        The next load is put into the block meanwhile. Raises: what `announce` raises; nothing is announced after that.
        """
        announced: asyncio.Future[object] | None = None
        try:
            for records in self.loads(updates):
                if announced is not None:
                    await announced
                announced = asyncio.ensure_future(announce(records))
                for _ in range(TURNS_TO_SEND):
                    await asyncio.sleep(0)
            if announced is not None:
                await announced
        finally:
            if announced is not None and not announced.done():
                announced.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await announced

    def loads(self, updates: Iterable[Update]) -> Iterator[list[Record]]:
        """Put updates into one half of the block, as many as fit, and yield their records; then into the other half.

        A load stays in the block until the one after the next is taken. Updates are cut where they do not fit.
        """
        half = self.num_bytes // 2 // _ALIGNMENT * _ALIGNMENT
        records: list[Record] = []
        begin = offset = 0
        for update in updates:
            first = 0
            while first < len(update.values):
                piece = self._piece(update, first, begin + half - offset)
                if piece is None:
                    yield records
                    records, begin = [], half - begin
                    offset = begin
                    continue
                record, first = self._put(piece, offset), first + len(piece.values)
                records.append(record)
                offset += _aligned(len(piece.values) * _element_bytes(piece))
        if records:
            yield records

    def updates(self, records: Iterable[Sequence[object]]) -> Iterator[Update]:
        """Yield the updates that the records describe. Their values are views of the block.

        Raises: ValueError for a record outside the block.
        """
        for name, start, number, has_positions, offset in records:
            assert isinstance(name, str)
            assert isinstance(start, int)
            assert isinstance(number, int)
            assert isinstance(offset, int)
            num_bytes = number * (_VALUE_BYTES + (_POSITION_BYTES if has_positions else 0))
            if offset < 0 or number < 0 or offset % _ALIGNMENT or offset + num_bytes > self.num_bytes:
                raise ValueError(f"a record of {num_bytes} bytes at {offset}, in a block of {self.num_bytes}")
            values = self.words(offset, number)
            positions = None
            if has_positions:
                at = offset + _padded_values(number)
                stored = self._bytes[at : at + _POSITION_BYTES * number].view(np.uint32)
                positions = stored.astype(np.int64) + start
            yield Update(name=name, positions=positions, start=start, values=values)

    def _piece(self, update: Update, first: int, room_bytes: int) -> Update | None:
        """Return the elements from `first` on that fit into the room, or None if it is used up."""
        # 8 bytes go at most to padding: the values are padded to a whole position, and the update to its alignment.
        number = min((room_bytes - _ALIGNMENT) // _element_bytes(update), len(update.values) - first)
        if number <= 0:
            return None
        if update.positions is None:
            values = update.values[first : first + number]
            return Update(name=update.name, positions=None, start=update.start + first, values=values)
        positions = update.positions[first : first + number]
        # Positions count from the first one with 32 bits.
        number = int(np.searchsorted(positions, positions[0] + (1 << 32)))
        values = update.values[first : first + number]
        return Update(name=update.name, positions=positions[:number], start=int(positions[0]), values=values)

    def _put(self, update: Update, offset: int) -> Record:
        number = len(update.values)
        self.words(offset, number)[:] = update.values
        if update.positions is not None:
            at = offset + _padded_values(number)
            stored = self._bytes[at : at + _POSITION_BYTES * number].view(np.uint32)
            np.subtract(update.positions, update.start, out=stored, casting="unsafe")
        return update.name, update.start, number, update.positions is not None, offset


def _size_for(folder: Path) -> int:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return LEAST_BUFFER_BYTES  # to make the file says why
    return max(LEAST_BUFFER_BYTES, min(MAX_BUFFER_BYTES, free // ROOM_SHARE))


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        return
    if path.parent == FOLDER:
        resource_tracker.unregister(f"/{path.name}", _KIND)


def _element_bytes(update: Update) -> int:
    return _VALUE_BYTES if update.positions is None else _VALUE_BYTES + _POSITION_BYTES


def _padded_values(number: int) -> int:
    return -(-_VALUE_BYTES * number // _POSITION_BYTES) * _POSITION_BYTES


def _aligned(num_bytes: int) -> int:
    # The padding between values and positions is part of it: at most 2 bytes.
    return -(-(num_bytes + _VALUE_BYTES) // _ALIGNMENT) * _ALIGNMENT
