"""Tables of step probabilities: which exponents share a table, and the entries of each.

A table has one entry for each magnitude class, or two (away from zero and towards zero) if the directions differ
enough. Entry c > 0 means that the token has weight 2^(c / 2); entry 0 means that it does not occur. The likeliest token
has the largest entry. A coarse table uses only every second entry value. Entries are sent as differences: to the entry
of the next smaller magnitude that occurs, or, for a step towards zero, to the entry of the same step away from zero.
Order in the stack, for each table:

    whether it is two-sided (two entries per class), u(2); whether it is coarse, u(2)
    number of magnitude classes less one, u(MAX_STEP_CLASS)
    entries: zigzag differences, or ABSENT

An optimizer's updates have similar sizes everywhere, so the steps of neighbouring exponents are alike and share tables.
The encoder cuts the exponents into runs with the least total price, by dynamic programming. Prices have
contexts.COST_BITS fraction bits.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.entropy import contexts
from periplus.codec.weights.entropy.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.entropy.kernels import Ints, kernel
from periplus.errors import CorruptFrame

MAX_CODE = contexts.CODE_LEVELS - 1
"""Largest entry; the likeliest token of a table has it."""

TABLE_BITS = 9
"""Approximate price in bits of a table's kind and size."""

ENTRY_BITS = 3
"""Approximate price in bits of an entry, used to decide which exponents share a table."""

MANY_ROWS = 24
"""Number of exponents with changes beyond which only fine two-sided tables are tried."""
MANY_STEPS = 10_000
"""Number of steps beyond which only fine two-sided tables are tried: they are within a thousandth of the best kind, and
trying all kinds takes too long."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Entries [classes, 1] if one-sided, else [classes, 2]: away from zero and towards zero."""

    codes: Ints
    coarse: bool

    def model(self) -> contexts.Model:
        """Return the model of the tokens, 2 x class + (1 if towards zero)."""
        weights = contexts.code_weights()
        both = np.broadcast_to(self.codes, (len(self.codes), 2)).ravel()
        return contexts.Model([weights[code] for code in both.tolist()])


@kernel
def _segments(counts: Ints, logarithms: Ints, one: int, entry: int, prices: Ints) -> None:
    """Compute `prices[i, j]`: the approximate price of coding rows i to j with a table of their own.

    It includes the price of the table's entries.

    The price of tokens is their empirical entropy, total log2(total) - sum of count log2(count). A logarithm is the bit
    length plus a lookup by the next eight bits.
    """
    total = np.zeros(counts.shape[1], np.int64)
    for first in range(counts.shape[0]):
        total[:] = 0
        # Adding row after row to `total` [tokens] gives the counts of each run first..last without summing it anew.
        for last in range(first, counts.shape[0]):
            used, entries, price = np.int64(0), np.int64(0), np.int64(0)
            for token in range(counts.shape[1]):
                total[token] += counts[last, token]
                count = total[token]
                if count:
                    length = 0
                    while count >> (length + 1):
                        length += 1
                    used += count
                    entries += 1
                    price -= count * (length * one + logarithms[((count << 8) >> length) & 255])
            length = 0
            while used >> (length + 1):
                length += 1
            price += used * (length * one + logarithms[((used << 8) >> length) & 255])
            # Three entries' worth of bits stand for the table's kind and size: TABLE_BITS / ENTRY_BITS.
            prices[first, last] = price + (entries + 3) * entry


def choose_classes(counts: Ints) -> list[tuple[list[int], Table]]:
    """Cut the rows of `counts` [rows, tokens] into runs that share a table.

    Return the rows and the table of each run.
    """
    # Rows without steps, and tokens beyond the last that occurs, take no part.
    used = np.flatnonzero(counts.any(axis=1))
    rows = np.ascontiguousarray(counts[used][:, : int(np.flatnonzero(counts.any(axis=0))[-1]) + 1])
    few = int(counts.sum()) <= MANY_STEPS and len(used) <= MANY_ROWS
    prices = _prices(counts[used]) if few else _rough_prices(rows)
    # least[j]: the least price of the first j rows; begins[j]: where its last run begins.
    least, begins = [0], [0]
    for last in range(len(used)):
        sums = np.array(least) + prices[: last + 1, last]
        begins.append(int(np.argmin(sums)))
        least.append(int(sums[begins[-1]]))
    cuts, end = [], len(used)
    while end:
        cuts.append(used[begins[end] : end].tolist())
        end = begins[end]
    groups = np.stack([counts[members].sum(axis=0).reshape(-1, 2) for members in cuts])
    tables = [_choose(group) for group in groups] if few else _fill(groups, False)
    return list(zip(cuts, tables, strict=True))[::-1]


def _rough_prices(rows: Ints) -> Ints:
    prices, one = np.zeros((len(rows), len(rows)), np.int64), 1 << contexts.COST_BITS
    _segments(rows, contexts.logarithms(), one, ENTRY_BITS * one, prices)
    return prices


def _prices(rows: Ints) -> Ints:
    """Return the price [rows, rows] of one coarse table, one-sided or two-sided, for rows i to j."""
    prices = np.zeros((len(rows), len(rows)), np.int64)
    for first in range(len(rows)):
        for last in range(first, len(rows)):
            counts = rows[first : last + 1].sum(axis=0).reshape(-1, 2)
            prices[first, last] = min(_price(table, counts) for table in _tries(counts, (True,)))
    return prices


