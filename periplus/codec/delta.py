"""States as payloads: what the trainer publishes and readers apply. The seam behind which better codecs will stand.

A `StateCodec` turns (base, new) into a payload and (base, payload) back into exactly `new`, bit for bit, for any dtype
and shape. Both here store, after one another and little-endian,

    u32  bytes of the layout frame
    layout frame: zstandard of UTF-8 JSON, [[name, dtype, [dimensions], changed], ...] sorted by name
    data frame: zstandard of the changed tensors' bytes, tensors of 1-byte elements first, then 2, 4, 8; within a
         width in the order of names, joined and cut into byte planes (columns.py)

`PlanesZstd` ignores the base and stores every tensor (changed is always true). `XorZstd` needs a base with the same
names, dtypes and shapes, and stores the XOR of bit patterns of those tensors that differ: the high planes of a small
step are nearly all zero, and what did not change costs its line of layout. It cannot tell whether the reader's base has
the right *contents*: the policy in the opening says which base is meant, and the state digest in the closing proves the
outcome.

Decoding allocates at most the layout, `max_content_bytes` for the data, and as much again for the result. Unchanged
tensors of a decoded state share memory with the base: states are values, nobody writes into them.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from periplus.codec.columns import from_planes, planes
from periplus.codec.frame import CodecId
from periplus.codec.zstd import compress, decompress
from periplus.errors import CorruptFrame, WrongBase
from periplus.state import ELEMENT_BYTES, State, Tensor, content_bytes, layout_bytes

LEVEL = 1
"""Mantissa planes are noise that no level compresses, and exponent planes are found by level 1."""

MAX_LAYOUT_BYTES = 64 << 20
"""Of JSON: a mixture-of-experts checkpoint of 100,000 tensors needs a tenth."""

_LAYOUT_FRAME_BYTES = struct.Struct("<I")


class StateCodec(Protocol):
    """One way to write a state, with or without a base."""

    @property
    def codec_id(self) -> CodecId: ...

    def encode(self, base: State | None, new: State) -> bytes:
        """A payload from which `decode` with the same base gives `new`. Raises: WrongBase."""
        ...

    def decode(self, base: State | None, payload: bytes, *, max_content_bytes: int) -> State:
        """The state; `max_content_bytes` bounds the bytes of its tensors. Raises: CorruptFrame, WrongBase."""
        ...


class _Line(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    changed: bool

    @property
    def data_bytes(self) -> int:
        return layout_bytes(self.dtype, self.shape) if self.changed else 0


@dataclass(frozen=True, slots=True)
class PlanesZstd:
    """A full state: needs no base, and reads none."""

    codec_id: CodecId = CodecId.STATE_PLANES_ZSTD

    def encode(self, base: State | None, new: State) -> bytes:
        lines = [_Line(name, tensor.dtype, tensor.shape, True) for name, tensor in sorted(new.items())]
        return _write(lines, {name: tensor.data for name, tensor in new.items()})

    def decode(self, base: State | None, payload: bytes, *, max_content_bytes: int) -> State:
        lines, data = _read(payload, max_content_bytes)
        if missing := [line.name for line in lines if not line.changed]:
            raise CorruptFrame(f"a full state lacks the data of {missing[:3]}")
        return {line.name: Tensor(line.dtype, line.shape, data[line.name]) for line in lines}


@dataclass(frozen=True, slots=True)
class XorZstd:
    """The difference to a base that has the same layout."""

    codec_id: CodecId = CodecId.STATE_XOR_ZSTD

    def encode(self, base: State | None, new: State) -> bytes:
        old = _same_layout(base, ((name, tensor.dtype, tensor.shape) for name, tensor in new.items()))
        changed = {name: not np.array_equal(tensor.data, old[name].data) for name, tensor in new.items()}
        lines = [_Line(name, tensor.dtype, tensor.shape, changed[name]) for name, tensor in sorted(new.items())]
        return _write(lines, {name: new[name].data ^ old[name].data for name in new if changed[name]})

    def decode(self, base: State | None, payload: bytes, *, max_content_bytes: int) -> State:
        lines, data = _read(payload, max_content_bytes)
        old = _same_layout(base, (line[:3] for line in lines))
        return {
            line.name: Tensor(line.dtype, line.shape, data[line.name] ^ old[line.name].data)
            if line.changed
            else old[line.name]
            for line in lines
        }


def choose(base: State | None, new: State) -> tuple[CodecId, bytes]:
    """The smaller of a delta and a full state, with its codec; a full state without a usable base.

    A delta below half of the content is taken unseen: no full state of trained weights is that small, and encoding it
    to learn so would double the work.
    """
    full = PlanesZstd()
    try:
        delta = XorZstd().encode(base, new)
    except WrongBase:
        return full.codec_id, full.encode(None, new)
    if 2 * len(delta) < content_bytes(new):
        return CodecId.STATE_XOR_ZSTD, delta
    payload = full.encode(None, new)
    return (full.codec_id, payload) if len(payload) < len(delta) else (CodecId.STATE_XOR_ZSTD, delta)


@dataclass(frozen=True, slots=True)
class Change:
    """How much of a state differs from its base, by bit pattern."""

    num_changed: int
    num_elements: int

    @property
    def density(self) -> float:
        """Changed elements over all elements; 0 for an empty state."""
        return self.num_changed / self.num_elements if self.num_elements else 0.0


def change(base: State, new: State) -> Change:
    """Count changed elements. Raises: WrongBase."""
    old = _same_layout(base, ((name, tensor.dtype, tensor.shape) for name, tensor in new.items()))
    num_changed = sum(_num_changed(old[name], tensor) for name, tensor in new.items())
    return Change(num_changed, sum(tensor.num_elements for tensor in new.values()))


def _num_changed(old: Tensor, new: Tensor) -> int:
    element_bytes = ELEMENT_BYTES[new.dtype]
    differs = (old.data != new.data).reshape(-1, element_bytes)
    return int(np.count_nonzero(differs.any(axis=1)))


def _same_layout(base: State | None, wanted: Iterable[tuple[str, str, tuple[int, ...]]]) -> State:
    if base is None:
        raise WrongBase("a delta needs a base state, and there is none; fetch an anchor")
    names = set()
    for name, dtype, shape in wanted:
        names.add(name)
        if name not in base:
            raise WrongBase(f"the base has no tensor {name!r}; fetch an anchor")
        if (base[name].dtype, base[name].shape) != (dtype, shape):
            held = f"{base[name].dtype} {base[name].shape}"
            raise WrongBase(f"tensor {name!r} is {held} in the base, the delta is of {dtype} {shape}; fetch an anchor")
    if extra := base.keys() - names:
        raise WrongBase(f"the base has {sorted(extra)[:3]}, which the new state lacks; fetch an anchor")
    return base


def _write(lines: Sequence[_Line], data: dict[str, npt.NDArray[np.uint8]]) -> bytes:
    layout = compress(json.dumps(lines, separators=(",", ":"), ensure_ascii=False).encode(), LEVEL)
    groups = (
        planes(np.concatenate([data[line.name] for line in group]), element_bytes)
        for element_bytes, group in _groups(lines)
    )
    return _LAYOUT_FRAME_BYTES.pack(len(layout)) + layout + compress(b"".join(groups), LEVEL)


def _read(payload: bytes, max_content_bytes: int) -> tuple[list[_Line], dict[str, npt.NDArray[np.uint8]]]:
    view = memoryview(payload)
    (layout_frame_bytes,) = _LAYOUT_FRAME_BYTES.unpack(bytes(view[:4]).ljust(4, b"\xff"))
    if layout_frame_bytes > len(view) - 4:
        raise CorruptFrame(f"state payload of {len(view)} bytes declares a layout of {layout_frame_bytes} bytes")
    data_at = 4 + layout_frame_bytes
    lines = _lines(decompress(view[4:data_at], max_content_bytes=MAX_LAYOUT_BYTES))
    total_bytes = sum(layout_bytes(line.dtype, line.shape) for line in lines)
    if total_bytes > max_content_bytes:
        raise CorruptFrame(f"the state's layout declares {total_bytes} bytes of tensors; at most {max_content_bytes}")
    data_bytes = sum(line.data_bytes for line in lines)
    content = memoryview(decompress(view[data_at:], max_content_bytes=data_bytes))
    if len(content) != data_bytes:
        raise CorruptFrame(f"state has {len(content)} bytes of data, its layout needs {data_bytes}")
    data: dict[str, npt.NDArray[np.uint8]] = {}
    at = 0
    for element_bytes, group in _groups(lines):
        group_bytes = sum(line.data_bytes for line in group)
        flat = from_planes(content[at : at + group_bytes], element_bytes)
        at += group_bytes
        data |= dict(zip((line.name for line in group), _split(flat, group), strict=True))
    return lines, data


def _groups(lines: Sequence[_Line]) -> list[tuple[int, list[_Line]]]:
    changed = [line for line in lines if line.changed]
    widths = sorted({ELEMENT_BYTES[line.dtype] for line in changed})
    return [(width, [line for line in changed if ELEMENT_BYTES[line.dtype] == width]) for width in widths]


def _split(flat: npt.NDArray[np.uint8], group: Sequence[_Line]) -> list[npt.NDArray[np.uint8]]:
    ends = np.cumsum([line.data_bytes for line in group])
    return np.split(flat, ends[:-1])


def _lines(layout: bytes) -> list[_Line]:
    try:
        lines = [_line(*entry) for entry in json.loads(layout)]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFrame(f"the state's layout is not readable: {error}") from error
    names = [line.name for line in lines]
    if names != sorted(set(names)):
        raise CorruptFrame(f"names in the state's layout repeat or are not sorted: {names[:3]}...")
    return lines


def _line(name: Any, dtype: Any, shape: Any, changed: Any) -> _Line:
    if type(name) is not str or type(changed) is not bool or type(shape) is not list:
        raise ValueError(f"no line of a layout: {name!r}, {dtype!r}, {shape!r}, {changed!r}")
    line = _Line(name, dtype, tuple(shape), changed)
    name.encode()
    layout_bytes(line.dtype, line.shape)
    return line
