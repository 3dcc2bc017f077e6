"""Envelope with a checksum for payloads that are stored or relayed by programs that do not decode them.

    bytes  0-1   magic "PF"
           2-3   codec id            u16 little-endian
           4-7   payload bytes       u32 little-endian
           8-15  first 8 bytes of BLAKE3(bytes 0-7 || payload)
           16-   payload

The checksum covers the header as well, so that no single damaged byte goes unnoticed. It is BLAKE3 and not a CRC,
because BLAKE3 is a dependency already and as fast as zlib's CRC-32 from Python. With 64 bits, the chance that one of a
billion damaged frames passes is below 1e-9; with 32 bits, about 0.2 of them would be expected to pass. The checksum
finds accidents, not forgeries. A frame's size is checked before anything is allocated or hashed. `read` walks through a
file of frames and reports an incomplete last frame as such.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from blake3 import blake3

from periplus.errors import CorruptFrame, UnknownCodec

HEADER_BYTES = 16
"""Bytes of a frame before its payload."""
_MAGIC = b"PF"
_HEAD = struct.Struct("<2sHI")
_CHECKSUM_BYTES = 8


class CodecId(IntEnum):
    """Codec ids of the wire. They mirror the enum Codec of common.proto, value for value."""

    TRAJECTORY_COLUMNS_ZSTD = 1
    FILES_ZSTD = 4
    WEIGHTS = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """An opaque payload and the id of the codec that decodes it."""

    codec: CodecId
    payload: bytes


def codec_id(value: int) -> CodecId:
    """Convert a number from the wire to a CodecId. Raises: UnknownCodec."""
    try:
        return CodecId(value)
    except ValueError as error:
        known = ", ".join(f"{c.value} ({c.name})" for c in CodecId)
        raise UnknownCodec(f"codec {value} is unknown to this build, which has {known}; is the peer newer?") from error


def pack(frame: Frame) -> bytes:
    """Return the bytes of a frame: header, checksum and payload."""
    head = _HEAD.pack(_MAGIC, frame.codec, len(frame.payload))
    return head + _checksum(head, frame.payload) + frame.payload


def unpack(data: bytes, *, max_payload_bytes: int) -> Frame:
    """Return the one frame that `data` consists of. Raises: CorruptFrame, UnknownCodec."""
    found = read(data, 0, max_payload_bytes=max_payload_bytes)
    if found is None:
        raise CorruptFrame(f"frame is truncated after {len(data)} bytes; send it again")
    frame, end = found
    if end != len(data):
        raise CorruptFrame(f"{len(data) - end} bytes follow a frame of {end} bytes; expected none")
    return frame


def read(data: bytes | memoryview, offset: int, *, max_payload_bytes: int) -> tuple[Frame, int] | None:
    """Return the frame at `offset` and the offset of the next one, or None if the data ends within the frame.

    Raises: CorruptFrame, UnknownCodec.
    """
    if len(data) - offset < HEADER_BYTES:
        return None
    head = bytes(data[offset : offset + _HEAD.size])
    magic, codec, payload_bytes = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise CorruptFrame(f"no frame at byte {offset}: it begins with {magic!r}, not {_MAGIC!r}")
    # The length is checked before the payload is waited for: a hostile one would make the caller collect bytes for
    # ever.
    if payload_bytes > max_payload_bytes:
        raise CorruptFrame(
            f"frame at byte {offset} declares {payload_bytes} bytes of payload; at most {max_payload_bytes}"
        )
    start = offset + HEADER_BYTES
    if len(data) - start < payload_bytes:
        return None
    payload = bytes(data[start : start + payload_bytes])
    if bytes(data[offset + _HEAD.size : start]) != _checksum(head, payload):
        raise CorruptFrame(f"frame at byte {offset} ({payload_bytes} bytes) has the wrong checksum; send it again")
    return Frame(codec_id(codec), payload), start + payload_bytes


def _checksum(head: bytes, payload: bytes) -> bytes:
    return blake3(head).update(payload).digest(length=_CHECKSUM_BYTES)
