"""Byte format of a weight store's files: blocks, each with a kind, a length and a checksum.

    block   kind (4 bytes), length u32, first 8 bytes of BLAKE3(kind || length || data), data         little-endian

A file is written once, in order, and its last block marks the end. A file without that block was never finished and
counts as absent. Each writer defines what its blocks mean.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from periplus.spool.format import Buffer

MAX_BLOCK_BYTES = 128 << 20
"""Largest block, above any part of a publication and any span's changes. A longer one is damage, whatever its checksum
says."""

HEADER_BYTES = 16
"""Bytes of a block before its data."""
_HEAD = struct.Struct("<4sI")
_CHECKSUM_BYTES = 8

Read = Callable[[int, int], bytes]
"""Function that reads up to so many bytes of a file: (offset, number of bytes)."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One block, and the offset of its data in the file."""

    kind: bytes
    data: bytes
    offset: int


def block(kind: bytes, *parts: Buffer) -> tuple[Buffer, ...]:
    """Return the pieces of a block to append to a file. The data are not copied."""
    length = sum(len(part) for part in parts)
    if length > MAX_BLOCK_BYTES:
        raise ValueError(f"a block {kind!r} of {length} bytes; at most {MAX_BLOCK_BYTES}")
    head = _HEAD.pack(kind, length)
    return head + _checksum(head, parts), *parts


def blocks(read: Read) -> Iterator[StoredBlock]:
    """Yield all whole blocks from the file's start, up to the first that is not whole."""
    at = 0
    while len(header := read(at, HEADER_BYTES)) == HEADER_BYTES:
        kind, length = _HEAD.unpack_from(header)
        if length > MAX_BLOCK_BYTES:
            return
        data = read(at + HEADER_BYTES, length)
        if len(data) < length or _checksum(header[: _HEAD.size], (data,)) != header[_HEAD.size :]:
            return
        yield StoredBlock(kind, data, at + HEADER_BYTES)
        at += HEADER_BYTES + length


def whole_data(read: Read, offset: int) -> bytes | None:
    """Return the data of the block whose data begin at `offset`, or None if they are not what was written."""
    header = read(offset - HEADER_BYTES, HEADER_BYTES)
    _, length = _HEAD.unpack_from(header.ljust(HEADER_BYTES, b"\xff"))
    if length > MAX_BLOCK_BYTES:
        return None
    data = read(offset, length)
    is_whole = len(data) == length and _checksum(header[: _HEAD.size], (data,)) == header[_HEAD.size :]
    return data if is_whole else None


def _checksum(head: bytes, parts: tuple[Buffer, ...]) -> bytes:
    hasher = blake3(head)
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=_CHECKSUM_BYTES)
