"""The loops over elements: what a span's bytes are walked with. Nothing here knows a wire format.

Each kernel is compiled at its first call, once for elements of two bytes and once for four where it sees elements, and
comes from numba's cache afterwards. All release the interpreter's lock. Arrays that kernels only read are passed
read-only and aligned (`readonly`), or numba would compile the same loop for every combination.

A *context row* of an element is its sign and exponent, `bits >> shift`; `table[group, row]` is its level. Groups are
runs of elements, cut at `bounds`; positions count from the start of the span.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.unsignedinteger[Any]]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint32]
Steps = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

NUM_ROWS = 512
BLOCK = 512
"""Elements that a survey takes or leaves together: enough for a processor to fetch ahead."""

_F = TypeVar("_F", bound=Callable[..., object])


def kernel(function: _F) -> _F:
    """Compile at the first call, cache on disk, release the lock; typed as what it was."""
    return cast(_F, numba.njit(cache=True, nogil=True)(function))


def readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view that numba sees as one type wherever the memory came from; a copy where it is not aligned."""
    view = np.require(array, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


@kernel
def find_changes(base: Bits, new: Bits, width: int, positions: Positions, old: Bits, steps: Steps) -> int:
    """Where new differs, in order, what stood there, and by how much it moved on the number line, modulo its length.

    Returns how many. `positions` has room for one more than all elements. No branch depends on an element's sign: half
    of them would be guessed wrong.
    """
    found = np.uint64(0)
    size, block, stretch, high = np.uint64(base.size), np.uint64(8), np.uint64(2048), np.uint64(width - 1)
    sign = np.uint64(1) << high
    mask = sign | (sign - np.uint64(1))
    for begin in range(np.uint64(0), size, stretch):
        before, end = found, begin + stretch
        if end > size:
            end = size
        whole = begin + (end - begin) // block * block
        for start in range(begin, whole, block):
            differing = base[start] ^ new[start]
            for j in range(np.uint64(1), block):
                differing |= base[start + j] ^ new[start + j]
            if differing != 0:
                for j in range(block):
                    positions[found] = start + j
                    found += np.uint64(base[start + j] != new[start + j])
        for i in range(whole, end):
            positions[found] = i
            found += np.uint64(base[i] != new[i])
        for at in range(before, found):
            was, now = np.uint64(base[np.uint64(positions[at])]), np.uint64(new[np.uint64(positions[at])])
            old[at] = was
            was ^= sign | (mask & (np.uint64(0) - (was >> high)))
            now ^= sign | (mask & (np.uint64(0) - (now >> high)))
            step = (now - was) & mask
            steps[at] = np.int64(step) - (np.int64(step >> high) << np.int64(width))
    return int(found)


@kernel
def survey(base: Bits, bounds: Ints, shift: int, stride: int, seen: Ints) -> None:
    """Count the elements of each (group, row) in one of `stride` blocks, and multiply."""
    right = np.uint64(shift)
    for group in range(bounds.size - 1):
        step = stride if bounds[group + 1] - bounds[group] > BLOCK * stride * 4 else 1
        row, end = seen[group], bounds[group + 1]
        for start in range(bounds[group], end, BLOCK * step):
            stop = start + BLOCK
            if stop > end:
                stop = end
            for i in range(np.uint64(start), np.uint64(stop)):
                row[np.uint64(base[i]) >> right] += step


@kernel
def tally(positions: Positions, old: Bits, bounds: Ints, shift: int, changed: Ints) -> None:
    """Count the changes of each (group, row), exactly."""
    right = np.uint64(shift)
    change = np.uint64(0)
    for group in range(bounds.size - 1):
        row = changed[group]
        while change < np.uint64(positions.size) and np.int64(positions[change]) < bounds[group + 1]:
            row[np.uint64(old[change]) >> right] += 1
            change += np.uint64(1)


@kernel
def walk(
    base: Bits, positions: Positions, bounds: Ints, shift: int, table: Bytes, unchanged: Ints, slots: Ints,
    gaps: Positions,
) -> None:  # fmt: skip
    """For each change the number of unchanged elements of its level before it, by levels and then by positions.

    `slots[level]` is where the level's next gap goes, and is advanced; `unchanged` begins as zeros.
    """
    right = np.uint64(shift)
    change, num_changes = np.uint64(0), np.uint64(positions.size)
    for group in range(bounds.size - 1):
        row = table[group]
        i, end = np.uint64(bounds[group]), np.uint64(bounds[group + 1])
        while i < end:
            has_change = change < num_changes and np.uint64(positions[change]) < end
            stop = np.uint64(positions[change]) if has_change else end
            for j in range(i, stop):
                unchanged[np.uint64(row[np.uint64(base[j]) >> right])] += 1
            i = stop
            if has_change:
                level = np.uint64(row[np.uint64(base[i]) >> right])
                gaps[np.uint64(slots[level])] = unchanged[level]
                slots[level] += 1
                unchanged[level] = 0
                change += np.uint64(1)
                i += np.uint64(1)


@kernel
def replay(
    base: Bits, queue: Steps, bounds: Ints, shift: int, table: Bytes, left: Steps, slots: Ints, positions: Positions,
    old: Bits,
) -> int:  # fmt: skip
    """The inverse of walk: the positions, in order, and what stands there; returns how many were found.

    `left[level]` is the level's first gap, and `queue[slots[level]]` its next one. The last of a level's gaps in the
    queue is longer than any span, so that a level never takes another's, and `positions` has room for the others.
    """
    right, found = np.uint64(shift), np.uint64(0)
    for group in range(bounds.size - 1):
        row = table[group]
        for i in range(np.uint64(bounds[group]), np.uint64(bounds[group + 1])):
            level = np.uint64(row[np.uint64(base[i]) >> right])
            rest = left[level]
            left[level] = rest - np.int32(1)
            if rest == 0:
                slot = np.uint64(slots[level])
                left[level] = queue[slot]
                slots[level] = slot + np.uint64(1)
                positions[found] = i
                old[found] = base[i]
                found += np.uint64(1)
    return int(found)


@kernel
def sort_steps(old: Bits, steps: Steps, shift: int, width: int, slots: Ints, outward: Steps) -> None:
    """Steps away from zero, by exponents and then by positions. `slots[exponent]` is where its next one goes."""
    right, high = np.uint64(shift), np.uint64(width - 1)
    mask = (np.uint64(1) << (high - right)) - np.uint64(1)
    for i in range(old.size):
        bits = np.uint64(old[i])
        exponent, negative = (bits >> right) & mask, np.int64(bits >> high)
        outward[np.uint64(slots[exponent])] = (np.int64(steps[i]) ^ -negative) + negative
        slots[exponent] += 1


@kernel
def apply_steps(old: Bits, outward: Steps, shift: int, width: int, slots: Ints, values: Bits) -> None:
    """New elements, from what sort_steps made."""
    right, high, one = np.uint64(shift), np.uint64(width - 1), np.uint64(1)
    sign, exponents = one << high, (one << (high - right)) - one
    mask = sign | (sign - one)
    for i in range(old.size):
        bits = np.uint64(old[i])
        exponent, negative = (bits >> right) & exponents, np.int64(bits >> high)
        step = (np.int64(outward[np.uint64(slots[exponent])]) ^ -negative) + negative
        slots[exponent] += 1
        key = ((bits ^ (sign | (mask & (np.uint64(0) - np.uint64(negative))))) + np.uint64(step)) & mask
        values[i] = key ^ (sign | (mask & (np.uint64(0) - (one - (key >> high)))))


@kernel
def split_gaps(gaps: Positions, starts: Ints, shifts: Ints, last: int, tokens: Steps, counts: Ints) -> int:
    """Tokens of the gaps' high parts, level by level, and how many each level has; returns how many in all."""
    written = 0
    for level in range(starts.size - 1):
        before = written
        for slot in range(starts[level], starts[level + 1]):
            high = np.int64(gaps[slot]) >> shifts[level]
            while high >= last:
                tokens[written] = last
                written += 1
                high -= last
            tokens[written] = high
            written += 1
        counts[level] = written - before
    return written


@kernel
def join_gaps(tokens: Steps, starts: Ints, last: int, highs: Ints, counts: Ints) -> bool:
    """The inverse of split_gaps; False if a level ends amid a gap."""
    written = 0
    for level in range(starts.size - 1):
        before, high, open_gap = written, np.int64(0), False
        for slot in range(starts[level], starts[level + 1]):
            high += tokens[slot]
            open_gap = tokens[slot] >= last
            if not open_gap:
                highs[written] = high
                written += 1
                high = np.int64(0)
        if open_gap:
            return False
        counts[level] = written - before
    return True


@kernel
def split_steps(
    steps: Steps, ends: Ints, direct: int, tokens: Steps, rests: Positions, widths: Bytes, counts: Ints
) -> None:
    """Tokens of steps (2 x class of magnitude, +1 if towards zero) and the bits of the magnitude that they leave open.

    `counts[row, token]` counts those before `ends[row]` and not before the last row's end.
    """
    row = 0
    for i in range(steps.size):
        while i >= ends[row]:
            row += 1
        inward = steps[i] < 0
        magnitude = -np.int64(steps[i]) if inward else np.int64(steps[i])
        kind, width = magnitude - 1, 0
        if magnitude > direct:
            width = 2
            while magnitude >> (width + 2):
                width += 1
            kind = direct + 2 * (width - 2) + ((magnitude >> width) & 1)
        tokens[i] = 2 * kind + inward
        rests[i] = magnitude & ((1 << width) - 1)
        widths[i] = width
        counts[row, tokens[i]] += 1


@kernel
def join_steps(tokens: Steps, rests: Positions, direct: int, steps: Steps) -> None:
    """The inverse of split_steps."""
    for i in range(tokens.size):
        kind = np.int64(tokens[i]) >> 1
        if kind < direct:
            magnitude = kind + 1
        else:
            half = (kind - direct) & 1
            width = ((kind - direct) >> 1) + 2
            magnitude = ((2 | half) << width) + np.int64(rests[i])
        steps[i] = -magnitude if tokens[i] & 1 else magnitude


@kernel
def pack(values: Positions, widths: Bytes, words: Positions) -> None:
    """Append the lowest `widths[i]` (at most 32) bits of each value to `words`, lowest bit first."""
    held, filled, at = np.uint64(0), 0, 0
    for i in range(values.size):
        lowest = (np.uint64(1) << np.uint64(widths[i])) - np.uint64(1)
        held |= (np.uint64(values[i]) & lowest) << np.uint64(filled)
        filled += widths[i]
        if filled >= 32:
            words[at] = held & np.uint64(0xFFFFFFFF)
            at += 1
            held >>= np.uint64(32)
            filled -= 32
    if filled:
        words[at] = held & np.uint64(0xFFFFFFFF)


@kernel
def unpack(words: Positions, widths: Bytes, values: Positions) -> None:
    """The inverse of pack; there must be enough words."""
    held, filled, at = np.uint64(0), 0, 0
    for i in range(widths.size):
        width = widths[i]
        if filled < width:
            held |= np.uint64(words[at]) << np.uint64(filled)
            at += 1
            filled += 32
        values[i] = held & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))
        held >>= np.uint64(width)
        filled -= width
