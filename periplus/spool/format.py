"""The bytes of a spool's segment files, and what can be known of a file that nobody vouches for.

    segment   magic "PSPOOL1\\n", epoch u64, first sequence u64, first 8 bytes of BLAKE3 of these 24       32 bytes
    record    magic "PSR1", length u32, sequence u64, promised u64, first 8 bytes of BLAKE3(data),
              CRC-32 of these 32 seeded with the epoch                                                     36 bytes
              data
    seal      a record header of length 2^32 - 1 and no data: nothing follows in this segment

All numbers are little-endian. A file is named `<epoch>-<first sequence>.spool`, both with leading zeros, so that names
sort as positions do.

A record says how many records of its epoch had been *promised* when it was written. This tells a torn tail from
damage: what lies at or beyond every promise found in the epoch was never reported durable and may be cut; what lies
below one was, and its loss is an error. The header has a checksum of its own, so that a record whose data is damaged
can still be stepped over, and what follows it be heard.
"""

import re
import struct
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from blake3 import blake3

Buffer = bytes | bytearray | memoryview

SEGMENT_HEADER_BYTES = 32
RECORD_HEADER_BYTES = 36
MAX_RECORD_BYTES = 1 << 30
"""Far above any frame; a length beyond it is damage, whatever its checksum says."""

MAX_SEGMENT_BYTES = SEGMENT_HEADER_BYTES + 2 * (RECORD_HEADER_BYTES + MAX_RECORD_BYTES)
"""Largest file of a segment: a new one is begun beyond at most MAX_RECORD_BYTES, so one record may lie behind these."""

_SEGMENT_MAGIC = b"PSPOOL1\n"
_RECORD_MAGIC = b"PSR1"
_SEAL_LENGTH = (1 << 32) - 1
_SEGMENT = struct.Struct("<8sQQ")
_RECORD = struct.Struct("<4sIQQ8s")
_CRC = struct.Struct("<I")
_CHECKSUM_BYTES = 8
_NAME = re.compile(r"(\d{10})-(\d{14})\.spool")


class Durability(StrEnum):
    """What a promise survives: the death of the process (kill -9), or that of the machine (power cut)."""

    PROCESS = "process"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Names one record for ever: the epoch rises with each opening that writes, the sequence by one a record from 0."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"


@dataclass(frozen=True, slots=True)
class Header:
    """Header of one record. With `is_seal` no record follows: the segment ends here."""

    length: int
    sequence: int
    promised: int
    checksum: bytes

    @property
    def is_seal(self) -> bool:
        return self.length == _SEAL_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A segment's contents up to the first byte that is not as it was written.

    `offsets`: where each whole record starts. `end`: the first byte after them, and after the seal. `promised`: the
    largest promise in any header of the file, those behind `end` included.
    """

    offsets: "array[int]"
    end: int
    sealed: bool
    promised: int


def segment_name(first: Position) -> str:
    """The file name of the segment whose first record is `first`."""
    return f"{first.epoch:010d}-{first.sequence:014d}.spool"


def first_position(name: str) -> Position | None:
    """The inverse; None for a file that is no segment."""
    found = _NAME.fullmatch(name)
    return Position(int(found[1]), int(found[2])) if found else None


def segment_header(first: Position) -> bytes:
    head = _SEGMENT.pack(_SEGMENT_MAGIC, first.epoch, first.sequence)
    return head + blake3(head).digest(length=_CHECKSUM_BYTES)


def data_checksum(parts: Iterable[Buffer]) -> bytes:
    """Return the checksum of a record's data, which is given in pieces."""
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=_CHECKSUM_BYTES)


def record_header(position: Position, length: int, promised: int, checksum: bytes) -> bytes:
    head = _RECORD.pack(_RECORD_MAGIC, length, position.sequence, promised, checksum)
    return head + _CRC.pack(_crc(head, position.epoch))


def seal(end: Position, promised: int) -> bytes:
    """What ends a segment whose next record would have been `end`."""
    return record_header(end, _SEAL_LENGTH, promised, bytes(_CHECKSUM_BYTES))


def read_header(data: Buffer, offset: int, epoch: int) -> Header | None:
    """The record header at `offset`; None if there is none, or if it is damaged."""
    end = offset + RECORD_HEADER_BYTES
    if end > len(data):
        return None
    head = bytes(data[offset : offset + _RECORD.size])
    magic, length, sequence, promised, checksum = _RECORD.unpack(head)
    if magic != _RECORD_MAGIC or _CRC.unpack_from(data, end - _CRC.size)[0] != _crc(head, epoch):
        return None
    return (
        Header(length, sequence, promised, checksum) if length <= MAX_RECORD_BYTES or length == _SEAL_LENGTH else None
    )


def is_whole(data: Buffer, header: Header) -> bool:
    """Whether `data` is what the header was written for."""
    return len(data) == header.length and data_checksum((data,)) == header.checksum


def scan(data: bytes, first: Position) -> Scan:
    """What a segment's file holds. Never raises: whether what is missing may be missing is the caller's to judge."""
    offsets = array("Q")
    sequence, promised, at = first.sequence, 0, SEGMENT_HEADER_BYTES
    if data[:SEGMENT_HEADER_BYTES] != segment_header(first):
        return Scan(offsets=offsets, end=0, sealed=False, promised=_promised_after(data, 0, first.epoch))
    view = memoryview(data)
    while (header := read_header(data, at, first.epoch)) is not None and header.sequence == sequence:
        promised = max(promised, header.promised)
        if header.is_seal:
            return Scan(offsets=offsets, end=at + RECORD_HEADER_BYTES, sealed=True, promised=promised)
        start = at + RECORD_HEADER_BYTES
        if not is_whole(view[start : start + header.length], header):
            promised = max(promised, _promised_after(data, start + header.length, first.epoch))
            return Scan(offsets=offsets, end=at, sealed=False, promised=promised)
        offsets.append(at)
        at = start + header.length
        sequence += 1
    promised = max(promised, _promised_after(data, at, first.epoch))
    return Scan(offsets=offsets, end=at, sealed=False, promised=promised)


def _promised_after(data: bytes, start: int, epoch: int) -> int:
    promised, at = 0, start
    while (at := data.find(_RECORD_MAGIC, at)) >= 0:
        header = read_header(data, at, epoch)
        if header is None:
            at += 1
            continue
        promised = max(promised, header.promised)
        at += RECORD_HEADER_BYTES + (0 if header.is_seal else header.length)
    return promised


def _crc(head: bytes, epoch: int) -> int:
    return zlib.crc32(head, epoch & 0xFFFF_FFFF)
