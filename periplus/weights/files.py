"""File format of a delta: one payload of `periplus.codec.weights`, with the digests that prove it. It is little-endian:

    magic   8 bytes: 0x89, "PPW", CR, LF, 0x1A, LF (a transfer that changes line ends or clears a bit is seen at once)
    head    u32 length, then one zstandard frame of JSON:
            {"schema": "periplus.delta/1", "codec": 5, "base_digest": hex, "result_digest": hex, "num_parts": n,
             "layout": [[name, dtype, [dimensions]], ...] of the result, sorted by name}
    parts   num_parts times: u32 length, 32 bytes BLAKE3 of the part, the part
    tail    u32 length, then one zstandard frame of JSON:
            {"num_elements", "num_changed", "payload_bytes", "floors": {...} or null}
    end     32 bytes BLAKE3 of everything before; nothing follows

Digests of states are those of `periplus.values.digest`. They stand before the parts, so that a reader with another base
is told at once. What is known only after encoding follows the parts. Reading takes one pass with one part in memory, so
a pipe will do.

The hashes find damage. They do not prove who wrote the file: whoever changes a part can hash it again, and only a
result digest from another source reveals that.

Caps are checked before anything of that size is read: a head or tail has at most MAX_FRAME_BYTES and decompresses to at
most MAX_JSON_BYTES, a part has at most MAX_PART_BYTES, and there are at most MAX_PARTS. Whatever breaks the format
raises CorruptFrame.
"""

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from periplus.codec.frame import CodecId
from periplus.codec.weights.layout import MAX_SPAN_BYTES, StateLayout
from periplus.codec.zstd import compress, decompress
from periplus.errors import CorruptFrame, NotFound, StorageError, UnknownCodec
from periplus.values.digest import DIGEST_BYTES
from periplus.weights.output import disk_errors

MAGIC = b"\x89PPW\r\n\x1a\n"
"""First bytes of a delta's file; the module's docstring says why these."""
SCHEMA = "periplus.delta/1"
"""Schema of the head."""
MAX_FRAME_BYTES = 64 << 20
"""Largest compressed head or tail."""
MAX_JSON_BYTES = 64 << 20
"""Largest decompressed head or tail, ten times what a mixture-of-experts checkpoint of 100,000 tensors needs."""

MAX_PART_BYTES = MAX_SPAN_BYTES + (1 << 20)
"""Largest part. A part is at most slightly larger than the span that it describes."""

MAX_PARTS = 1 << 24
"""Most parts of a file."""
_LEVEL = 9
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """What is known of a delta before encoding."""

    base_digest: bytes
    result_digest: bytes
    num_parts: int
    layout: StateLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorBits:
    """Entropy bounds in bits that a file keeps: a part of periplus.codec.weights.floors.Floors."""

    num_changed: int
    iid_bits: float
    conditional_bits: float
    conditional_with_tables_bits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTail:
    """Figures that the writer counted. They are claims, and no reader's safety depends on them."""

    num_elements: int
    num_changed: int
    payload_bytes: int
    floors: FloorBits | None


class DeltaWriter:
    """Writes one file in order: head, parts, tail."""

    def __init__(self, file: BinaryIO, head: FileHead) -> None:
        self._file = file
        self._hasher = blake3()
        self._parts_left = head.num_parts
        self.file_bytes = 0
        self.payload_bytes = 0
        self._write(MAGIC)
        self._write_frame(_head_tree(head))

    def part(self, part: bytes) -> None:
        """Write the next part with its length and hash."""
        assert self._parts_left > 0
        assert len(part) <= MAX_PART_BYTES
        self._parts_left -= 1
        self.payload_bytes += len(part)
        # Length and hash come before the bytes, so that a reader can check each part as it comes.
        self._write(_U32.pack(len(part)) + blake3(part).digest())
        self._write(part)

    def finish(self, tail: FileTail) -> None:
        """Write the tail and the hash of the whole file, after all parts."""
        assert not self._parts_left
        self._write_frame(asdict(tail))
        self._write(self._hasher.digest())

    def _write_frame(self, tree: dict[str, Any]) -> None:
        text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
        frame = compress(text, _LEVEL)
        if len(text) > MAX_JSON_BYTES or len(frame) > MAX_FRAME_BYTES:
            raise CorruptFrame(f"the layout takes {len(text)} bytes of JSON; a delta's file holds {MAX_JSON_BYTES}")
        self._write(_U32.pack(len(frame)) + frame)

    def _write(self, data: bytes) -> None:
        self._hasher.update(data)
        self._file.write(data)
        self.file_bytes += len(data)


