"""Coding of a sparse span: what changed in it, as one stack of symbols (coder.py).

The stack holds the level map (level_map.py), the positions of changes (gaps.py, in small spans flags.py), and the steps
(steps.py, in small spans mostly adaptive.py). A *step* is the signed distance by which an element moves on the ordered
number line of bit patterns.

Whether and how far an optimizer's step moves a weight depends mostly on the weight's exponent, and then on its tensor:
an update of size u changes a weight with odds of about u over its unit in the last place. So elements are told apart by
*group* (a tensor, or small neighbouring ones) and exponent. Whoever has the base knows both. Each such *cell* has one
of 62 levels of odds. Changes among the elements of one level are treated as independent, so gaps between them are
geometric.

`encode_span` takes changes that were found anywhere (on a GPU, in an optimizer's kernel). It needs the elements of the
base, because levels and gaps are functions of them. A *small* span has at most `flags.MAX_ELEMENTS` elements. Array
legend: G groups, rows are pairs of sign and exponent.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from periplus.codec.weights.entropy import adaptive, contexts, kernels, level_map
from periplus.codec.weights.entropy.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.entropy.kernels import Bits, Bytes, Ints, Positions, Steps, readonly
from periplus.codec.weights.layout import Span
from periplus.codec.weights.sparse import choice, flags, gaps, steps
from periplus.errors import CorruptFrame

SMALLEST_GROUP = 1024
"""Fewest elements of a group. Neighbouring tensors are joined until their group is large enough to have statistics."""
MOST_GROUPS = 256
"""Limits the number of groups: a group has at least 1 / MOST_GROUPS of the span's elements."""

SURVEY_STRIDE = 8
"""In a large span the encoder counts one of 8 blocks of elements. Counting all would take a fifth of the encoder's time
and save less than a thousandth of the bytes."""

FINE_CHANGES = 20_000
"""Changes of a large span from which on every level is used. With fewer, only every second level is used, because the
counts of each level's streams would cost more than finer levels save."""


ENDLESS = (1 << 31) - 1
"""A gap that is longer than any span."""


class _Float(NamedTuple):
    """How the bits of a float are divided: number of mantissa bits, and the mask of the sign bit."""

    mantissa_bits: int
    sign: int

    @property
    def num_exponents(self) -> int:
        return self.sign >> self.mantissa_bits

    @property
    def width(self) -> int:
        return self.sign.bit_length()


FLOATS = {"BF16": _Float(7, 1 << 15), "F16": _Float(10, 1 << 15), "F32": _Float(23, 1 << 31)}
"""Float formats that can be coded sparsely, by dtype."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """The elements of a span that differ.

    They are in rising order of position. `old` holds the base's elements, and `steps` the distances on the number line,
    modulo its length.
    """

    positions: Positions
    old: Bits
    steps: Steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BaseSpan:
    """The base's elements of a span and the bounds [G + 1] of its groups, from which all contexts follow."""

    dtype: str
    bits: Bits
    bounds: Ints


