"""Coding of one span as one part of a payload, in the smallest of four modes. The first byte is the mode:

    0  unchanged    nothing follows; needs a base
    1  sparse       coded changes (sparse/span.py); needs a base, and elements of BF16, F16 or F32
    2  plain        one zstandard frame of the new bytes
    3  planes       one zstandard frame of their byte planes (columns.py)

A span with a tensor that the base lacks, or holds in another layout, uses one of the last two. With a base the last two
are tried only where they might win. Few changes are known to take far less than any full copy of trained weights, and a
sample of the span's blocks shows whether its content compresses unusually well.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from periplus.codec.columns import from_planes, planes
from periplus.codec.weights.entropy import kernels
from periplus.codec.weights.entropy.kernels import Bits, readonly
from periplus.codec.weights.layout import Span, StateLayout
from periplus.codec.weights.sparse import span as sparse
from periplus.codec.weights.staged import StagedSpan
from periplus.codec.zstd import compress, decompress_exactly
from periplus.errors import CorruptFrame
from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import WeightState

LEVEL = 1
"""zstandard level. Mantissa planes are noise that no level compresses, and exponent planes compress at level 1
already.
"""

SMALL_BYTES = 256 << 10
"""Spans up to this size are compressed whole to learn their compressed size; larger ones are sampled. Chosen by
hand.
"""

SAMPLE_BYTES = 16 << 10
"""Bytes of one sampled block. Chosen by hand."""
NUM_SAMPLES = 8
"""Number of sampled blocks of a span. Chosen by hand."""

SLACK_BYTES = 1 << 10
"""Bytes by which a part may exceed its span (plus 1/64): zstandard's framing of content that it cannot compress."""

Bytes = npt.NDArray[np.uint8]


class PartMode(IntEnum):
    """Coding mode of a part: its first byte."""

    UNCHANGED = 0
    SPARSE = 1
    PLAIN = 2
    PLANES = 3


def elements(layout: StateLayout, span: Span, state: WeightState) -> Bytes:
    """Return the bytes of a span in a state that has its tensors. It is a view if the span has one piece."""
    width = ELEMENT_BYTES[span.dtype]
    pieces = [
        state[layout.lines[piece.line].name].data[piece.start * width : piece.stop * width] for piece in span.pieces
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def encode_part(
    span: Span, base: Bytes | None, new: Bytes, positions: kernels.Positions | None = None
) -> tuple[bytes, int]:
    """Return the part of a span and the number of its elements that differ (all of them without a base).

    `positions` are the elements that differ, if they are known.
    """
    if base is None:
        return dense(span, new), span.num_elements
    # Integers have no number line, so that they are sent whole if anything in them changed.
    if span.dtype not in sparse.FLOATS:
        num_changed = _num_changed(span, base, new)
        return (dense(span, new) if num_changed else bytes([PartMode.UNCHANGED])), num_changed
    old = sparse.base_span(span, words(span, base))
    changes = sparse.find_changes(old, words(span, new), positions)
    return encode_changes(span, old, changes, new), len(changes.positions)


def encode_changes(span: Span, base: sparse.BaseSpan, changes: sparse.Changes, new: Bytes) -> bytes:
    """Return the part of a span whose changes are known already."""
    if not len(changes.positions):
        return bytes([PartMode.UNCHANGED])
    part = bytes([PartMode.SPARSE]) + sparse.encode_span(base, changes)
    # Try the dense modes only if the sparse part has more than 1/32 of the span, and a sample says that they might win.
    if len(part) * 32 > len(new) and _may_be_smaller(new, ELEMENT_BYTES[span.dtype], len(part)):
        return min(part, dense(span, new), key=len)
    return part


def dense(span: Span, new: Bytes) -> bytes:
    """Return the smaller of the modes plain and planes."""
    plain = bytes([PartMode.PLAIN]) + compress(new.tobytes(), LEVEL)
    width = ELEMENT_BYTES[span.dtype]
    if width == 1:
        return plain
    return min(plain, bytes([PartMode.PLANES]) + compress(planes(new, width), LEVEL), key=len)


def decode_part(layout: StateLayout, span: Span, base: Bytes | None, part: bytes) -> StagedSpan:
    """Decode a part into the new elements of its span, not written yet.

    `base` is None if the base lacks a tensor of it.

    Raises: CorruptFrame.
    """
    # zstandard adds little to content that does not compress; what is longer is not an encoder's work.
    if len(part) > span.num_bytes + span.num_bytes // 64 + SLACK_BYTES:
        raise CorruptFrame(f"a part of {len(part)} bytes for a span of {span.num_bytes}; no encoder writes so many")
    if not part or part[0] not in tuple(PartMode):
        raise CorruptFrame(f"a part of {len(part)} bytes begins with {part[:1].hex()}; expected 00 to 03")
    mode, body = PartMode(part[0]), memoryview(part)[1:]
    if mode in (PartMode.UNCHANGED, PartMode.SPARSE) and base is None:
        raise CorruptFrame(f"a part that needs a base ({mode.name}), for a span that has none")
    if mode is PartMode.UNCHANGED:
        if body:
            raise CorruptFrame(f"{len(body)} bytes follow an unchanged span; expected none")
        return StagedSpan(layout=layout, span=span, positions=np.zeros(0, np.uint32), values=_none(span))
    if mode is PartMode.SPARSE and base is not None:
        if span.dtype not in sparse.FLOATS:
            raise CorruptFrame(f"a sparse span of {span.dtype}, which has no number line")
        positions, values = sparse.decode_span(sparse.base_span(span, words(span, base)), body)
        return StagedSpan(layout=layout, span=span, positions=positions, values=values)
    # Dense modes replace the whole span, so that its old elements do not matter.
    content = np.frombuffer(decompress_exactly(body, span.num_bytes), np.uint8)
    flat = content if mode is PartMode.PLAIN else from_planes(content.data, ELEMENT_BYTES[span.dtype])
    return StagedSpan(layout=layout, span=span, positions=None, values=words(span, flat))


def words(span: Span, data: Bytes) -> Bits:
    """Return bytes as unsigned integers of the element's width."""
    return readonly(data.view(f"<u{ELEMENT_BYTES[span.dtype]}"))


def _none(span: Span) -> Bits:
    return np.zeros(0, f"<u{ELEMENT_BYTES[span.dtype]}")


def _num_changed(span: Span, base: Bytes, new: Bytes) -> int:
    return int(np.count_nonzero(words(span, base) != words(span, new)))


def _may_be_smaller(new: Bytes, width: int, sparse_bytes: int) -> bool:
    """Return whether a dense mode might take fewer than `sparse_bytes`, by a sample with a margin of two."""
    if len(new) <= SMALL_BYTES or sparse_bytes * 4 > len(new):
        return True
    starts = np.linspace(0, len(new) - SAMPLE_BYTES, NUM_SAMPLES).astype(np.int64) // width * width
    blocks = np.concatenate([new[start : start + SAMPLE_BYTES] for start in starts])
    smaller = min(len(compress(blocks.tobytes(), LEVEL)), len(compress(planes(blocks, width), LEVEL)))
    return smaller * len(new) // len(blocks) < 2 * sparse_bytes
