"""A sparse span: what changed in it, as one stack of symbols (coder.py): its level map (level_map.py), the gaps between
changes (gaps.py; flags.py in small spans), the steps that were taken (steps.py; adaptive.py in small spans).

What the code uses is that whether and how far an optimizer's step moves a weight of 8 bits of mantissa depends on the
weight's exponent above all, and on its tensor: an update of size u moves it with odds of about u over the unit in the
last place. So elements are told apart by group (a tensor, or neighbouring small ones) and exponent, both known to who
has the base; each such cell gets one of 62 levels of odds; and among the elements of one level, changes are
independent, so that the gaps between them are geometric.

`encode_span` takes changes that were found anywhere (a GPU, an optimizer's kernel). It needs the base's elements
because levels and gaps are functions of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from periplus.codec.weights import adaptive, choice, contexts, flags, gaps, kernels, level_map, steps
from periplus.codec.weights.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.kernels import Bits, Bytes, Ints, Positions, Steps, readonly
from periplus.codec.weights.layout import Span
from periplus.errors import CorruptFrame

SMALLEST_GROUP = 1024
MOST_GROUPS = 256
"""Elements of neighbouring tensors are one group until there are enough of them to say something."""

SURVEY_STRIDE = 8
"""Of a large span the encoder counts an eighth of the elements; counting all costs a fifth of its time and saves less
than a thousandth."""

FINE_CHANGES = 20_000
"""Where gaps are counted level by level, levels half as far apart pay for themselves from so many changes on."""


ENDLESS = (1 << 31) - 1
"""A gap longer than any span."""


class _Float(NamedTuple):
    """How the bits of a float are cut."""

    mantissa_bits: int
    sign: int

    @property
    def num_exponents(self) -> int:
        return self.sign >> self.mantissa_bits

    @property
    def width(self) -> int:
        return self.sign.bit_length()


FLOATS = {"BF16": _Float(7, 1 << 15), "F16": _Float(10, 1 << 15), "F32": _Float(23, 1 << 31)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """Which elements of a span differ, in rising order, what the base has there, and by how much they moved on the
    number line, modulo its length."""

    positions: Positions
    old: Bits
    steps: Steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BaseSpan:
    """The old elements of a span, and where its groups end: what contexts are made of."""

    dtype: str
    bits: Bits
    bounds: Ints


def base_span(span: Span, bits: Bits) -> BaseSpan:
    """The groups of a span: a function of its pieces alone."""
    smallest = max(SMALLEST_GROUP, span.num_elements // MOST_GROUPS)
    bounds, held, at = [0], 0, 0
    for piece in span.pieces:
        size = piece.stop - piece.start
        if held and (held >= smallest or size >= smallest):
            bounds.append(at)
            held = 0
        held += size
        at += size
    bounds.append(at)
    return BaseSpan(dtype=span.dtype, bits=bits, bounds=np.array(bounds, np.int64))


def find_changes(base: BaseSpan, new: Bits, positions: Positions | None = None) -> Changes:
    """Compare by bit pattern, unless the positions are known: sorted, and only where bits differ."""
    if positions is not None:
        return _changes_at(base, new, positions)
    size = len(new)
    positions, steps = np.empty(size + 1, np.uint32), np.empty(size, np.int32)
    old = np.empty(size, new.dtype)
    width = FLOATS[base.dtype].width
    found = kernels.find_changes(base.bits, new, _words(base.bits), _words(new), width, positions, old, steps)
    return Changes(positions=positions[:found].copy(), old=old[:found].copy(), steps=steps[:found].copy())


def _words(bits: Bits) -> Bits:
    """Eight bytes at a time, as many as are whole."""
    data = bits.view(np.uint8)
    return readonly(data[: len(data) // 8 * 8].view(np.uint64))


def _changes_at(base: BaseSpan, new: Bits, positions: Positions) -> Changes:
    width = FLOATS[base.dtype].width
    old = base.bits[positions]
    was, now = _on_number_line(old, width), _on_number_line(new[positions], width)
    step = (now - was) & ((1 << width) - 1)
    return Changes(positions=positions, old=old, steps=(step - ((step >> (width - 1)) << width)).astype(np.int32))


def _on_number_line(bits: Bits, width: int) -> Ints:
    wide = bits.astype(np.int64)
    return np.where(wide >> (width - 1), wide ^ ((1 << width) - 1), wide | (1 << (width - 1)))


def encode_span(base: BaseSpan, changes: Changes) -> bytes:
    """The stack of a span with at least one change."""
    fine = len(base.bits) <= flags.MAX_ELEMENTS or len(changes.positions) >= FINE_CHANGES
    return encode_spaced(base, changes, 1 if fine else 2)


def encode_spaced(base: BaseSpan, changes: Changes, spacing: int) -> bytes:
    """The stack with levels so far apart."""
    kind = FLOATS[base.dtype]
    bits, positions, shift = base.bits, changes.positions, kind.mantissa_bits
    rows = _tally(base, positions, changes.old)
    seen, moved = _survey(base), _fold_signs(rows)
    found = _choose(seen, moved, spacing)
    table = level_map.table(found, kind.num_exponents)
    writer = SymbolWriter()
    level_map.write(writer, found, kind.num_exponents)
    if len(bits) <= flags.MAX_ELEMENTS:
        flags.write(writer, _used(found), bits, base.bounds, shift, table, positions)
    else:
        streams = gaps.streams(table)
        per_stream = np.bincount(streams.ravel(), rows.ravel(), gaps.NUM_STREAMS).astype(np.int64)
        gap = np.empty(len(positions), np.uint32)
        starts = np.cumsum(per_stream) - per_stream
        kernels.walk(bits, positions, base.bounds, shift, streams, np.zeros_like(starts), starts, gap)
        gaps.write(writer, _used(found), gap, per_stream)
    per_exponent = moved.sum(axis=0)
    outward, slots = np.empty(len(positions), np.int32), np.cumsum(per_exponent) - per_exponent
    kernels.sort_steps(changes.old, changes.steps, shift, kind.width, slots, outward)
    if len(bits) > flags.MAX_ELEMENTS:
        steps.write(writer, outward, per_exponent)
        return writer.finish()
    return _with_small_steps(writer, outward, per_exponent, seen.sum(axis=0))


def decode_span(base: BaseSpan, data: bytes | memoryview) -> tuple[Positions, Bits]:
    """Positions and new elements. Raises: CorruptFrame."""
    kind = FLOATS[base.dtype]
    shift = kind.mantissa_bits
    reader = SymbolReader(data)
    found = level_map.read(reader, len(base.bounds) - 1, kind.num_exponents)
    table = level_map.table(found, kind.num_exponents)
    if len(base.bits) <= flags.MAX_ELEMENTS:
        positions = flags.read(reader, _used(found), base.bits, base.bounds, shift, table)
        old = base.bits[positions]
    else:
        positions, old = _replay(base, reader, _used(found), table)
    per_exponent = _fold_signs(_tally(base, positions, old)).sum(axis=0)
    if len(base.bits) <= flags.MAX_ELEMENTS and reader.take_one(2):
        outward = adaptive.read(reader, per_exponent, _survey(base).sum(axis=0))
    else:
        outward = steps.read(reader, per_exponent)
    values = np.empty(len(positions), base.bits.dtype)
    slots = np.cumsum(per_exponent) - per_exponent
    kernels.apply_steps(old, outward, shift, kind.width, slots, values)
    return positions, values


def _with_small_steps(writer: SymbolWriter, outward: Steps, per_exponent: Ints, seen: Ints) -> bytes:
    """The whole stack of a small span: adaptive steps (1) or tables (0), whichever is smaller where both might be."""
    tries = []
    if len(outward) <= adaptive.MAX_CHANGES:
        tries.append(writer.fork())
        tries[-1].put_one(1, 2)
        adaptive.write(tries[-1], outward, per_exponent, seen)
    if len(outward) >= adaptive.MIN_TABLE_CHANGES:
        tries.append(writer)
        writer.put_one(0, 2)
        steps.write(writer, outward, per_exponent)
    return min((tried.finish() for tried in tries), key=len)


def _replay(base: BaseSpan, reader: SymbolReader, used: list[int], table: Bytes) -> tuple[Positions, Bits]:
    gap, per_stream = gaps.read(reader, used, len(base.bits))
    starts = np.cumsum(per_stream + 1) - per_stream - 1
    queue = np.empty(len(gap) + len(per_stream), np.int32)
    kernels.enqueue(gap, per_stream, ENDLESS, queue)
    positions, old = np.empty(len(gap), np.uint32), np.empty(len(gap), base.bits.dtype)
    shift = FLOATS[base.dtype].mantissa_bits
    num_placed = kernels.replay(
        base.bits, queue, base.bounds, shift, gaps.streams(table), queue[starts], starts + 1, positions, old
    )
    if num_placed != len(gap):
        raise CorruptFrame(f"{len(gap) - num_placed} of {len(gap)} changes lie beyond the end of their span")
    return positions, old


def _survey(base: BaseSpan) -> Ints:
    """[G, exponents] how many elements there are, about."""
    kind = FLOATS[base.dtype]
    shape = (len(base.bounds) - 1, 2 * kind.num_exponents)
    seen = np.zeros(shape, np.int64)
    stride = 1 if len(base.bits) <= flags.MAX_ELEMENTS else SURVEY_STRIDE
    kernels.survey(base.bits, base.bounds, kind.mantissa_bits, stride, seen)
    return _fold_signs(seen)


def _tally(base: BaseSpan, positions: Positions, old: Bits) -> Ints:
    """[G, rows] how many of the elements at the positions."""
    kind = FLOATS[base.dtype]
    counts = np.zeros((len(base.bounds) - 1, 2 * kind.num_exponents), np.int64)
    kernels.tally(positions, old, base.bounds, kind.mantissa_bits, counts)
    return counts


def _fold_signs(counts: Ints) -> Ints:
    half = counts.shape[1] // 2
    return counts[:, :half] + counts[:, half:]


def _choose(seen: Ints, moved: Ints, spacing: int) -> level_map.LevelMap:
    exponents = np.flatnonzero(moved.any(axis=0))
    first, last = int(exponents[-1]), int(exponents[0])
    cells = slice(last, first + 1)
    return choice.choose_levels(seen[:, cells][:, ::-1].copy(), moved[:, cells][:, ::-1].copy(), first, spacing)


def _used(found: level_map.LevelMap) -> list[int]:
    """The levels, but 0, that cells have."""
    present = np.bincount(level_map.levels(found).ravel(), minlength=contexts.MAX_LEVEL + 1)
    return [int(level) for level in np.flatnonzero(present) if level]
