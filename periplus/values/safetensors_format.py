"""The safetensors format without its data: dtypes, and the bytes that come before the tensors' bytes in a file. Pure.

    head    u64 header length, little-endian; the header, a JSON object that maps the name of each tensor to its dtype,
            shape and offsets, padded with spaces to 8 bytes
    data    the tensors' bytes, one after another, without a gap

A reader asks `head_bytes` how much to read, and gives that to `parse_head`, which checks all of it against the length
of the file. So whoever needs only names, dtypes and shapes reads no data.

Source: huggingface.co/docs/safetensors. (The safetensors package is not used, because its raw interface changed between
releases.) Dtypes below one byte are refused.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ELEMENT_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
"""Bytes of an element of each dtype, by its safetensors name."""

MAX_HEADER_BYTES = 100 << 20
"""Largest header of a file, in bytes; the safetensors package has the same limit."""

MAX_DIMENSIONS = 64
"""Largest number of dimensions of a tensor; it is numpy's limit."""

METADATA = "__metadata__"
"""The one key of a header that names no tensor."""


LENGTH_BYTES = 8
"""Bytes of the header's length, with which a file begins."""

SafetensorsLine = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderEntry:
    """One tensor as the header lists it. Its bytes are [start, end) of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHead:
    """The metadata of a file, and its tensors in the order of their bytes, which cover the data without a gap."""

    metadata: Mapping[str, str]
    entries: tuple[HeaderEntry, ...]


def layout_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor. Raises: ValueError for an unknown dtype or an impossible shape."""
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(ELEMENT_BYTES)}")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise ValueError(f"shape {shape!r} is not at most {MAX_DIMENSIONS} integers of 0 to 2^63 - 1")
    return ELEMENT_BYTES[dtype] * math.prod(shape)


def safetensors_order(lines: Iterable[SafetensorsLine]) -> list[SafetensorsLine]:
    """Sort names, dtypes and shapes as the safetensors package does: wide elements first, then by name.

    So every tensor is aligned.
    """
    return sorted(lines, key=lambda line: (-ELEMENT_BYTES[line[1]], line[0]))


def safetensors_head(lines: Iterable[SafetensorsLine], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes that come before the data in a file with these tensors in this order.

    Raises: ValueError for the one name that the format reserves.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape in lines:
        if name == METADATA:
            raise ValueError(f"no tensor can be named {METADATA!r} in a safetensors file")
        end = offset + layout_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # Spaces at the end of JSON have no meaning, and make the data begin at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def head_bytes(start: bytes, file_bytes: int) -> int:
    """Return the number of bytes that come before the data, given a file's first LENGTH_BYTES and its length in bytes.

    Raises: ValueError if the header would be larger than MAX_HEADER_BYTES or the file.
    """
    (header_bytes,) = struct.unpack("<Q", start.ljust(LENGTH_BYTES, b"\xff"))
    if header_bytes > min(MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES):
        raise ValueError(f"its header would have {header_bytes} bytes, the file has {file_bytes}")
    return LENGTH_BYTES + int(header_bytes)


def parse_head(head: bytes, file_bytes: int) -> SafetensorsHead:
    """Parse and check all bytes that come before the data of a file of `file_bytes` bytes.

    Raises: ValueError if it is no JSON of the format, names a tensor twice, or has an unknown dtype or an impossible
    shape; or if the tensors' bytes overlap, leave a gap, or are not exactly those of the file.
    """
    try:
        header = json.loads(head[LENGTH_BYTES:], object_pairs_hook=_unique)
        metadata = header.pop(METADATA, None) or {}
        if not all(type(text) is str for pair in metadata.items() for text in pair):
            raise ValueError(f"{METADATA} holds more than texts")
        entries = _entries(header, file_bytes - len(head))
    # A header is any JSON of a stranger, so that every access may fail.
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return SafetensorsHead(metadata=metadata, entries=entries)


def _entries(header: Mapping[str, Any], data_bytes: int) -> tuple[HeaderEntry, ...]:
    entries, covered_bytes = [], 0
    # In the order of their data each tensor must begin where the one before it ends.
    for name, found in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = found["data_offsets"]
        if type(start) is not int or type(end) is not int or start != covered_bytes or end < start:
            raise ValueError(f"tensor {name!r} lies at {start}-{end}, expected to begin at {covered_bytes}")
        if end > data_bytes:
            raise ValueError(
                f"the file is cut short: tensor {name!r} ends at byte {end} of the data, and the file has {data_bytes}"
            )
        dtype, shape = found["dtype"], tuple(found["shape"])
        if (expected_bytes := layout_bytes(dtype, shape)) != end - start:
            raise ValueError(f"tensor {name!r}, {dtype} {shape}, needs {expected_bytes} bytes, not {end - start}")
        # A name must be valid UTF-8: JSON can also express halves of surrogate pairs.
        entries.append(HeaderEntry(name=name.encode().decode(), dtype=dtype, shape=shape, start=start, end=end))
        covered_bytes = end
    if covered_bytes != data_bytes:
        raise ValueError(f"{data_bytes - covered_bytes} bytes belong to no tensor")
    return tuple(entries)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found
