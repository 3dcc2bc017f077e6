"""Tables of steps: which exponents share one, and the entries of each.

A table has an entry for each class of magnitude, or two, away from zero and towards it, where these differ enough. An
entry c > 0 says that the token weighs 2^(c / 2), 0 that it does not occur; the likeliest has the largest code. A coarse
table has every second code only. Entries are sent as differences: to that of the next smaller magnitude that occurs,
or, for a step towards zero, to that of the same step away from it. On the wire, for each table:

    whether it is one-sided (one entry for both signs), u(2); whether it is coarse, u(2)
    number of classes of magnitude less one, u(MAX_STEP_CLASS)
    entries: zigzag differences, or ABSENT

Updates have one size, so that steps of exponents next to each other are alike: tables are shared by neighbours.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from periplus.codec.weights import contexts
from periplus.codec.weights.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.kernels import Ints, kernel
from periplus.errors import CorruptFrame

MAX_CODE = contexts.CODE_LEVELS - 1

TABLE_BITS = 9
"""Of a table's kind and size."""

ENTRY_BITS = 3
"""About the price of an entry, to decide which exponents share a table."""

MANY_ROWS = 24
MANY_STEPS = 10_000
"""From here on a fine two-sided table is within a thousandth of the best kind, and trying all takes too long."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Entries: [classes, 1] if one-sided, else [classes, 2] away from zero and towards it."""

    codes: Ints
    coarse: bool

    def model(self) -> contexts.Model:
        """Of the tokens, 2 x class + (1 if towards zero)."""
        weights = contexts.code_weights()
        both = np.broadcast_to(self.codes, (len(self.codes), 2)).ravel()
        return contexts.Model([weights[code] for code in both.tolist()])


@kernel
def _segments(counts: Ints, logarithms: Ints, one: int, entry: int, prices: Ints) -> None:
    """prices[i, j]: about what the tokens of rows i to j cost with a table of their own, and its entries."""
    total = np.zeros(counts.shape[1], np.int64)
    for first in range(counts.shape[0]):
        total[:] = 0
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
            prices[first, last] = price + (entries + 3) * entry


def choose_classes(counts: Ints) -> list[tuple[list[int], Table]]:
    """Which rows of counts [rows, tokens] share a table, and the table of each: the cheapest cut of the rows."""
    used = np.flatnonzero(counts.any(axis=1))
    rows = np.ascontiguousarray(counts[used][:, : int(np.flatnonzero(counts.any(axis=0))[-1]) + 1])
    few = int(counts.sum()) <= MANY_STEPS and len(used) <= MANY_ROWS
    prices = _prices(counts[used]) if few else _rough_prices(rows)
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
    """Of one table for rows i to j."""
    prices = np.zeros((len(rows), len(rows)), np.int64)
    for first in range(len(rows)):
        for last in range(first, len(rows)):
            counts = rows[first : last + 1].sum(axis=0).reshape(-1, 2)
            prices[first, last] = min(_price(table, counts) for table in _tries(counts, (True,)))
    return prices


def write(writer: SymbolWriter, table: Table) -> None:
    """Append one table."""
    num_classes, sides = table.codes.shape
    writer.put_one(sides - 1, 2)
    writer.put_one(int(table.coarse), 2)
    writer.put_one(num_classes - 1, contexts.MAX_STEP_CLASS)
    writer.put(_to_symbols(table), contexts.entry_model(coarse=table.coarse))


def read(reader: SymbolReader) -> Table:
    """The inverse of write. Raises: CorruptFrame."""
    sides, coarse = reader.take_one(2) + 1, bool(reader.take_one(2))
    size = reader.take_one(contexts.MAX_STEP_CLASS) + 1
    symbols = reader.take(size * sides, contexts.entry_model(coarse=coarse))
    return _from_symbols(symbols.reshape(size, sides), coarse)


def _choose(counts: Ints) -> Table:
    """The cheapest kind of table for counts [classes, 2]."""
    tries = _tries(counts, (False, True))
    prices = [_price(table, counts) for table in tries]
    return tries[prices.index(min(prices))]


def _tries(counts: Ints, coarse: tuple[bool, ...]) -> list[Table]:
    """Two-sided and one-sided tables."""
    return [_fill(sides[None], kind)[0] for sides in (counts, counts.sum(axis=1, keepdims=True)) for kind in coarse]


def _fill(counts: Ints, coarse: bool) -> list[Table]:
    """Tables for counts [tables, classes, sides]; entries below the largest are in steps of one or two."""
    unit, one = 1 + coarse, 1 << contexts.COST_BITS
    logs = _logs(np.maximum(counts, 1))
    below = (2 * (logs.max(axis=(1, 2), keepdims=True) - logs) // unit + one // 2) // one * unit
    codes = np.where(counts > 0, MAX_CODE - np.minimum(below, (MAX_CODE - 1) // unit * unit), 0)
    sizes = [int(np.flatnonzero(table.any(axis=1))[-1]) + 1 for table in codes]
    return [Table(codes=table[:size], coarse=coarse) for table, size in zip(codes, sizes, strict=True)]


def _logs(counts: Ints) -> Ints:
    """log2 of counts >= 1, to eight bits of the mantissa."""
    mantissas, exponents = np.frexp(counts.astype(np.float64))
    fractions = contexts.logarithms()[(mantissas * 512).astype(np.int64) - 256]
    return np.asarray(((exponents.astype(np.int64) - 1) << contexts.COST_BITS) + fractions)


def _price(table: Table, counts: Ints) -> int:
    """Of the counted tokens and of the entries."""
    weights = contexts.code_weights()
    both = np.broadcast_to(table.codes, (len(table.codes), 2)).ravel().tolist()
    total = contexts.log2(sum(weights[code] for code in both))
    tokens = counts.ravel().tolist()[: len(both)]
    price = sum(
        count * (total - contexts.log2(weights[code])) for count, code in zip(tokens, both, strict=True) if count
    )
    price += int(contexts.entry_costs(coarse=table.coarse)[_to_symbols(table)].sum())
    return price + (TABLE_BITS << contexts.COST_BITS)


def _to_symbols(table: Table) -> npt.NDArray[np.int32]:
    unit, absent = 1 + table.coarse, _absent(table.coarse)
    symbols, before = [], MAX_CODE
    for kind in table.codes.tolist():
        expected = before
        for side, code in enumerate(kind):
            if not code:
                symbols.append(absent)
                continue
            delta = (code - expected) // unit
            symbols.append(2 * delta if delta >= 0 else -2 * delta - 1)
            expected = code
            if side == 0 or not kind[0]:
                before = code
    return np.array(symbols, np.int32)


def _from_symbols(symbols: npt.NDArray[np.int32], coarse: bool) -> Table:
    codes = [[0] * symbols.shape[1] for _ in range(symbols.shape[0])]
    before, unit, absent = MAX_CODE, 1 + coarse, _absent(coarse)
    for kind, sides in enumerate(symbols.tolist()):
        expected = before
        for side, symbol in enumerate(sides):
            if symbol == absent:
                continue
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
