"""Gaps on the wire: how many unchanged elements of a level lie before each change of that level. In the stack:

    for each level that a cell has, in rising order, how many tokens it has:
        the number's length in bits        zigzag of the difference to the level before
        its bits below the leading one     a number
    tokens, level by level                 contexts.gap_model
    the low bits of each gap               early bits

Gaps run on from tensor to tensor of the span, so a level has no end but its number of tokens.
"""

import numpy as np

from periplus.codec.weights import contexts, kernels
from periplus.codec.weights.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.kernels import Ints, Positions
from periplus.codec.weights.level_map import unzigzag, zigzag
from periplus.errors import CorruptFrame

MAX_COUNT_BITS = 27
"""Of the number of a level's tokens: a span of 64 MiB has 2^26 elements at most that may change."""


def write(writer: SymbolWriter, used: list[int], gaps: Positions, per_level: Ints) -> None:
    """Append gaps that stand in the order of levels; `used` are the levels that cells have."""
    shifts = contexts.gap_shifts()
    starts = np.concatenate([[0], np.cumsum(per_level)])
    widths = np.repeat(shifts.astype(np.uint8), per_level)
    most = len(gaps) + int((gaps >> widths).sum(dtype=np.int64)) // contexts.LAST_GAP
    tokens, num_tokens = np.empty(most, np.int32), np.zeros_like(per_level)
    kernels.split_gaps(gaps, starts, shifts, contexts.LAST_GAP, tokens, num_tokens)
    _write_counts(writer, [int(num_tokens[level]) for level in used])
    at = 0
    for level in used:
        writer.put(tokens[at : at + num_tokens[level]], contexts.gap_model(level))
        at += int(num_tokens[level])
    writer.put_early_bits(gaps, widths)


def read(reader: SymbolReader, used: list[int], num_elements: int) -> tuple[Positions, Ints]:
    """The gaps and how many each level has. Raises: CorruptFrame."""
    num_tokens = np.zeros(contexts.MAX_LEVEL + 1, np.int64)
    num_tokens[used] = _read_counts(reader, len(used), num_elements + num_elements // contexts.LAST_GAP)
    tokens = [np.zeros(0, np.int32)]
    tokens += [reader.take(int(num_tokens[level]), contexts.gap_model(level)) for level in used]
    starts = np.concatenate([[0], np.cumsum(num_tokens)])
    highs, per_level = np.empty(starts[-1], np.int64), np.zeros_like(num_tokens)
    if not kernels.join_gaps(np.concatenate(tokens), starts, contexts.LAST_GAP, highs, per_level):
        raise CorruptFrame("the tokens of a level end amid a gap; fetch the part again")
    shifts = np.repeat(contexts.gap_shifts(), per_level)
    gaps = highs[: len(shifts)] << shifts
    gaps |= reader.take_early_bits(shifts.astype(np.uint8))
    if len(gaps) > num_elements or (len(gaps) and int(gaps.max()) >= num_elements):
        raise CorruptFrame(f"{len(gaps)} gaps, one of {int(gaps.max())}, in a span of {num_elements} elements")
    return gaps.astype(np.uint32), per_level


def _write_counts(writer: SymbolWriter, counts: list[int]) -> None:
    lengths = [count.bit_length() for count in counts]
    rises = np.array(lengths, np.int64) - np.array([0, *lengths[:-1]], np.int64)
    writer.put(zigzag(rises, MAX_COUNT_BITS), _length_model())
    for count, length in zip(counts, lengths, strict=True):
        if length > 1:
            writer.put_number(count - (1 << (length - 1)), length - 1)


def _read_counts(reader: SymbolReader, num_levels: int, most: int) -> list[int]:
    lengths = np.cumsum(unzigzag(reader.take(num_levels, _length_model()), MAX_COUNT_BITS)).tolist()
    counts = []
    for length in lengths:
        if not 0 <= length <= MAX_COUNT_BITS:
            raise CorruptFrame(f"a number of tokens of {length} bits; at most {MAX_COUNT_BITS}")
        counts.append(reader.take_number(length - 1) + (1 << (length - 1)) if length > 1 else length)
    if sum(counts) > most:
        raise CorruptFrame(f"{sum(counts)} tokens of gaps in a span; at most {most}")
    return counts


def _length_model() -> contexts.Model:
    return contexts.residual_model(0, MAX_COUNT_BITS, with_never=False)
