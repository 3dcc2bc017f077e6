"""What a state looks like without its bytes, and how it is cut into spans.

A span is what one part of a payload carries: at most `span_bytes` of elements of one dtype. The spans are a function of
the layout alone, so that the writer, the reader and whoever resumes a transfer agree on them without a word:

- Lines are ordered by dtype, then by name with its numbers taken out, then by these numbers. Tensors of one role in
  successive layers thus stand side by side, which is where their statistics are alike, and norms stand among norms.
- The elements of one dtype form one line of elements, cut every `span_bytes`. A large tensor has many spans, small
  tensors share one.

A line of 2^63 elements is legal here. Whoever allocates asks `content_bytes` first.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from periplus.state import ELEMENT_BYTES, State, layout_bytes

SPAN_BYTES = 8 << 20
"""Of the new state in one part. Two spans and their base fit a core's share of the last cache level, and tables cost
well below a hundredth of what they describe."""

MIN_SPAN_BYTES = 1 << 10
MAX_SPAN_BYTES = 64 << 20
"""What a decoder works on at a time; also keeps positions within 32 bits."""

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One tensor's name, dtype (of periplus.state) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return layout_bytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The elements [start, stop) of a line."""

    line: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring pieces of one dtype: what one part carries."""

    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def num_elements(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The tensors of a state, sorted by name."""

    lines: tuple[Line, ...]

    @property
    def content_bytes(self) -> int:
        """Of all tensors."""
        return sum(line.num_bytes for line in self.lines)

    def num_spans(self, span_bytes: int = SPAN_BYTES) -> int:
        """How many spans there are, without making them: a hostile layout may have many."""
        totals: dict[str, int] = {}
        for line in self.lines:
            totals[line.dtype] = totals.get(line.dtype, 0) + line.num_bytes
        return sum(-(-total // span_bytes) for total in totals.values())

    def spans(self, span_bytes: int = SPAN_BYTES) -> tuple[Span, ...]:
        """All elements, each once. Raises: ValueError for a span of no whole number of the widest elements."""
        if span_bytes % max(ELEMENT_BYTES.values()) or not MIN_SPAN_BYTES <= span_bytes <= MAX_SPAN_BYTES:
            raise ValueError(f"spans of {span_bytes} bytes; take a multiple of 8 in {MIN_SPAN_BYTES}-{MAX_SPAN_BYTES}")
        order = sorted(range(len(self.lines)), key=lambda index: _role(self.lines[index]))
        spans: list[Span] = []
        for dtype, indexes in groupby(order, key=lambda index: self.lines[index].dtype):
            spans.extend(self._cut(dtype, indexes, span_bytes // ELEMENT_BYTES[dtype]))
        return tuple(spans)

    def _cut(self, dtype: str, indexes: Iterator[int], most_elements: int) -> Iterator[Span]:
        pieces: list[Piece] = []
        room = most_elements
        for index in indexes:
            start, total = 0, self.lines[index].num_bytes // ELEMENT_BYTES[dtype]
            while start < total:
                stop = min(total, start + room)
                pieces.append(Piece(line=index, start=start, stop=stop))
                room -= stop - start
                start = stop
                if not room:
                    yield Span(dtype=dtype, pieces=tuple(pieces))
                    pieces, room = [], most_elements
        if pieces:
            yield Span(dtype=dtype, pieces=tuple(pieces))


def layout_of(state: State) -> Layout:
    """The layout of a state."""
    lines = (Line(name=name, dtype=tensor.dtype, shape=tensor.shape) for name, tensor in sorted(state.items()))
    return Layout(lines=tuple(lines))


def _role(line: Line) -> tuple[str, str, list[tuple[int, str]], str]:
    """Numbers are compared by their value, without converting what may have thousands of digits."""
    numbers = (digits.lstrip("0") for digits in _NUMBER.findall(line.name))
    return line.dtype, _NUMBER.sub("#", line.name), [(len(digits), digits) for digits in numbers], line.name
