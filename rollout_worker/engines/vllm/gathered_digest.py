"""The digest (periplus/values/digest.py) of weights that several ranks hold together.

A block of a tensor that is divided by columns has elements of every rank. So rows of all tensors are copied into the
shared block, by all ranks at once, and hashed here, load by load. Only as much as one load is in memory at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping

from blake3 import blake3

from periplus.codec.weights.layout import StateLayout, TensorLayout
from periplus.errors import ConfigError
from periplus.values.digest import BLOCK_BYTES, digest_of, root
from rollout_worker.engines.vllm.transfer_buffer import TransferBuffer

Region = tuple[str, int, int, int]
"""Tensor, first row, row after the last, offset in the shared block."""

CopyRows = Callable[[list[Region]], Awaitable[None]]

ALIGNMENT = 8
"""Regions begin at multiples of so many bytes."""


class BlockHasher:
    """The tensor digest of bytes that come in pieces."""

    def __init__(self) -> None:
        self._leaves: list[bytes] = []
        self._rest = bytearray()

    def add(self, piece: memoryview) -> None:
        """Take the next bytes."""
        self._rest += piece
        whole = len(self._rest) // BLOCK_BYTES * BLOCK_BYTES
        with memoryview(self._rest) as rest:
            for start in range(0, whole, BLOCK_BYTES):
                self._leaves.append(blake3(rest[start : start + BLOCK_BYTES]).digest())
        del self._rest[:whole]

    def digest(self) -> bytes:
        """Return the digest of all bytes so far."""
        # The last block may be short; an empty tensor has one empty block.
        last = [blake3(self._rest).digest()] if self._rest or not self._leaves else []
        return root(self._leaves + last)


async def gathered_digest(layout: StateLayout, buffer: TransferBuffer, copy_rows: CopyRows) -> bytes:
    """Return the state digest of the tensors that `copy_rows` copies into the buffer from all ranks.

    Raises: ConfigError if a row of a tensor is larger than the buffer; what `copy_rows` raises.
    """
    hashers = {line.name: BlockHasher() for line in layout.lines}
    columns = {line.name: _columns(line) for line in layout.lines}

    def add(load: list[Region]) -> None:
        for name, first, stop, offset in load:
            hashers[name].add(buffer.words(offset, (stop - first) * columns[name]).data.cast("B"))

    for load in loads(layout, buffer.num_bytes):
        await copy_rows(load)
        await asyncio.to_thread(add, load)
    return whole_digest(layout, {name: hasher.digest() for name, hasher in hashers.items()})


def whole_digest(layout: StateLayout, tensors: Mapping[str, bytes]) -> bytes:
    """Return the state digest from the digest of each tensor of the layout."""
    return digest_of((line.name, line.dtype, line.shape, tensors[line.name]) for line in layout.lines)


def loads(layout: StateLayout, num_bytes: int) -> Iterator[list[Region]]:
    """Yield which rows fit into a block of so many bytes together, until all rows of all tensors were named.

    Raises: ConfigError if a row alone is larger.
    """
    load: list[Region] = []
    offset = 0
    for line in layout.lines:
        num_rows, row_bytes = line.shape[0], 2 * _columns(line)
        if row_bytes > num_bytes:
            raise ConfigError(f"a row of {line.name} has {row_bytes} bytes, the block {num_bytes}: make it larger")
        first = 0
        while first < num_rows:
            stop = min(num_rows, first + (num_bytes - offset) // row_bytes)
            if stop == first:
                yield load
                load, offset = [], 0
                continue
            load.append((line.name, first, stop, offset))
            offset = min(num_bytes, -(-(offset + (stop - first) * row_bytes) // ALIGNMENT) * ALIGNMENT)
            first = stop
    if load:
        yield load


def _columns(line: TensorLayout) -> int:
    number = 1
    for size in line.shape[1:]:
        number *= size
    return number
