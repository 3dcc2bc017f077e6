"""Positions of a state's elements in the one file that holds it, and in memory while a span is worked on.

A *span* is the piece of the weights that one part of a publication encodes. Tensors stand in the order in which the
codec's spans name them, so a span is one range of the file. A tensor begins at a multiple of its element's size: within
one dtype this holds by itself, between dtypes by padding.

`SpanScratch` is a state in memory that never exists as a whole. It reserves as much address space as the file has
bytes, but only spans that were loaded and not yet dropped take memory. So the codec's Encoder and Decoder, which take
whole states, can work span by span. Its tensors change while others hold them, so no such state leaves this package.
"""

import mmap
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.layout import SPAN_BYTES, Piece, Span, StateLayout
from periplus.spool.format import Buffer
from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import Tensor, WeightState

ALIGN_BYTES = 16
"""Alignment of each dtype's first tensor in bytes; no element is wider."""

_MAP_NORESERVE = 0x4000
"""mmap flag for address space without reserved memory (Linux; Python names it from 3.13 on)."""


class FilePlacement:
    """Positions of one layout's tensors and spans. Where tensors lie does not depend on the size of spans."""

    def __init__(self, layout: StateLayout, span_bytes: int = SPAN_BYTES) -> None:
        self.layout = layout
        self.spans = layout.spans(span_bytes)
        self._starts: dict[int, int] = {}
        self._span_starts: list[int] = []
        end, dtype = 0, ""
        # Spans follow each other without gaps, except that each dtype begins at an aligned byte.
        for span in self.spans:
            if span.dtype != dtype:
                end, dtype = -(-end // ALIGN_BYTES) * ALIGN_BYTES, span.dtype
            self._span_starts.append(end)
            for piece in span.pieces:
                self._starts.setdefault(piece.line, end)
                end += (piece.stop - piece.start) * ELEMENT_BYTES[dtype]
        self.num_bytes = end

    def line_start(self, line: int) -> int:
        """Return the byte at which a tensor begins."""
        return self._starts.get(line, 0)  # an empty tensor is in no span

    def span_start(self, index: int) -> int:
        """Return the byte at which a span begins; it ends `spans[index].num_bytes` later."""
        return self._span_starts[index]


class SpanScratch:
    """A state of `placement`'s layout whose content is present span by span."""

    def __init__(self, placement: FilePlacement) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._memory = mmap.mmap(-1, max(placement.num_bytes, 1), flags=flags)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._placement = placement
        lines = placement.layout.lines
        self.arrays: Mapping[str, npt.NDArray[np.uint8]] = {
            line.name: self._bytes[(start := placement.line_start(index)) : start + line.num_bytes]
            for index, line in enumerate(lines)
        }
        self.state: WeightState = {line.name: Tensor(line.dtype, line.shape, self.arrays[line.name]) for line in lines}

    def load(self, index: int, data: Buffer) -> None:
        """Write the bytes of a span."""
        view = self._view(index)
        view[:] = np.frombuffer(data, np.uint8)

    def span(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a span, for reading."""
        return self._view(index)

    def drop(self, index: int) -> None:
        """Release the memory of a span as far as it fills whole pages. What was loaded there is lost."""
        start = self._placement.span_start(index)
        end = start + self._placement.spans[index].num_bytes
        # The kernel releases whole pages only. The first and last page may hold bytes of neighbouring spans too.
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _view(self, index: int) -> npt.NDArray[np.uint8]:
        start = self._placement.span_start(index)
        return self._bytes[start : start + self._placement.spans[index].num_bytes]


def offset_in(span: Span, piece_line: int) -> tuple[Piece, int]:
    """Return the one piece of a tensor in a span, and the number of the span's elements before it."""
    before = 0
    for piece in span.pieces:
        if piece.line == piece_line:
            return piece, before
        before += piece.stop - piece.start
    raise KeyError(piece_line)