def write(writer: SymbolWriter, table: Table) -> None:
    """Append one transmitted table of odds to the stack of symbols."""
    num_classes, sides = table.codes.shape
    writer.put_one(sides - 1, 2)
    writer.put_one(int(table.coarse), 2)
    writer.put_one(num_classes - 1, contexts.MAX_STEP_CLASS)
    writer.put(_to_symbols(table), contexts.entry_model(coarse=table.coarse))


def read(reader: SymbolReader) -> Table:
    """Invert `write`. Raises: CorruptFrame."""
    sides, coarse = reader.take_one(2) + 1, bool(reader.take_one(2))
    size = reader.take_one(contexts.MAX_STEP_CLASS) + 1
    symbols = reader.take(size * sides, contexts.entry_model(coarse=coarse))
    return _from_symbols(symbols.reshape(size, sides), coarse)


def _choose(counts: Ints) -> Table:
    """Return the cheapest kind of table for counts [classes, 2]."""
    tries = _tries(counts, (False, True))
    prices = [_price(table, counts) for table in tries]
    return tries[prices.index(min(prices))]


def _tries(counts: Ints, coarse: tuple[bool, ...]) -> list[Table]:
    """Return two-sided and one-sided tables of the given kinds."""
    return [_fill(sides[None], kind)[0] for sides in (counts, counts.sum(axis=1, keepdims=True)) for kind in coarse]


def _fill(counts: Ints, coarse: bool) -> list[Table]:
    """Return tables for counts [tables, classes, sides].

    An entry is the rounded distance to the largest count in units of half a log2 (a whole one if coarse), below
    MAX_CODE.
    """
    unit, one = 1 + coarse, 1 << contexts.COST_BITS
    logs = _logs(np.maximum(counts, 1))
    # [tables, classes, sides] distance of each count to the table's largest, rounded to the unit.
    below = (2 * (logs.max(axis=(1, 2), keepdims=True) - logs) // unit + one // 2) // one * unit
    codes = np.where(counts > 0, MAX_CODE - np.minimum(below, (MAX_CODE - 1) // unit * unit), 0)
    sizes = [int(np.flatnonzero(table.any(axis=1))[-1]) + 1 for table in codes]
    return [Table(codes=table[:size], coarse=coarse) for table, size in zip(codes, sizes, strict=True)]


def _logs(counts: Ints) -> Ints:
    """Return log2 of counts >= 1 as prices, from eight bits of the mantissa."""
    mantissas, exponents = np.frexp(counts.astype(np.float64))
    fractions = contexts.logarithms()[(mantissas * 512).astype(np.int64) - 256]
    return np.asarray(((exponents.astype(np.int64) - 1) << contexts.COST_BITS) + fractions)


def _price(table: Table, counts: Ints) -> int:
    """Return the price of the counted tokens and of the table's entries."""
    weights = contexts.code_weights()
    # A one-sided table has the same entry for both directions.
    both = np.broadcast_to(table.codes, (len(table.codes), 2)).ravel().tolist()
    total = contexts.log2(sum(weights[code] for code in both))
    tokens = counts.ravel().tolist()[: len(both)]
    price = sum(
        count * (total - contexts.log2(weights[code])) for count, code in zip(tokens, both, strict=True) if count
    )
    price += int(contexts.entry_costs(coarse=table.coarse)[_to_symbols(table)].sum())
    return price + (TABLE_BITS << contexts.COST_BITS)


def _to_symbols(table: Table) -> npt.NDArray[np.int32]:
    """Return the table's entries as zigzag differences and ABSENT."""
    unit, absent = 1 + table.coarse, _absent(table.coarse)
    # `before` is the entry of the next smaller magnitude that occurs; the likeliest token stands before the first.
    symbols, before = [], MAX_CODE
    for kind in table.codes.tolist():
        expected = before
        for side, code in enumerate(kind):
            if not code:
                symbols.append(absent)
                continue
            delta = (code - expected) // unit
            symbols.append(2 * delta if delta >= 0 else -2 * delta - 1)
            # The second side is expected to equal the first.
            expected = code
            # The next class is expected to equal the entry away from zero, or the other one if that does not occur.
            if side == 0 or not kind[0]:
                before = code
    return np.array(symbols, np.int32)


def _from_symbols(symbols: npt.NDArray[np.int32], coarse: bool) -> Table:
    """Invert `_to_symbols`. Raises: CorruptFrame for an entry out of range or a table without entries."""
    codes = [[0] * symbols.shape[1] for _ in range(symbols.shape[0])]
    before, unit, absent = MAX_CODE, 1 + coarse, _absent(coarse)
    for kind, sides in enumerate(symbols.tolist()):
        expected = before
        for side, symbol in enumerate(sides):
            if symbol == absent:
                continue
            # Undo the zigzag: odd symbols are negative differences.
            code = expected + unit * (-(symbol + 1) // 2 if symbol & 1 else symbol // 2)
            if not 1 <= code <= MAX_CODE:
                raise CorruptFrame(f"a table's entry is {code}; expected 1 to {MAX_CODE}")
            codes[kind][side] = expected = code
            if side == 0 or not codes[kind][0]:
                before = code
    if not any(map(any, codes)):
        raise CorruptFrame("a table has no entries")
    return Table(codes=np.array(codes, np.int64), coarse=coarse)


def _absent(coarse: bool) -> int:
    return 2 * (MAX_CODE // (1 + coarse)) + 1