def base_span(span: Span, bits: Bits) -> BaseSpan:
    """Divide a span into groups. The division is a function of the span's pieces alone."""
    smallest = max(SMALLEST_GROUP, span.num_elements // MOST_GROUPS)
    bounds, held, at = [0], 0, 0
    for piece in span.pieces:
        size = piece.stop - piece.start
        # Small tensors are joined into a group until it is large enough. A large one does not join small ones before
        # it.
        if held and (held >= smallest or size >= smallest):
            bounds.append(at)
            held = 0
        held += size
        at += size
    bounds.append(at)
    return BaseSpan(dtype=span.dtype, bits=bits, bounds=np.array(bounds, np.int64))


def find_changes(base: BaseSpan, new: Bits, positions: Positions | None = None) -> Changes:
    """Compare two spans by bit pattern.

    If `positions` is given, it must be sorted and hold exactly the elements whose bits differ.
    """
    if positions is not None:
        return _changes_at(base, new, positions)
    size = len(new)
    positions, steps = np.empty(size + 1, np.uint32), np.empty(size, np.int32)
    old = np.empty(size, new.dtype)
    width = FLOATS[base.dtype].width
    found = kernels.find_changes(base.bits, new, _words(base.bits), _words(new), width, positions, old, steps)
    return Changes(positions=positions[:found].copy(), old=old[:found].copy(), steps=steps[:found].copy())


def _words(bits: Bits) -> Bits:
    """Return the elements as words of eight bytes, as many as are whole."""
    data = bits.view(np.uint8)
    return readonly(data[: len(data) // 8 * 8].view(np.uint64))


def _changes_at(base: BaseSpan, new: Bits, positions: Positions) -> Changes:
    width = FLOATS[base.dtype].width
    old = base.bits[positions]
    was, now = _on_number_line(old, width), _on_number_line(new[positions], width)
    # The difference modulo 2^width, then read as a signed number of `width` bits.
    step = (now - was) & ((1 << width) - 1)
    return Changes(positions=positions, old=old, steps=(step - ((step >> (width - 1)) << width)).astype(np.int32))


def _on_number_line(bits: Bits, width: int) -> Ints:
    # Flip all bits of a negative number, and set the sign bit of a positive one: bit patterns then order like numbers.
    bits_64 = bits.astype(np.int64)
    return np.where(bits_64 >> (width - 1), bits_64 ^ ((1 << width) - 1), bits_64 | (1 << (width - 1)))


def encode_span(base: BaseSpan, changes: Changes) -> bytes:
    """Return the stack of a span with at least one change."""
    fine = len(base.bits) <= flags.MAX_ELEMENTS or len(changes.positions) >= FINE_CHANGES
    return encode_spaced(base, changes, 1 if fine else 2)


def encode_spaced(base: BaseSpan, changes: Changes, spacing: int) -> bytes:
    """Return the stack of a span that uses every `spacing`-th level."""
    kind = FLOATS[base.dtype]
    bits, positions, shift = base.bits, changes.positions, kind.mantissa_bits
    # rows: [G, rows] changes; seen, moved: [G, exponents] elements (estimated in large spans) and changes.
    rows = _tally(base, positions, changes.old)
    seen, moved = _survey(base), _fold_signs(rows)
    found = _choose(seen, moved, spacing)
    table = level_map.table(found, kind.num_exponents)
    writer = SymbolWriter()
    level_map.write(writer, found, kind.num_exponents)
    # Positions, by flags or gaps.
    if len(bits) <= flags.MAX_ELEMENTS:
        flags.write(writer, _used(found), bits, base.bounds, shift, table, positions)
    else:
        streams = gaps.streams(table)
        per_stream = np.bincount(streams.ravel(), rows.ravel(), gaps.NUM_STREAMS).astype(np.int64)
        gap = np.empty(len(positions), np.uint32)
        starts = np.cumsum(per_stream) - per_stream
        kernels.walk(bits, positions, base.bounds, shift, streams, np.zeros_like(starts), starts, gap)
        gaps.write(writer, _used(found), gap, per_stream)
    # Steps, sorted by exponent and then by position, so that each exponent's model codes one run of them.
    per_exponent = moved.sum(axis=0)
    outward, slots = np.empty(len(positions), np.int32), np.cumsum(per_exponent) - per_exponent
    kernels.sort_steps(changes.old, changes.steps, shift, kind.width, slots, outward)
    if len(bits) > flags.MAX_ELEMENTS:
        steps.write(writer, outward, per_exponent)
        return writer.finish()
    return _with_small_steps(writer, outward, per_exponent, seen.sum(axis=0))


def decode_span(base: BaseSpan, data: bytes | memoryview) -> tuple[Positions, Bits]:
    """Return the positions of changes and the new elements there. Raises: CorruptFrame."""
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
    # The reader knows the exponents of all changed elements, so the number of steps of each exponent needs no
    # transmission.
    per_exponent = _fold_signs(_tally(base, positions, old)).sum(axis=0)
    # A large span has no symbol for this choice: its steps are always coded by tables.
    if len(base.bits) <= flags.MAX_ELEMENTS and reader.take_one(2):
        outward = adaptive.read(reader, per_exponent, _survey(base).sum(axis=0))
    else:
        outward = steps.read(reader, per_exponent)
    values = np.empty(len(positions), base.bits.dtype)
    slots = np.cumsum(per_exponent) - per_exponent
    kernels.apply_steps(old, outward, shift, kind.width, slots, values)
    return positions, values


def _with_small_steps(writer: SymbolWriter, outward: Steps, per_exponent: Ints, seen: Ints) -> bytes:
    """Return the stack of a small span with the smaller coding of steps: adaptive (symbol 1) or tables (symbol 0).

    Few changes are only coded adaptively and many only by tables; in between both are tried.
    """
    tries = []
    if len(outward) <= adaptive.MAX_CHANGES:
        tries.append(writer.fork())
        # The choice itself is a symbol: both tries begin with the stack as it is so far.
        tries[-1].put_one(1, 2)
        adaptive.write(tries[-1], outward, per_exponent, seen)
    if len(outward) >= adaptive.MIN_TABLE_CHANGES:
        tries.append(writer)
        writer.put_one(0, 2)
        steps.write(writer, outward, per_exponent)
    return min((tried.finish() for tried in tries), key=len)


def _replay(base: BaseSpan, reader: SymbolReader, used: list[int], table: Bytes) -> tuple[Positions, Bits]:
    """Return positions and old elements of the changes that the gaps describe."""
    gap, per_stream = gaps.read(reader, used, len(base.bits))
    # Each stream lies in the queue as its gaps and then an endless one; `starts` [streams] are the first of each.
    starts = np.cumsum(per_stream + 1) - per_stream - 1
    queue = np.empty(len(gap) + len(per_stream), np.int32)
    kernels.enqueue(gap, per_stream, ENDLESS, queue)
    positions, old = np.empty(len(gap), np.uint32), np.empty(len(gap), base.bits.dtype)
    shift = FLOATS[base.dtype].mantissa_bits
    num_placed = kernels.replay(
        base.bits, queue, base.bounds, shift, gaps.streams(table), queue[starts], starts + 1, positions, old
    )
    # Endless gaps keep a stream out of the next one's. A change that found no element means damaged bytes.
    if num_placed != len(gap):
        raise CorruptFrame(f"{len(gap) - num_placed} of {len(gap)} changes lie beyond the end of their span")
    return positions, old


def _survey(base: BaseSpan) -> Ints:
    """Return how many elements each cell [G, exponents] has; in large spans this is an estimate."""
    kind = FLOATS[base.dtype]
    shape = (len(base.bounds) - 1, 2 * kind.num_exponents)
    seen = np.zeros(shape, np.int64)
    stride = 1 if len(base.bits) <= flags.MAX_ELEMENTS else SURVEY_STRIDE
    kernels.survey(base.bits, base.bounds, kind.mantissa_bits, stride, seen)
    return _fold_signs(seen)


def _tally(base: BaseSpan, positions: Positions, old: Bits) -> Ints:
    """Return how many of the elements at `positions` each (group, row) has [G, rows]."""
    kind = FLOATS[base.dtype]
    counts = np.zeros((len(base.bounds) - 1, 2 * kind.num_exponents), np.int64)
    kernels.tally(positions, old, base.bounds, kind.mantissa_bits, counts)
    return counts


def _fold_signs(counts: Ints) -> Ints:
    half = counts.shape[1] // 2
    return counts[:, :half] + counts[:, half:]


def _choose(seen: Ints, moved: Ints, spacing: int) -> level_map.LevelMap:
    """Choose the level map from the counts of cells, cut to the exponents that have changes."""
    exponents = np.flatnonzero(moved.any(axis=0))
    first, last = int(exponents[-1]), int(exponents[0])
    # Exponents go from the highest down, as in the level map; outside of these nothing changed.
    cells = slice(last, first + 1)
    return choice.choose_levels(seen[:, cells][:, ::-1].copy(), moved[:, cells][:, ::-1].copy(), first, spacing)


def _used(found: level_map.LevelMap) -> list[int]:
    """Return the levels above 0 that some cell has, in rising order."""
    present = np.bincount(level_map.levels(found).ravel(), minlength=contexts.MAX_LEVEL + 1)
    return [int(level) for level in np.flatnonzero(present) if level]
