"""The byte format of a spool's segment files, and a scan that finds the valid records of a file after a crash.

    segment   magic "PSPOOL1\\n", epoch u64, first sequence u64, first 8 bytes of BLAKE3 of these 24       32 bytes
    record    magic "PSR1", length u32, sequence u64, promised u64, first 8 bytes of BLAKE3(data),
              CRC-32 of these 32 seeded with the epoch                                                     36 bytes
              data
    seal      a record header with length 2^32 - 1 and no data, which ends the segment

All numbers are little-endian. A file is named `<epoch>-<first sequence>.spool`, both with leading zeros, so that names
sort as positions do.

Each record header has the number of records of its epoch that were *promised*, which means reported durable, when it
was written. This number distinguishes a torn tail from damage: a record at or beyond the largest promise in the epoch
was never reported durable and may be cut; a missing record below it is an error. The header has its own checksum, so
that a scan can step over a record with damaged data and still read the promises after it.
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
"""Size of the header of a segment, in bytes."""

RECORD_HEADER_BYTES = 36
"""Size of the header of a record, in bytes."""

MAX_RECORD_BYTES = 1 << 30
"""Largest data of a record, in bytes. Chosen by hand, far above any frame; a greater length in a header is damage."""

MAX_SEGMENT_BYTES = SEGMENT_HEADER_BYTES + 2 * (RECORD_HEADER_BYTES + MAX_RECORD_BYTES)
"""Largest segment file, in bytes: a new segment is begun at MAX_RECORD_BYTES or before, so at most one record of that
size follows."""

_SEGMENT_MAGIC = b"PSPOOL1\n"
_RECORD_MAGIC = b"PSR1"
_SEAL_LENGTH = (1 << 32) - 1
_SEGMENT = struct.Struct("<8sQQ")
_RECORD = struct.Struct("<4sIQQ8s")
_CRC = struct.Struct("<I")
_CHECKSUM_BYTES = 8
_NAME = re.compile(r"(\d{10})-(\d{14})\.spool")


class Durability(StrEnum):
    """What a durable record survives: the death of the process (kill -9), or also that of the machine (power cut)."""

    PROCESS = "process"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The permanent name of one record in a spool.

    The epoch rises with each opening of the spool that writes. The sequence starts at 0 in each epoch and rises by one
    with each record.
    """

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one record, or the seal that ends a segment.

    `length` is that of the data in bytes, `promised` the number of promised records of the epoch, `checksum` that of
    the data.
    """

    length: int
    sequence: int
    promised: int
    checksum: bytes

    @property
    def is_seal(self) -> bool:
        return self.length == _SEAL_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The content of a segment file up to the first damaged byte.

    `offsets` holds the start of each whole record. `end` is the first byte after them and after the seal. `promised` is
    the largest promise in any header of the file, including headers behind `end`.
    """

    offsets: "array[int]"
    end: int
    sealed: bool
    promised: int


def segment_name(first: Position) -> str:
    """Return the file name of the segment whose first record is `first`."""
    return f"{first.epoch:010d}-{first.sequence:014d}.spool"


def first_position(name: str) -> Position | None:
    """Return the first position of a segment from its file name, or None for a file that is not a segment."""
    found = _NAME.fullmatch(name)
    return Position(int(found[1]), int(found[2])) if found else None


def segment_header(first: Position) -> bytes:
    """Return the header of the segment whose first record is `first`."""
    head = _SEGMENT.pack(_SEGMENT_MAGIC, first.epoch, first.sequence)
    return head + blake3(head).digest(length=_CHECKSUM_BYTES)


def data_checksum(parts: Iterable[Buffer]) -> bytes:
    """Return the checksum of a record's data, given in pieces."""
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=_CHECKSUM_BYTES)


def record_header(position: Position, length: int, promised: int, checksum: bytes) -> bytes:
    """Return the header of a record with `length` bytes of data."""
    head = _RECORD.pack(_RECORD_MAGIC, length, position.sequence, promised, checksum)
    return head + _CRC.pack(_crc(head, position.epoch))


def seal(end: Position, promised: int) -> bytes:
    """Return the seal that ends a segment whose next record would have been `end`."""
    return record_header(end, _SEAL_LENGTH, promised, bytes(_CHECKSUM_BYTES))


def read_header(data: Buffer, offset: int, epoch: int) -> Header | None:
    """Return the record header at `offset`, or None if there is none or if it is damaged."""
    end = offset + RECORD_HEADER_BYTES
    if end > len(data):
        return None
    head = bytes(data[offset : offset + _RECORD.size])
    magic, length, sequence, promised, checksum = _RECORD.unpack(head)
    # The checksum is seeded with the epoch: a header from an older file in the same disk blocks does not pass.
    if magic != _RECORD_MAGIC or _CRC.unpack_from(data, end - _CRC.size)[0] != _crc(head, epoch):
        return None
    return (
        Header(length, sequence, promised, checksum) if length <= MAX_RECORD_BYTES or length == _SEAL_LENGTH else None
    )


def is_whole(data: Buffer, header: Header) -> bool:
    """Return whether `data` has the length and checksum that the header names."""
    return len(data) == header.length and data_checksum((data,)) == header.checksum


def scan(data: bytes, first: Position) -> Scan:
    """Scan the data of a segment file for whole records. Never raises; the caller checks for missing records."""
    offsets = array("Q")
    sequence, promised, at = first.sequence, 0, SEGMENT_HEADER_BYTES
    # Without a valid header no record can be trusted, but promises behind it still tell that records are missing.
    if data[:SEGMENT_HEADER_BYTES] != segment_header(first):
        return Scan(offsets=offsets, end=0, sealed=False, promised=_promised_after(data, 0, first.epoch))
    view = memoryview(data)
    # A record counts only with its header, its sequence and its data intact; the first one that fails ends the scan.
    while (header := read_header(data, at, first.epoch)) is not None and header.sequence == sequence:
        promised = max(promised, header.promised)
        if header.is_seal:
            return Scan(offsets=offsets, end=at + RECORD_HEADER_BYTES, sealed=True, promised=promised)
        start = at + RECORD_HEADER_BYTES
        # The header is intact, so that the scan for promises can go on behind the damaged data.
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
