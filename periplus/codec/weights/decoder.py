"""Decoder of a weight payload: turns a base and the parts of a payload into a new state.

It trusts nothing in the parts. The caps come from what was signed, and the head is checked against them before any span
is built. Decoding a span allocates a small multiple of the span, whatever its part says. A damaged part raises
CorruptFrame or yields wrong elements of the same span. Whether the content is right is not checked here: the reader of
a publication compares the digest of the new state with the signed one.

Decoded spans are *staged*: they hold new elements that are not written yet. The base may be written into as soon as the
span that was read from it is staged, because spans do not overlap.
"""

from collections.abc import Sequence

from periplus.codec.weights import head, part
from periplus.codec.weights.layout import Span, StateLayout, layout_of
from periplus.codec.weights.staged import Staged, StagedSpan
from periplus.errors import CorruptFrame
from periplus.values.weight_state import WeightState

MAX_PARTS = 1 << 20
"""Most parts of a payload for callers that have no signed cap: 8 TiB in spans of 8 MiB."""


class Decoder:
    """Incremental decoder: takes the head first, then spans in order, or in any order with their index."""

    def __init__(
        self, base: WeightState | None, *, max_content_bytes: int, max_parts: int = MAX_PARTS, keep: bool = True
    ) -> None:
        """Create a decoder. `base` is None for a full state.

        With `keep=False`, for callers that write each span at once, `staged()` is not available and memory is one span.
        """
        self._base, self._keep = base, keep
        self._max_content_bytes, self._max_parts = max_content_bytes, max_parts
        self._head: head.Head | None = None
        self._spans: tuple[Span, ...] = ()
        self._staged: dict[int, StagedSpan | None] = {}

    @property
    def num_parts(self) -> int:
        """Number of parts of the whole payload. Raises: CorruptFrame before the head was fed."""
        self._need_head()
        return 1 + len(self._spans)

    @property
    def layout(self) -> StateLayout:
        """Layout of the new state. Raises: CorruptFrame before the head was fed."""
        return self._need_head().layout

    @property
    def missing(self) -> tuple[int, ...]:
        """Indexes of the parts that were not fed yet."""
        if self._head is None:
            return (0,)
        return tuple(index for index in range(1, self.num_parts) if index not in self._staged)

    def feed(self, data: bytes, index: int | None = None) -> StagedSpan | None:
        """Decode one part and return its span, or None for the head. Without `index` it is the next part in order.

        Raises: CorruptFrame, WrongBase.
        """
        number = (0 if self._head is None else 1 + len(self._staged)) if index is None else index
        if number == 0:
            self._feed_head(data)
            return None
        # Spans are known only from the head. They are independent: each may come at any time, but once.
        described = self._need_head()
        if not 1 <= number <= len(self._spans):
            raise CorruptFrame(f"part {number} of a payload of {self.num_parts} parts; fetch it again from its head")
        if number in self._staged:
            raise CorruptFrame(f"part {number} came twice; a payload has each once")
        staged = self._decode(described, self._spans[number - 1], data)
        # Without `keep`, only the number is remembered, and the caller writes the span out.
        self._staged[number] = staged if self._keep else None
        return staged

    def staged(self) -> Staged:
        """Return all spans. Raises: CorruptFrame if parts are missing, ValueError with keep=False."""
        described = self._need_head()
        if missing := self.missing:
            raise CorruptFrame(f"{len(missing)} of {self.num_parts} parts are missing, the first is part {missing[0]}")
        spans = [self._staged[number] for number in range(1, self.num_parts)]
        if not self._keep:
            raise ValueError("this decoder does not keep spans; write each when feed returns it")
        kept = tuple(span for span in spans if span is not None)
        return Staged(layout=described.layout, with_base=described.with_base, spans=kept)

    def _need_head(self) -> head.Head:
        if self._head is None:
            raise CorruptFrame("a payload begins with its head, and none came yet; feed part 0 first")
        return self._head

    def _feed_head(self, data: bytes) -> None:
        if self._head is not None:
            raise CorruptFrame("the head came twice; a payload has one")
        base = None if self._base is None else layout_of(self._base)
        described = head.read(data, base, max_content_bytes=self._max_content_bytes, max_spans=self._max_parts - 1)
        self._spans = described.layout.spans(described.span_bytes)
        self._head = described

    def _decode(self, described: head.Head, span: Span, data: bytes) -> StagedSpan:
        base = None
        if self._base is not None and all(described.with_base[piece.line] for piece in span.pieces):
            base = part.elements(described.layout, span, self._base)
        return part.decode_part(described.layout, span, base, data)


def decode(base: WeightState | None, parts: Sequence[bytes], *, max_content_bytes: int) -> WeightState:
    """Return the new state from all parts of a payload. Raises: CorruptFrame, WrongBase."""
    decoder = Decoder(base, max_content_bytes=max_content_bytes, max_parts=len(parts))
    for data in parts:
        decoder.feed(data)
    return decoder.staged().state(base)
