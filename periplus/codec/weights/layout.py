"""The layout of a state (names, dtypes and shapes without bytes), and how it is cut into spans.

A *span* is what one part of a payload carries: at most `span_bytes` of elements of one dtype. The spans are a function
of the layout alone, so writer, reader and whoever resumes a transfer agree on them without sending anything:

- Tensors are ordered by dtype, then by name without its numbers, then by these numbers. So tensors of one role in
  successive layers are neighbours. Their statistics are alike. Norms, for example, stand among norms.
- The elements of one dtype form one sequence, which is cut every `span_bytes`. A large tensor has many spans, and small
  tensors share one.

In this module a *line* is one tensor's entry in the layout. A tensor of 2^63 elements is legal here, so check
`content_bytes` before you allocate.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from periplus.values.safetensors_format import ELEMENT_BYTES, layout_bytes
from periplus.values.weight_state import WeightState

SPAN_BYTES = 8 << 20
"""Bytes of the new state in one span. Two spans and their base fit a core's share of the last-level cache, and tables
cost well below a hundredth of what they describe. Spans of 2, 4 and 16 MiB encode more slowly
(docs/design/0007-weights.md)."""

MIN_SPAN_BYTES = 1 << 10
"""Smallest span that payloads may use."""
MAX_SPAN_BYTES = 64 << 20
"""Largest span that payloads may use. It bounds a decoder's working memory, and keeps positions within 32 bits."""

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Layout entry of one tensor: name, dtype (a name of periplus.values.safetensors_format) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return layout_bytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The elements [start, stop) of one tensor. `line` is the tensor's index in the layout."""

    line: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring pieces of one dtype, which one part of a payload carries."""

    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def num_elements(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """The tensors of a state, sorted by name."""

    lines: tuple[TensorLayout, ...]

    def to_json(self) -> list[list[Any]]:
        """Return the layout as a JSON value: [name, dtype, shape] of each tensor."""
        return [[line.name, line.dtype, list(line.shape)] for line in self.lines]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Invert `to_json`. Raises: ValueError, TypeError for a value that no layout has."""
        lines = tuple(_line(*entry) for entry in value)
        names = [line.name for line in lines]
        if names != sorted(set(names)):
            raise ValueError(f"names in the layout repeat or are not sorted: {names[:3]}...")
        return cls(lines=lines)

    @property
    def content_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(line.num_bytes for line in self.lines)

    def num_spans(self, span_bytes: int = SPAN_BYTES) -> int:
        """Return the number of spans without building them, because a hostile layout may have very many."""
        totals: dict[str, int] = {}
        for line in self.lines:
            totals[line.dtype] = totals.get(line.dtype, 0) + line.num_bytes
        return sum(-(-total // span_bytes) for total in totals.values())

    def spans(self, span_bytes: int = SPAN_BYTES) -> tuple[Span, ...]:
        """Return the spans, which hold each element exactly once.

        Raises: ValueError if `span_bytes` is out of range or not a multiple of the widest element.
        """
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
            # A tensor fills what is left of the span, and goes on in as many further spans as it needs.
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


def layout_of(state: WeightState) -> StateLayout:
    """Return the layout of a state."""
    lines = (TensorLayout(name=name, dtype=tensor.dtype, shape=tensor.shape) for name, tensor in sorted(state.items()))
    return StateLayout(lines=tuple(lines))


def _line(name: Any, dtype: Any, shape: Any) -> TensorLayout:
    if type(name) is not str or type(dtype) is not str or type(shape) is not list:
        raise ValueError(f"no line of a layout: {name!r}, {dtype!r}, {shape!r}")
    name.encode()  # raises for what UTF-8 cannot express
    layout_bytes(dtype, tuple(shape))  # raises for an unknown dtype or an impossible shape
    return TensorLayout(name=name, dtype=dtype, shape=tuple(shape))


def _role(line: TensorLayout) -> tuple[str, str, list[tuple[int, str]], str]:
    """Return the sort key of a tensor.

    Numbers in names compare by value, without converting strings that may have thousands of digits.
    """
    numbers = (digits.lstrip("0") for digits in _NUMBER.findall(line.name))
    return line.dtype, _NUMBER.sub("#", line.name), [(len(digits), digits) for digits in numbers], line.name
