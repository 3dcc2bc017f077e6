"""Decoded but unwritten content of a payload: absolute new elements, so that writing them twice does no harm."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.entropy.kernels import scatter
from periplus.codec.weights.layout import Piece, Span, StateLayout
from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import Tensor, WeightState

Bits = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """New elements of one tensor: at `positions`, or consecutive from `start` on if `positions` is None."""

    name: str
    positions: npt.NDArray[np.int64] | None
    start: int
    values: Bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagedSpan:
    """New elements of a span, not written yet.

    They belong at `positions` in the span, in rising order, or are all elements of it if `positions` is None.
    """

    layout: StateLayout
    span: Span
    positions: npt.NDArray[np.uint32] | None
    values: Bits

    @property
    def num_changed(self) -> int:
        """Number of elements that are written."""
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the new elements and their positions hold."""
        return self.values.nbytes + (0 if self.positions is None else self.positions.nbytes)

    def updates(self) -> Iterator[Update]:
        """Yield what is written into each tensor, in the order of the span."""
        for piece, first, which in self._pieces():
            yield self._update(piece, first, which)

    def write_into(self, arrays: Mapping[str, npt.NDArray[np.uint8]]) -> None:
        """Write the new elements into flat arrays of whole tensors, in place."""
        width = ELEMENT_BYTES[self.span.dtype]
        for piece, first, which in self._pieces():
            target = arrays[self.layout.lines[piece.line].name].view(f"<u{width}")
            if self.positions is None:
                target[piece.start : piece.stop] = self.values[which]
            else:
                scatter(target, self.positions[which], piece.start - first, self.values[which])

    def _pieces(self) -> Iterator[tuple[Piece, int, slice]]:
        """Yield each piece with new elements, its first element in the span, and the slice of the new elements."""
        first, taken = 0, 0
        for piece in self.span.pieces:
            after = first + piece.stop - piece.start
            end = after if self.positions is None else int(np.searchsorted(self.positions, after))
            if end > taken:
                yield piece, first, slice(taken, end)
            first, taken = after, end

    def _update(self, piece: Piece, first: int, which: slice) -> Update:
        name = self.layout.lines[piece.line].name
        positions = None
        if self.positions is not None:
            positions = self.positions[which].astype(np.int64) + (piece.start - first)
        return Update(name=name, positions=positions, start=piece.start, values=self.values[which])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Staged:
    """New elements of a whole payload.

    `with_base` says for each tensor whether the base holds one of the same layout.
    """

    layout: StateLayout
    with_base: tuple[bool, ...]
    spans: tuple[StagedSpan, ...]

    @property
    def num_changed(self) -> int:
        return sum(span.num_changed for span in self.spans)

    def state(self, base: WeightState | None) -> WeightState:
        """Return the new state. Tensors with a change are new arrays, the others are the base's.

        Raises: KeyError if `base` lacks a tensor.
        """
        # Only tensors with a changed element are copied; a step may leave many of them as they are.
        touched = {
            self.layout.lines[piece.line].name for span in self.spans if span.num_changed for piece in span.span.pieces
        }
        arrays, shared = {}, {}
        for line, known in zip(self.layout.lines, self.with_base, strict=True):
            if known and base is not None and line.name not in touched:
                shared[line.name] = base[line.name]
            elif known and base is not None:
                arrays[line.name] = base[line.name].data.copy()
            else:
                # The base has no such tensor: every element of it is in some span, so that no zero is left.
                arrays[line.name] = np.zeros(line.num_bytes, np.uint8)
        self.write_into(arrays)
        return {
            line.name: shared.get(line.name) or Tensor(line.dtype, line.shape, arrays[line.name])
            for line in self.layout.lines
        }

    def write_into(self, arrays: Mapping[str, npt.NDArray[np.uint8]]) -> None:
        """Write all spans into flat arrays of whole tensors, in place."""
        for span in self.spans:
            span.write_into(arrays)
