"""Coding of change positions in a large span: the number of unchanged elements (gap) before each change of a stream.

A *stream* is a pair of level and sign. Signs say nothing about changes. But with signs apart, the rows (sign and
exponent) of one tensor rarely share a stream, so elements can be counted by row without looking the stream up. Streams
are ordered by level, then sign (positive first). Gaps run on from tensor to tensor of the span, so only its number of
tokens ends a stream.

Order in the stack:

    for each stream that some cell uses, in rising order, its number of tokens:
        the number's length in bits        zigzag of the difference to the stream before
    the bits below their leading ones      one number, the first stream's lowest
    tokens, stream by stream               contexts.gap_model of its level
    the low bits of each gap               early bits
"""

import numpy as np

from periplus.codec.weights.entropy import contexts, kernels
from periplus.codec.weights.entropy.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.entropy.kernels import Bytes, Ints, Positions
from periplus.codec.weights.entropy.level_map import unzigzag, zigzag
from periplus.errors import CorruptFrame

MAX_COUNT_BITS = 27
"""Most bits of a stream's number of tokens. A span of 64 MiB has at most 2^25 elements of two bytes, and each may
change."""

NUM_STREAMS = 2 * (contexts.MAX_LEVEL + 1)
"""Number of streams, including the two of level 0, which have no gaps."""


def streams(table: Bytes) -> Bytes:
    """Return the stream [G, rows] of each row from its level: 2 x level + sign, or 0 for all rows that never change."""
    half = table.shape[1] // 2
    signs = np.arange(table.shape[1]) >= half
    return np.where(table > 0, 2 * table + signs, 0).astype(np.uint8)


def write(writer: SymbolWriter, used: list[int], gaps: Positions, per_stream: Ints) -> None:
    """Append the gaps between changed elements to the stack of symbols.

    `gaps` is sorted by stream, `per_stream` [NUM_STREAMS] counts them; `used` are the levels that occur.
    """
    # Each gap is a raw low part of a width that its level fixes, and a high part that becomes one or more tokens.
    shifts = np.repeat(contexts.gap_shifts(), 2)
    starts = np.concatenate([[0], np.cumsum(per_stream)])
    widths = np.repeat(shifts.astype(np.uint8), per_stream)
    most = len(gaps) + int((gaps >> widths).sum(dtype=np.int64)) // contexts.LAST_GAP
    tokens, num_tokens = np.empty(most, np.int32), np.zeros_like(per_stream)
    kernels.split_gaps(gaps, starts, shifts, contexts.LAST_GAP, tokens, num_tokens)
    _write_counts(writer, num_tokens[_of_levels(used)].tolist())
    ends = np.cumsum(num_tokens)
    for level in used:
        writer.put(tokens[ends[2 * level - 1] : ends[2 * level + 1]], contexts.gap_model(level))
    writer.put_early_bits(gaps, widths)


def read(reader: SymbolReader, used: list[int], num_elements: int) -> tuple[Positions, Ints]:
    """Invert `write`: return the gaps, sorted by stream, and the number of gaps of each stream.

    Raises: CorruptFrame.
    """
    num_tokens = np.zeros(NUM_STREAMS, np.int64)
    # No encoder writes more tokens: one per gap, and one per LAST_GAP elements.
    most = num_elements + num_elements // contexts.LAST_GAP
    num_tokens[_of_levels(used)] = _read_counts(reader, 2 * len(used), most)
    # Both signs of a level share a model, so their tokens are decoded together.
    of_both = num_tokens.reshape(-1, 2).sum(axis=1)
    tokens = [np.zeros(0, np.int32)]
    tokens += [reader.take(int(of_both[level]), contexts.gap_model(level)) for level in used]
    starts = np.concatenate([[0], np.cumsum(num_tokens)])
    highs, per_stream = np.empty(starts[-1], np.int64), np.zeros_like(num_tokens)
    if not kernels.join_gaps(np.concatenate(tokens), starts, contexts.LAST_GAP, highs, per_stream):
        raise CorruptFrame("the tokens of a stream end amid a gap; fetch the part again")
    shifts = np.repeat(np.repeat(contexts.gap_shifts(), 2), per_stream)
    gaps = highs[: len(shifts)] << shifts
    gaps |= reader.take_early_bits(shifts.astype(np.uint8))
    if len(gaps) > num_elements or (len(gaps) and int(gaps.max()) >= num_elements):
        raise CorruptFrame(f"{len(gaps)} gaps, one of {int(gaps.max())}, in a span of {num_elements} elements")
    return gaps.astype(np.uint32), per_stream


def _of_levels(used: list[int]) -> list[int]:
    return [2 * level + sign for level in used for sign in (0, 1)]


def _write_counts(writer: SymbolWriter, counts: list[int]) -> None:
    """Append the numbers of tokens: bit lengths as differences, then all bits below the leading ones as one number."""
    # The numbers of tokens of neighbouring levels are alike, so that differences of their bit lengths are small.
    lengths = [count.bit_length() for count in counts]
    rises = np.array(lengths, np.int64) - np.array([0, *lengths[:-1]], np.int64)
    writer.put(zigzag(rises, MAX_COUNT_BITS), _length_model())
    lows, num_bits = 0, 0
    for count, length in zip(counts, lengths, strict=True):
        if length > 1:
            lows |= (count - (1 << (length - 1))) << num_bits
            num_bits += length - 1
    writer.put_number(lows, num_bits)


def _read_counts(reader: SymbolReader, num_streams: int, most: int) -> list[int]:
    lengths = np.cumsum(unzigzag(reader.take(num_streams, _length_model()), MAX_COUNT_BITS)).tolist()
    if not all(0 <= length <= MAX_COUNT_BITS for length in lengths):
        raise CorruptFrame(f"numbers of tokens of {max(lengths)} bits; at most {MAX_COUNT_BITS}")
    lows, counts = reader.take_number(sum(length - 1 for length in lengths if length > 1)), []
    # The leading one bit is implied by the length; the bits below it are in `lows`, the first stream's lowest.
    for length in lengths:
        width = max(length - 1, 0)
        counts.append((lows & ((1 << width) - 1)) | (1 << width) if length else 0)
        lows >>= width
    if sum(counts) > most:
        raise CorruptFrame(f"{sum(counts)} tokens of gaps in a span; at most {most}")
    return counts


def _length_model() -> contexts.Model:
    return contexts.residual_model(0, MAX_COUNT_BITS, with_never=False)
