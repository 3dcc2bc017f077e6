"""The safetensors format without its data: dtypes, and the bytes that come before the tensors' bytes in a file. Pure.

    head    u64 header length, little-endian; the header, a JSON object that maps the name of each tensor to its dtype,
            shape and offsets, padded with spaces to 8 bytes
    data    the tensors' bytes, one after another, without a gap

Source: huggingface.co/docs/safetensors. (The safetensors package is not used, because its raw interface changed between
releases.) Dtypes below one byte are refused.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping
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


def layout_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor. Raises: ValueError for an unknown dtype or an impossible shape."""
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(ELEMENT_BYTES)}")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise ValueError(f"shape {shape!r} is not at most {MAX_DIMENSIONS} integers of 0 to 2^63 - 1")
    return ELEMENT_BYTES[dtype] * math.prod(shape)


def safetensors_order(lines: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Sort names, dtypes and shapes as the safetensors package does: wide elements first, then by name.

    So every tensor is aligned.
    """
    return sorted(lines, key=lambda line: (-ELEMENT_BYTES[line[1]], line[0]))


def safetensors_head(lines: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
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
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
