"""Changes of a small span on the wire: for each level in rising order one symbol an element, changed or not, in the
order of elements. In the stack: these symbols, level by level (contexts.flag_model).

This costs no counts and no rounding of gaps, which are three bits in a hundred where a span has a few hundred changes.
It takes some 25 ns an element on both sides, and a reader has to count its levels' elements first.
"""

import numpy as np

from periplus.codec.weights import contexts
from periplus.codec.weights.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.kernels import Bits, Bytes, Ints, Positions

MAX_ELEMENTS = 1 << 19
"""Of a span with flags: 12 ms."""


def write(
    writer: SymbolWriter, used: list[int], bits: Bits, bounds: Ints, shift: int, table: Bytes, positions: Positions
) -> None:
    """Append the flags of a span's elements."""
    order, ends = _by_level(bits, bounds, shift, table)
    flags = np.zeros(len(bits), np.int32)
    flags[positions] = 1
    sorted_flags = flags[order]
    for level in used:
        writer.put(sorted_flags[ends[level - 1] : ends[level]], contexts.flag_model(level))


def read(reader: SymbolReader, used: list[int], bits: Bits, bounds: Ints, shift: int, table: Bytes) -> Positions:
    """The positions of changes."""
    order, ends = _by_level(bits, bounds, shift, table)
    flags = np.zeros(len(bits), np.bool_)
    for level in used:
        members = order[ends[level - 1] : ends[level]]
        flags[members] = reader.take(len(members), contexts.flag_model(level))
    return np.flatnonzero(flags).astype(np.uint32)


def _by_level(bits: Bits, bounds: Ints, shift: int, table: Bytes) -> tuple[Ints, Ints]:
    """The elements in the order of levels, and where each level ends."""
    groups = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    levels = table[groups, bits >> shift]
    return np.argsort(levels, kind="stable"), np.cumsum(np.bincount(levels, minlength=contexts.MAX_LEVEL + 1))