@contextmanager
def open_delta(path: Path) -> Iterator["DeltaReader"]:
    """Open a delta's file and read its head. Raises: NotFound, and as DeltaReader."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist; give a file that `periplus weights diff` has made") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield DeltaReader(file, path)


class DeltaReader:
    """Reads one file from its beginning: `head` at once, then `parts()` once, after which `tail` is available.

    Raises: CorruptFrame, UnknownCodec, StorageError.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.path = path
        self._file = file
        self._hasher = blake3()
        self.file_bytes = 0
        self._tail: FileTail | None = None
        if (magic := self._read(len(MAGIC), "its first bytes")) != MAGIC:
            raise CorruptFrame(f"{path} is not a delta's file: it begins with {magic.hex()}, expected {MAGIC.hex()}")
        self.head = self._checked(_head, self._read_frame("head"), "head")

    @property
    def tail(self) -> FileTail:
        """The tail, available after the last part."""
        assert self._tail is not None, "parts() comes first"
        return self._tail

    def parts(self) -> Iterator[bytes]:
        """Yield every part in order, each after its hash was checked. The last comes when the whole file is proven."""
        payload_bytes, last = 0, b""
        for index in range(self.head.num_parts):
            # Hold one part back, so that the last leaves only after the tail and the final hash were checked.
            if index:
                yield last
            length = self._length(MAX_PART_BYTES, f"part {index}")
            digest = self._read(DIGEST_BYTES, f"the hash of part {index}")
            last = self._read(length, f"part {index}")
            payload_bytes += length
            if blake3(last).digest() != digest:
                raise CorruptFrame(f"{self.path}: part {index} is damaged, its hash differs; copy the file again")
        self._tail = self._checked(_tail, self._read_frame("tail"), "tail")
        self._end()
        if self._tail.payload_bytes != payload_bytes:
            raise CorruptFrame(f"{self.path}: {payload_bytes} bytes of parts, its tail says {self._tail.payload_bytes}")
        yield last

    def _end(self) -> None:
        expected = self._hasher.digest()
        if self._read(DIGEST_BYTES, "its last hash") != expected:
            raise CorruptFrame(f"{self.path} is damaged: the hash of the whole file differs; copy it again")
        if self._file.read(1):
            raise CorruptFrame(f"{self.path} goes on behind its end at byte {self.file_bytes}; copy it again")

    def _read_frame(self, what: str) -> Any:
        frame = self._read(self._length(MAX_FRAME_BYTES, f"the {what}"), f"the {what}")
        try:
            return json.loads(decompress(frame, max_content_bytes=MAX_JSON_BYTES), parse_constant=_no_constant)
        except (CorruptFrame, ValueError, RecursionError) as error:
            raise CorruptFrame(f"{self.path}: its {what} is not readable: {error}; copy it again") from error

    def _checked(self, parse: Any, tree: Any, what: str) -> Any:
        try:
            return parse(tree)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise CorruptFrame(f"{self.path}: its {what} is not one of {SCHEMA}: {error!r}") from error

    def _length(self, most: int, what: str) -> int:
        (length,) = _U32.unpack(self._read(_U32.size, f"the length of {what}"))
        if length > most:
            raise CorruptFrame(f"{self.path}: {what} would have {length} bytes, at most {most}; copy the file again")
        return int(length)

    def _read(self, num_bytes: int, what: str) -> bytes:
        with disk_errors(f"cannot read {self.path}"):
            data = self._file.read(num_bytes)
        if len(data) < num_bytes:
            at = self.file_bytes + len(data)
            raise CorruptFrame(f"{self.path} ends at byte {at}, within {what}; copy it again, it is cut short")
        # The hash over the whole file is checked at the end.
        self._hasher.update(data)
        self.file_bytes += num_bytes
        return data


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _head_tree(head: FileHead) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "codec": int(CodecId.WEIGHTS),
        "base_digest": head.base_digest.hex(),
        "result_digest": head.result_digest.hex(),
        "num_parts": head.num_parts,
        "layout": head.layout.to_json(),
    }


def _head(tree: Any) -> FileHead:
    if tree["schema"] != SCHEMA:
        raise ValueError(f"schema {tree['schema']!r}")
    # An unknown codec is no damage: a newer build can read the file.
    if tree["codec"] != int(CodecId.WEIGHTS):
        raise UnknownCodec(f"codec {tree['codec']!r}; this build reads {int(CodecId.WEIGHTS)}: install a newer one")
    num_parts = _count(tree, "num_parts")
    if not 1 <= num_parts <= MAX_PARTS:
        raise ValueError(f"{num_parts} parts")
    return FileHead(
        base_digest=_digest(tree, "base_digest"),
        result_digest=_digest(tree, "result_digest"),
        num_parts=num_parts,
        layout=StateLayout.from_json(tree["layout"]),
    )


def _tail(tree: Any) -> FileTail:
    floors = tree["floors"]
    num_elements, num_changed = _count(tree, "num_elements"), _count(tree, "num_changed")
    if num_changed > num_elements:
        raise ValueError(f"{num_changed} of {num_elements} elements changed")
    return FileTail(
        num_elements=num_elements,
        num_changed=num_changed,
        payload_bytes=_count(tree, "payload_bytes"),
        floors=None if floors is None else _floors(floors),
    )


def _floors(tree: Any) -> FloorBits:
    return FloorBits(
        num_changed=_count(tree, "num_changed"),
        iid_bits=_bits(tree, "iid_bits"),
        conditional_bits=_bits(tree, "conditional_bits"),
        conditional_with_tables_bits=_bits(tree, "conditional_with_tables_bits"),
    )


def _digest(tree: Any, key: str) -> bytes:
    digest = bytes.fromhex(tree[key])
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"{key} of {len(digest)} bytes")
    return digest


def _count(tree: Any, key: str) -> int:
    value = tree[key]
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{key} is {value!r}")
    return value


def _bits(tree: Any, key: str) -> float:
    value = tree[key]
    if type(value) not in (int, float) or not isfinite(value) or value < 0:
        raise ValueError(f"{key} is {value!r}")
    return float(value)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number here")
