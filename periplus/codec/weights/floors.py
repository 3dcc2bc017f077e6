"""Lower bounds on the size of a delta: entropies of what changed, for people and benchmarks.

No wire byte depends on them.

The bounds (*floors*) cover the BF16, F16 and F32 tensors that both states hold with one layout. Let n be the number of
elements and k the number of changed ones. A step is the signed difference of two floats on the ordered number line of
their bit patterns. H of counts is their empirical entropy. All floors but the last assume that the probabilities
are known to the reader for nothing.

- `iid_bits` = n H(k/n) + k H(step), over the whole state. A code that ignores the values of the base cannot do better.
- `conditional_bits` = the same sum within each pair (tensor, exponent of the base), added up over pairs.
- `step_entropy_bits` = n H(step, with 0 for no change) given tensor and exponent. By the chain rule of entropy it
  equals `conditional_bits`. It has a name of its own because dense deltas are compared with it.
- `conditional_with_tables_bits` also pays for the probabilities: half a log2 of the number of observations per
  parameter (Rissanen 1983, "A universal prior for integers and estimation by minimum description length"). The odds are
  one parameter of n observations. Each distinct step beyond the first is one of k observations. For each exponent the
  cheaper of two choices counts: every tensor has its own parameters, or all tensors share them. The price is
  asymptotic, for many observations; a context of one element pays neither for its change nor for naming its step.

Tensors are read in pieces, and only a histogram of them is kept. Memory grows with the number of distinct (tensor,
exponent, step), not with the state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import Tensor, WeightState

MANTISSA_BITS = {"BF16": 7, "F16": 10, "F32": 23}
"""Bits of mantissa of each dtype that is treated as a float. Other dtypes have no ordered number line of floats."""

PIECE_ELEMENTS = 1 << 20
"""Elements that are compared at a time, so that intermediate arrays stay in the processor's cache. Chosen by hand."""

_STEP_RANGE = 1 << 33
"""Stride that separates exponents in the combined key of (exponent, step). It exceeds the range of 32-bit steps."""

_Ints = npt.NDArray[np.int64]
_Bits = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Lower bounds of one delta in bits; the module's docstring defines each."""

    iid_bits: float
    conditional_bits: float
    conditional_with_tables_bits: float
    step_entropy_bits: float
    num_changed: int
    num_elements: int


@dataclass(frozen=True, slots=True)
class _Context:
    """The elements of one exponent in one tensor: their number, their distinct steps, and the count of each step."""

    num_elements: int
    steps: _Ints
    counts: _Ints

    @property
    def num_changed(self) -> int:
        return int(self.counts.sum())

    @property
    def entropy_bits(self) -> float:
        changed = self.num_changed
        return _entropy_bits(np.array([changed, self.num_elements - changed])) + _entropy_bits(self.counts)

    @property
    def table_bits(self) -> float:
        # Half a logarithm for each free parameter, as in the minimum description length: the odds, and the steps less
        # one.
        odds = 0.5 * log2(self.num_elements)
        return odds + (len(self.counts) - 1) * 0.5 * log2(self.num_changed) if len(self.counts) else odds


def floors(base: WeightState, new: WeightState) -> Floors:
    """Return the lower bounds of one delta. All are zero if no float tensor is in both states."""
    by_exponent = _by_exponent(base, new)
    everything = [context for group in by_exponent.values() for context in group]
    # The conditional bound knows exponent and tensor of each element; the i.i.d. bound knows neither.
    conditional_bits = sum(context.entropy_bits for context in everything)
    whole = _tie(everything)
    return Floors(
        iid_bits=whole.entropy_bits if everything else 0.0,
        conditional_bits=conditional_bits,
        conditional_with_tables_bits=sum(_cheapest_tying(group) for group in by_exponent.values()),
        step_entropy_bits=conditional_bits,
        num_changed=whole.num_changed,
        num_elements=whole.num_elements,
    )


