"""Coding of the steps of a large span by transmitted tables; adaptive.py codes those of small spans.

A step says how far a changed element moved, away from zero or towards it. Neighbouring exponents may share a table
(tables.py). Order in the stack:

    for each exponent that has changes, in rising order, but the first: whether a new table begins   u(2)
    for each table: its entries (tables.py)
    tokens, exponent by exponent; the reader knows by now where the changes are
    the low bits of each step's magnitude, as late bits

u(n) is a uniform symbol below n.
"""

import numpy as np

from periplus.codec.weights.entropy import contexts, kernels, tables
from periplus.codec.weights.entropy.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.entropy.kernels import Ints, Steps


def write(writer: SymbolWriter, outward: Steps, per_exponent: Ints) -> None:
    """Append the steps. `outward` is sorted by exponent, and `per_exponent` counts the steps of each exponent."""
    tokens, rests = np.empty_like(outward), np.empty(len(outward), np.uint32)
    widths = np.empty(len(outward), np.uint8)
    counts = np.zeros((len(per_exponent), contexts.NUM_STEP_TOKENS), np.int64)
    kernels.split_steps(outward, np.cumsum(per_exponent), contexts.DIRECT_STEPS, tokens, rests, widths, counts)
    # Neighbouring exponents that share a table form a class: (exponents, table).
    classes = tables.choose_classes(counts)
    for number, (members, _) in enumerate(classes):
        for exponent in members:
            # The very first exponent always begins a table, so that its symbol is left out.
            if number or exponent != members[0]:
                writer.put_one(int(exponent == members[0]), 2)
    for _, table in classes:
        tables.write(writer, table)
    # The tokens are sorted by exponent, so that each class is one run of them.
    start = 0
    for members, table in classes:
        end = start + int(per_exponent[members].sum())
        writer.put(tokens[start:end], table.model())
        start = end
    writer.put_late_bits(rests, widths)


def read(reader: SymbolReader, per_exponent: Ints) -> Steps:
    """Invert `write`. Raises: CorruptFrame."""
    # Number of steps of each table.
    sizes: list[int] = []
    for exponent in np.flatnonzero(per_exponent):
        if not sizes or reader.take_one(2):
            sizes.append(0)
        sizes[-1] += int(per_exponent[exponent])
    models = [tables.read(reader).model() for _ in sizes]
    tokens = [np.zeros(0, np.int32)]
    tokens += [reader.take(count, model) for count, model in zip(sizes, models, strict=True)]
    joined = np.concatenate(tokens)
    rests = reader.take_late_bits(contexts.step_widths()[joined])
    outward = np.empty(len(joined), np.int32)
    kernels.join_steps(joined, rests, contexts.DIRECT_STEPS, outward)
    return outward
