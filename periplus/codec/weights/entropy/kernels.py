"""Compiled loops (numba) over the elements of a span. They know nothing of the wire format.

Each kernel is compiled at its first call, once for elements of two bytes and once for four if it reads elements. Later
processes load it from numba's cache. All release the interpreter's lock. Arrays that a kernel only reads are passed
read-only and aligned (`readonly`), because numba would otherwise compile the same loop for every combination.

The *row* of an element is its sign and exponent, `bits >> shift`, where `shift` is the number of mantissa bits.
`table[group, row]` is the *stream* in which the element is counted. A *group* is a run of elements; `bounds` [G + 1]
holds where groups begin and end. Positions count from the start of the span. Indices are unsigned, because numba then
omits the handling of negative ones.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from periplus.errors import Denied

Bits = npt.NDArray[np.unsignedinteger[Any]]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint32]
Steps = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
UInt = np.uint64

BLOCK = 512
"""Elements that `survey` counts or skips together, enough for the processor to prefetch. Chosen by hand."""

_F = TypeVar("_F", bound=Callable[..., object])


def kernel(function: _F, **options: Any) -> _F:
    """Compile a function at its first call, cache it on disk, and release the lock while it runs.

    `options` are further ones of numba. The type stays the same. Raises: Denied if numba finds no folder for its cache.
    """
    try:
        return cast(_F, numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError as error:  # neither beside this file nor in the user's home may it write
        raise Denied(
            f"numba cannot keep its compiled code: {error}; set NUMBA_CACHE_DIR to a folder that you may write"
        ) from error


def readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view that numba sees as one type wherever the memory came from.

    Unaligned arrays are copied.
    """
    view = np.require(array, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


@kernel
def find_changes(
    base: Bits, new: Bits, base_words: Bits, new_words: Bits, width: int, positions: Positions, old: Bits, steps: Steps
) -> int:
    """Find the elements that differ: positions in order, old bits, and steps on the number line modulo its length.

    Returns the number found. `positions` has room for one more than all elements. `base_words` and `new_words` are the
    same bytes as 64-bit words, as many as are whole. No branch depends on an element's sign, because half of such
    branches would be mispredicted.
    """
    found = np.uint64(0)
    size, block, stretch, high = np.uint64(base.size), np.uint64(8), np.uint64(2048), np.uint64(width - 1)
    words_a_block, one, two = np.uint64(base.itemsize), np.uint64(1), np.uint64(2)
    sign = np.uint64(1) << high
    mask = sign | (sign - np.uint64(1))
    # Work on stretches of 2,048 elements, so that the second loop finds the changes of the first in the cache.
    for begin in range(np.uint64(0), size, stretch):
        before, end = found, begin + stretch
        if end > size:
            end = size
        # Compare 8 elements at once as 2 or 4 words. Only in a block that differs, look at each element; the position
        # is always written, and kept by advancing `found`.
        whole = begin + (end - begin) // block * block
        for start in range(begin, whole, block):
            word = start // block * words_a_block
            differing = base_words[word] ^ new_words[word]
            differing |= base_words[word + one] ^ new_words[word + one]
            if words_a_block > 2:
                differing |= base_words[word + two] ^ new_words[word + two]
                differing |= base_words[word + two + one] ^ new_words[word + two + one]
            if differing != 0:
                for j in range(block):
                    positions[found] = start + j
                    found += np.uint64(base[start + j] != new[start + j])
        for i in range(whole, end):
            positions[found] = i
            found += np.uint64(base[i] != new[i])
        # Steps: flip all bits of negative numbers and the sign bit of positive ones, which orders bit patterns like
        # numbers; then take the difference as a signed number of `width` bits.
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
    """Estimate the number of elements of each (group, row), added to `seen` [G, rows].

    In large groups only one of `stride` blocks is counted, and multiplied by `stride`. Small groups are counted
    exactly.
    """
    right = np.uint64(shift)
    for group in range(bounds.size - 1):
        # A stride is worth it only in groups with many blocks, where an estimate of the counts is close.
        step = stride if bounds[group + 1] - bounds[group] > BLOCK * stride * 4 else 1
        row, end = seen[group], bounds[group + 1]
        for start in range(bounds[group], end, BLOCK * step):
            stop = start + BLOCK
            if stop > end:
                stop = end
            # An element without its mantissa is its row: sign and exponent.
            for i in range(np.uint64(start), np.uint64(stop)):
                row[np.uint64(base[i]) >> right] += step


@kernel
def tally(positions: Positions, old: Bits, bounds: Ints, shift: int, changed: Ints) -> None:
    """Count the changes of each (group, row) exactly, added to `changed` [G, rows]."""
    right = np.uint64(shift)
    change = np.uint64(0)
    for group in range(bounds.size - 1):
        row = changed[group]
        while change < np.uint64(positions.size) and np.int64(positions[change]) < bounds[group + 1]:
            row[np.uint64(old[change]) >> right] += 1
            change += np.uint64(1)


@kernel
def walk(
    base: Bits,
    positions: Positions,
    bounds: Ints,
    shift: int,
    table: Bytes,
    unchanged: Ints,
    slots: Ints,
    gaps: Positions,
) -> None:
    """Compute the gaps: for each change, the unchanged elements of its stream since the stream's previous change.

    `table[group, row]` is the stream. `slots[stream]` is where the stream's next gap is written, and is advanced, so
    `gaps` is sorted by stream and then by position. `unchanged` [streams] begins as zeros. Elements are counted by row,
    which needs no look at the table, and the rows of a stream are added up at its changes.
    """
    right, one, num_rows = np.uint64(shift), np.uint64(1), np.uint64(table.shape[1])
    seen, first = np.zeros(num_rows, np.int32), np.empty(unchanged.size, np.uint64)
    following = np.empty(num_rows, np.uint64)
    change, num_changes = np.uint64(0), np.uint64(positions.size)
    for group in range(bounds.size - 1):
        streams = table[group]
        # Linked list of the rows of each stream: `first[stream]` is one row, `following[row]` the next; num_rows ends a
        # list.
        first[:] = num_rows
        for row in range(num_rows):
            following[row] = first[streams[row]]
            first[streams[row]] = row
        i, end = np.uint64(bounds[group]), np.uint64(bounds[group + 1])
        while i < end:
            has_change = change < num_changes and np.uint64(positions[change]) < end
            stop = np.uint64(positions[change]) if has_change else end
            # Count the unchanged elements up to the next change by row. This loop takes nearly all the time.
            for j in range(i, stop):
                seen[np.uint64(base[j]) >> right] += np.int32(1)
            i = stop
            if has_change:
                # Add up and reset the rows of the stream that changes here; the sum is its gap.
                stream = np.uint64(streams[np.uint64(base[i]) >> right])
                row = first[stream]
                while row < num_rows:
                    unchanged[stream] += seen[row]
                    seen[row] = 0
                    row = following[row]
                gaps[np.uint64(slots[stream])] = unchanged[stream]
                slots[stream] += 1
                unchanged[stream] = 0
                change += one
                i += one
        # The streams of the rows differ in the next group, so hand the counts over.
        for row in range(num_rows):
            unchanged[streams[row]] += seen[row]
            seen[row] = 0


@kernel
def enqueue(gaps: Positions, counts: Ints, endless: int, queue: Steps) -> None:
    """Copy the gaps of each stream to a queue, and append an endless gap to each stream."""
    at, taken = 0, 0
    for stream in range(counts.size):
        for _ in range(counts[stream]):
            queue[at] = gaps[taken]
            at += 1
            taken += 1
        queue[at] = endless
        at += 1


def _counting_down(unrolled: int) -> Callable[..., UInt]:
    """Return the inner loop of `replay` over the elements of a group from `begin` to `end`, unrolled.

    The number of elements must be a multiple of `unrolled`. Elements are counted down by row. If rows share a stream,
    each of their elements is looked at. Compilers do not unroll a loop with this body by themselves, and unrolling
    saves a quarter of its time. So does creating `rest` inside the function: the compiler then knows that nothing else
    writes through it.
    """

    def count_down(
        base: Bits,
        begin: UInt,
        end: UInt,
        right: UInt,
        streams: Bytes,
        left: Steps,
        queue: Steps,
        slots: Ints,
        positions: Positions,
        old: Bits,
        found: UInt,
    ) -> UInt:
        one = np.uint64(1)
        # `sharers[stream]` counts the rows of a stream. `rest[row]` is how many elements of the row come before its
        # next change, if the row alone makes up its stream, else 0. Stream 0 never changes, so its rows can all count
        # down the endless gap.
        rest, sharers = np.empty(streams.size, np.int32), np.zeros(left.size, np.int32)
        for stream in streams:
            sharers[stream] += 1
        for index in range(streams.size):
            stream = streams[index]
            rest[index] = left[stream] if sharers[stream] == 1 or not stream else 0
        i = begin
        while i < end:
            for _ in range(unrolled):
                row = np.uint64(base[i]) >> right
                rest[row] -= np.int32(1)
                if rest[row] < 0:
                    at = np.uint64(streams[row])
                    # A shared stream counts down in `left`; a stream of one row is at a change.
                    if sharers[at] > 1:
                        rest[row] = 0
                        left[at] -= np.int32(1)
                        if left[at] < 0:
                            positions[found] = i
                            old[found] = base[i]
                            found += one
                            left[at] = queue[np.uint64(slots[at])]
                            slots[at] += 1
                    else:
                        positions[found] = i
                        old[found] = base[i]
                        found += one
                        rest[row] = queue[np.uint64(slots[at])]
                        slots[at] += 1
                i += one
        # Hand the counts over to the next group, whose rows have other streams.
        for index in range(streams.size):
            if streams[index] and sharers[streams[index]] == 1:
                left[streams[index]] = rest[index]
        return found

    return kernel(count_down)


_by_fours, _by_ones = _counting_down(4), _counting_down(1)


@kernel
def replay(
    base: Bits,
    queue: Steps,
    bounds: Ints,
    shift: int,
    table: Bytes,
    left: Steps,
    slots: Ints,
    positions: Positions,
    old: Bits,
) -> int:
    """Invert `walk`: find the positions of the changes, in order, and the old elements there; return their number.

    `left[stream]` is the stream's first gap, and `queue[slots[stream]]` its next one. The last gap of each stream in
    the queue is longer than any span, so a stream never takes a gap of another one. `positions` has room for all other
    gaps.
    """
    right, found = np.uint64(shift), np.uint64(0)
    for group in range(bounds.size - 1):
        begin, end = np.uint64(bounds[group]), np.uint64(bounds[group + 1])
        # The unrolled loop takes a multiple of four elements, and a plain one the rest of the group.
        whole = end - (end - begin) % np.uint64(4)
        found = _by_fours(base, begin, whole, right, table[group], left, queue, slots, positions, old, found)
        found = _by_ones(base, whole, end, right, table[group], left, queue, slots, positions, old, found)
    return int(found)


@kernel
def sort_steps(old: Bits, steps: Steps, shift: int, width: int, slots: Ints, outward: Steps) -> None:
    """Write the steps as distances away from zero, sorted by exponent and then by position.

    A negative distance means towards zero.

    `slots[exponent]` is where the exponent's next step is written, and is advanced.
    """
    right, high = np.uint64(shift), np.uint64(width - 1)
    mask = (np.uint64(1) << (high - right)) - np.uint64(1)
    for i in range(old.size):
        bits = np.uint64(old[i])
        exponent, negative = (bits >> right) & mask, np.int64(bits >> high)
        # `(x ^ -n) + n` negates x if n is 1. On the number line, away from zero is down for a negative number.
        outward[np.uint64(slots[exponent])] = (np.int64(steps[i]) ^ -negative) + negative
        slots[exponent] += 1


@kernel
def apply_steps(old: Bits, outward: Steps, shift: int, width: int, slots: Ints, values: Bits) -> None:
    """Compute the new elements from the old ones and the sorted steps of `sort_steps`."""
    right, high, one = np.uint64(shift), np.uint64(width - 1), np.uint64(1)
    sign, exponents = one << high, (one << (high - right)) - one
    mask = sign | (sign - one)
    for i in range(old.size):
        bits = np.uint64(old[i])
        exponent, negative = (bits >> right) & exponents, np.int64(bits >> high)
        step = (np.int64(outward[np.uint64(slots[exponent])]) ^ -negative) + negative
        slots[exponent] += 1
        # To the number line, move, and back: see `find_changes`.
        key = ((bits ^ (sign | (mask & (np.uint64(0) - np.uint64(negative))))) + np.uint64(step)) & mask
        values[i] = key ^ (sign | (mask & (np.uint64(0) - (one - (key >> high)))))


@kernel
def scatter(target: Bits, positions: Positions, offset: int, values: Bits) -> None:
    """Write values at positions that count from `offset`, which may be negative."""
    for i in range(positions.size):
        target[np.int64(positions[i]) + offset] = values[i]


@kernel
def split_gaps(gaps: Positions, starts: Ints, shifts: Ints, last: int, tokens: Steps, counts: Ints) -> int:
    """Split the high part of each gap into tokens, stream by stream, and return the number of tokens.

    Stream s has the gaps `starts[s]` to `starts[s + 1]`; `counts[s]` receives its number of tokens.
    """
    written = 0
    for stream in range(starts.size - 1):
        before = written
        for slot in range(starts[stream], starts[stream + 1]):
            high = np.int64(gaps[slot]) >> shifts[stream]
            # The token `last` means "at least this, and more follows", so that a gap of exactly `last` ends with a 0.
            while high >= last:
                tokens[written] = last
                written += 1
                high -= last
            tokens[written] = high
            written += 1
        counts[stream] = written - before
    return written


@kernel
def join_gaps(tokens: Steps, starts: Ints, last: int, highs: Ints, counts: Ints) -> bool:
    """Invert `split_gaps`. Return False if a stream ends within a gap."""
    written = 0
    for stream in range(starts.size - 1):
        before, high, open_gap = written, np.int64(0), False
        for slot in range(starts[stream], starts[stream + 1]):
            high += tokens[slot]
            # A gap ends with the first token below `last`; a stream must not end before that.
            open_gap = tokens[slot] >= last
            if not open_gap:
                highs[written] = high
                written += 1
                high = np.int64(0)
        if open_gap:
            return False
        counts[stream] = written - before
    return True


@kernel
def split_steps(
    steps: Steps, ends: Ints, direct: int, tokens: Steps, rests: Positions, widths: Bytes, counts: Ints
) -> None:
    """Split steps into tokens and the raw bits of their magnitude.

    A token is 2 x magnitude class, plus 1 if the step is towards zero. The raw bits are those that the class leaves
    open.

    `counts[row, token]` counts the tokens of row r, which holds the steps from the end of the row before to
    `ends[row]`.
    """
    row = 0
    for i in range(steps.size):
        # A row may be empty, so that several may end here.
        while i >= ends[row]:
            row += 1
        inward = steps[i] < 0
        magnitude = -np.int64(steps[i]) if inward else np.int64(steps[i])
        kind, width = magnitude - 1, 0
        # Two classes per octave: the bit below the leading one selects the class, the `width` bits below it are raw.
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
    """Invert `split_steps`."""
    for i in range(tokens.size):
        kind = np.int64(tokens[i]) >> 1
        if kind < direct:
            magnitude = kind + 1
        else:
            # The leading bit and the class's bit below it, then the raw bits.
            half = (kind - direct) & 1
            width = ((kind - direct) >> 1) + 2
            magnitude = ((2 | half) << width) + np.int64(rests[i])
        steps[i] = -magnitude if tokens[i] & 1 else magnitude


@kernel
def pack(values: Positions, widths: Bytes, words: Positions) -> None:
    """Append the lowest `widths[i]` bits (at most 32) of each value to `words`, lowest bit first."""
    held, filled, at = np.uint64(0), 0, 0
    for i in range(values.size):
        # `held` has at most 31 bits from before and 32 new ones, which fit into 64.
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
    """Invert `pack`. `words` must hold enough bits."""
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