def _by_exponent(base: WeightState, new: WeightState) -> dict[tuple[str, int], list[_Context]]:
    """Return the contexts of all common float tensors, grouped by (dtype, exponent)."""
    found: dict[tuple[str, int], list[_Context]] = {}
    for name in sorted(base.keys() & new.keys()):
        old, tensor = base[name], new[name]
        if (old.dtype, old.shape) == (tensor.dtype, tensor.shape) and tensor.dtype in MANTISSA_BITS:
            for exponent, context in _contexts(old, tensor):
                found.setdefault((tensor.dtype, exponent), []).append(context)
    return found


def _contexts(base: Tensor, new: Tensor) -> Iterator[tuple[int, _Context]]:
    """Yield (exponent, context) for each exponent of one tensor that occurs in the base."""
    mantissa_bits = MANTISSA_BITS[base.dtype]
    num_exponents = 1 << (8 * ELEMENT_BYTES[base.dtype] - 1 - mantissa_bits)
    sizes, found = np.zeros(num_exponents, np.int64), []
    for start in range(0, base.num_elements, PIECE_ELEMENTS):
        old, now = _bits(base)[start : start + PIECE_ELEMENTS], _bits(new)[start : start + PIECE_ELEMENTS]
        # [num_exponents] elements of each exponent. Row = sign and exponent, and both signs are added up.
        sizes += np.bincount(old >> mantissa_bits, minlength=2 * num_exponents).reshape(2, -1).sum(axis=0)
        changed = np.flatnonzero(old != now)
        exponents = (old[changed] >> mantissa_bits).astype(np.int64) % num_exponents
        # One integer key per change, sorted by exponent and then by step. The step is shifted to be positive.
        pairs = exponents * _STEP_RANGE + steps_between(old[changed], now[changed]) + _STEP_RANGE // 2
        found.append(np.unique(pairs, return_counts=True))
    pairs, counts = _merged(found)
    bounds = np.searchsorted(pairs, np.arange(num_exponents + 1) * _STEP_RANGE)
    for exponent in np.flatnonzero(sizes).tolist():
        which = slice(bounds[exponent], bounds[exponent + 1])
        steps = pairs[which] % _STEP_RANGE - _STEP_RANGE // 2
        yield exponent, _Context(int(sizes[exponent]), steps, counts[which])


def steps_between(old: _Bits, new: _Bits) -> _Ints:
    """Return the signed differences `new - old` on the ordered number line, modulo its length."""
    modulus = 1 << (8 * old.itemsize)
    steps = (_keys(new, modulus) - _keys(old, modulus)) % modulus
    return np.where(steps >= modulus // 2, steps - modulus, steps)


def _keys(bits: _Bits, modulus: int) -> _Ints:
    """Return the place of each bit pattern on the ordered number line: negative floats reversed below positive ones."""
    bits_64, sign = bits.astype(np.int64), modulus // 2
    return np.where(bits_64 & sign, (modulus - 1) ^ bits_64, bits_64 | sign)


def _bits(tensor: Tensor) -> _Bits:
    return tensor.data.view(f"<u{ELEMENT_BYTES[tensor.dtype]}")


def _tie(contexts: list[_Context]) -> _Context:
    """Return the one context that several contexts make together."""
    steps, counts = _merged([(context.steps, context.counts) for context in contexts])
    return _Context(sum(context.num_elements for context in contexts), steps, counts)


def _merged(histograms: list[tuple[_Ints, _Ints]]) -> tuple[_Ints, _Ints]:
    """Merge histograms of (distinct values, counts) into one."""
    nothing = np.zeros(0, np.int64)
    values = np.concatenate([nothing, *(values for values, _ in histograms)])
    counts = np.concatenate([nothing, *(counts for _, counts in histograms)])
    # Sort by value, then add up the counts of each run of equal values.
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    return distinct, np.add.reduceat(counts[order], starts) if len(starts) else nothing


def _cheapest_tying(contexts: list[_Context]) -> float:
    # The tensors of one exponent either have a table each or share one, whichever is shorter.
    tied = _tie(contexts)
    apart = sum(context.entropy_bits + context.table_bits for context in contexts)
    return min(apart, tied.entropy_bits + tied.table_bits)


def _entropy_bits(counts: _Ints) -> float:
    seen = counts[counts > 0]
    return float(np.sum(seen * np.log2(seen.sum() / seen))) if len(seen) else 0.0
