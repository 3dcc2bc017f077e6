"""Part 0 of a weight payload: the layout of the described state, and its relation to a base.

The format is little-endian:

    u8   16 x format, which is 1, + 8 if spans are of SPAN_BYTES, + relation to the base: 0 no base is needed, 1 same
         layout, 2 another layout
    u8   log2 of the span's bytes; present only if it is not that of SPAN_BYTES
    u8   with a base: the first byte of BLAKE3 of its layout (as JSON, below)
    if the layout is not the base's: one zstandard frame of the layout

A layout as JSON is UTF-8 without spaces: [[name, dtype, [dimensions]], ...] sorted by name. Names that are not Unicode
have no UTF-8 and are refused by writer and reader.

The digest tells a wrong base from a damaged payload, as far as layouts differ, and misses one in 256. One byte must do:
a small model's delta has 400 bytes, so eight bytes of digest would be a fiftieth of it. Whether the *content* of the
base is the right one is not checked here: the reader of a publication compares the digest of the new state with the
signed one.

`read` allocates at most MAX_LAYOUT_BYTES. It checks the sizes of all tensors and the number of spans against the
caller's limits, so that the caller may allocate them afterwards.
"""

import json
from dataclasses import dataclass
from enum import IntEnum

from blake3 import blake3

from periplus.codec.weights.layout import MAX_SPAN_BYTES, MIN_SPAN_BYTES, SPAN_BYTES, StateLayout
from periplus.codec.zstd import compress, decompress
from periplus.errors import CorruptFrame, WrongBase

FORMAT = 1
"""Version of the payload format."""
MAX_LAYOUT_BYTES = 16 << 20
"""Largest layout in bytes of JSON. A mixture-of-experts checkpoint of 100,000 tensors needs half of it."""

_LEVEL = 9
"""zstandard level of the layout. Chosen by hand."""
_DIGEST_BYTES = 1
"""Bytes of the base's digest that the head carries; the module's docstring says why so few."""
_USUAL_SPANS = 8
"""Bit of the first byte that says that spans are of SPAN_BYTES."""


class Relation(IntEnum):
    """Relation of the new state to the base."""

    NO_BASE = 0
    SAME_LAYOUT = 1
    OTHER_LAYOUT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Content of part 0.

    `with_base` says for each tensor of the layout whether the base has one of the same name, dtype and shape.
    """

    layout: StateLayout
    span_bytes: int
    with_base: tuple[bool, ...]


def write(base: StateLayout | None, head: Head) -> bytes:
    """Return part 0. Raises: ValueError for a span size that is not a power of two."""
    exponent = head.span_bytes.bit_length() - 1
    if head.span_bytes != 1 << exponent:
        raise ValueError(f"spans of {head.span_bytes} bytes; take a power of two")
    relation = _relation(base, head.layout)
    usual = head.span_bytes == SPAN_BYTES
    fixed = bytes([16 * FORMAT + _USUAL_SPANS + relation]) if usual else bytes([16 * FORMAT + relation, exponent])
    digest = _digest(base) if base is not None else b""
    return fixed + digest + (b"" if relation is Relation.SAME_LAYOUT else compress(_json(head.layout), _LEVEL))


def read(part: bytes, base: StateLayout | None, *, max_content_bytes: int, max_spans: int) -> Head:
    """Invert `write`.

    Raises: CorruptFrame, also if a cap is exceeded; WrongBase if `base` is missing or of another layout.
    """
    if len(part) < 2 or part[0] >> 4 != FORMAT or part[0] & 7 not in tuple(Relation):
        raise CorruptFrame(f"a head of {len(part)} bytes that begins with {part[:2].hex()}; this build reads format 1")
    relation, at, span_bytes = Relation(part[0] & 7), 1, SPAN_BYTES
    # A hostile exponent is capped, so that the shift stays small; the check below then refuses it.
    if not part[0] & _USUAL_SPANS:
        at, span_bytes = 2, 1 << min(part[1], 63)
    if not MIN_SPAN_BYTES <= span_bytes <= MAX_SPAN_BYTES:
        raise CorruptFrame(f"spans of 2^{part[1]} bytes; expected {MIN_SPAN_BYTES}-{MAX_SPAN_BYTES}")
    if relation is not Relation.NO_BASE:
        _check_base(base, part[at : at + _DIGEST_BYTES])
        at += _DIGEST_BYTES
    # The usual case in training: nothing of the layout is sent again.
    if relation is Relation.SAME_LAYOUT:
        if at != len(part):
            raise CorruptFrame(f"{len(part) - at} bytes follow a head without a layout; expected none")
        layout = base or StateLayout(lines=())
    else:
        layout = _layout(decompress(part[at:], max_content_bytes=MAX_LAYOUT_BYTES))
    # The caps are checked before any span is made.
    _check_sizes(layout, span_bytes, max_content_bytes, max_spans)
    known = None if relation is Relation.NO_BASE else base
    return Head(layout=layout, span_bytes=span_bytes, with_base=with_base(known, layout))


def with_base(base: StateLayout | None, layout: StateLayout) -> tuple[bool, ...]:
    """Return for each tensor of `layout` whether the base has the same name, dtype and shape."""
    if base is None:
        return (False,) * len(layout.lines)
    known = set(base.lines)
    return tuple(line in known for line in layout.lines)


def _relation(base: StateLayout | None, layout: StateLayout) -> Relation:
    if base is None:
        return Relation.NO_BASE
    return Relation.SAME_LAYOUT if base == layout else Relation.OTHER_LAYOUT


def _check_base(base: StateLayout | None, digest: bytes) -> None:
    if base is None:
        raise WrongBase("a delta needs a base state, and there is none; fetch an anchor")
    if len(digest) == _DIGEST_BYTES and digest != _digest(base):
        raise WrongBase(
            f"the base of {len(base.lines)} tensors has layout {_digest(base).hex()}, the delta was made against "
            f"{digest.hex()}; fetch an anchor"
        )


def _check_sizes(layout: StateLayout, span_bytes: int, max_content_bytes: int, max_spans: int) -> None:
    if layout.content_bytes > max_content_bytes:
        raise CorruptFrame(f"the layout declares {layout.content_bytes} bytes of tensors; at most {max_content_bytes}")
    if (num_spans := layout.num_spans(span_bytes)) > max_spans:
        raise CorruptFrame(f"the layout makes {num_spans} spans; at most {max_spans}")


def _digest(layout: StateLayout) -> bytes:
    return blake3(_json(layout)).digest(length=_DIGEST_BYTES)


def _json(layout: StateLayout) -> bytes:
    return json.dumps(layout.to_json(), separators=(",", ":"), ensure_ascii=False).encode()


def _layout(content: bytes) -> StateLayout:
    try:
        return StateLayout.from_json(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFrame(f"the layout is not readable: {error}") from error
