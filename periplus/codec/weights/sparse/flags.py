"""Coding of change positions in a small span: one binary symbol per element says whether it changed.

The symbols stand in the stack level by level in rising order, and within a level in the order of elements. Each has the
odds of its level (contexts.flag_model). Level 0 has no symbols.

Compared with gaps (gaps.py), this needs no counts and rounds nothing, which saves about 3 % at a few
hundred changes. It takes about 25 ns per element on both sides, and a reader first has to sort the elements by level.
"""

import numpy as np

from periplus.codec.weights.entropy import contexts
from periplus.codec.weights.entropy.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.entropy.kernels import Bits, Bytes, Ints, Positions

MAX_ELEMENTS = 1 << 19
"""Largest span in elements whose changes are coded as flags. That takes about 12 ms."""


def write(
    writer: SymbolWriter, used: list[int], bits: Bits, bounds: Ints, shift: int, table: Bytes, positions: Positions
) -> None:
    """Append the flags of a span's elements.

    `used` are the levels that occur, `bits` the base elements, `bounds` the ends of groups, `table` [G, rows] the level
    of each group and row (sign and exponent), `positions` the changed elements.
    """
    order, ends = _by_level(bits, bounds, shift, table)
    flags = np.zeros(len(bits), np.int32)
    flags[positions] = 1
    # Elements of one level stand together, so that each level is one run of symbols with one model.
    sorted_flags = flags[order]
    for level in used:
        writer.put(sorted_flags[ends[level - 1] : ends[level]], contexts.flag_model(level))


def read(reader: SymbolReader, used: list[int], bits: Bits, bounds: Ints, shift: int, table: Bytes) -> Positions:
    """Invert `write`: return the positions of changes."""
    order, ends = _by_level(bits, bounds, shift, table)
    flags = np.zeros(len(bits), np.bool_)
    for level in used:
        members = order[ends[level - 1] : ends[level]]
        flags[members] = reader.take(len(members), contexts.flag_model(level))
    return np.flatnonzero(flags).astype(np.uint32)


def _by_level(bits: Bits, bounds: Ints, shift: int, table: Bytes) -> tuple[Ints, Ints]:
    """Return the elements sorted by level (stably), and the end of each level in that order."""
    groups = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    levels = table[groups, bits >> shift]
    return np.argsort(levels, kind="stable"), np.cumsum(np.bincount(levels, minlength=contexts.MAX_LEVEL + 1))
