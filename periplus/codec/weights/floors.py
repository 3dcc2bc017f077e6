"""How few bits a delta could take: entropies of what changed, for people and benchmarks. No wire bytes depend on it.

Over the tensors of BF16, F16 and F32 that both states hold with one layout. n elements, k of them changed; a step is
the signed difference on the ordered number line. H of counts is the empirical entropy, so every floor below but the
last two knows its tables for nothing.

- `iid_bits` = n H(k/n) + k H(step), over the whole state: what a code reaches that ignores the base's values.
- `conditional_bits` = the same sum within each (tensor, exponent of the base), added up.
- `step_entropy_bits` = n H(step, zero included) given tensor and exponent. By the chain rule of entropy this is
  `conditional_bits` again; it has a name of its own because the dense regime is judged by it.
- `conditional_with_tables_bits` pays for the tables: half a log2 of the observations a parameter (Rissanen 1983, "A
  universal prior for integers and estimation by minimum description length"), one parameter of n elements for the
  odds and one of k changes for each distinct step beyond the first. For each exponent the cheaper of two tyings counts:
  every tensor for itself, or all tensors together. The price holds for many observations; a context of one element
  pays nothing for its change, nor for naming its step.
- `adaptive_floor_bits` pays for the tables exactly: the length of the adaptive code of Krichevsky and Trofimov
  1981 ("The performance of universal encoding"), to which the price above is an approximation, for the changes of a
  context and for its steps, whose alphabet (that of the exponent) is known for nothing. Tied as above.

Tensors are read piece by piece, and what is kept of them is a histogram: memory grows with the number of distinct
(tensor, exponent, step), not with the state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lgamma, log, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.state import ELEMENT_BYTES, State, Tensor

MANTISSA_BITS = {"BF16": 7, "F16": 10, "F32": 23}
"""Of the dtypes that have exponents; the rest is no number line of floats."""

PIECE_ELEMENTS = 1 << 20
"""Looked at together: what is made of them stays in the processor's cache."""

_STEP_RANGE = 1 << 33
"""More than the steps between two numbers of 32 bits."""

_Ints = npt.NDArray[np.int64]
_Bits = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Bits of a whole delta; see the module."""

    iid_bits: float
    conditional_bits: float
    conditional_with_tables_bits: float
    step_entropy_bits: float
    num_changed: int
    num_elements: int


@dataclass(frozen=True, slots=True)
class _Context:
    """The elements of one exponent in one tensor: how many, their distinct steps, and how often each occurs."""

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
        odds = 0.5 * log2(self.num_elements)
        return odds + (len(self.counts) - 1) * 0.5 * log2(self.num_changed) if len(self.counts) else odds

    def adaptive_bits(self, num_steps: int) -> float:
        """Of an adaptive code that knows how many distinct steps there may be."""
        changed = self.num_changed
        return _adaptive_bits([changed, self.num_elements - changed], 2) + _adaptive_bits(
            self.counts.tolist(), num_steps
        )


def floors(base: State, new: State) -> Floors:
    """The floors of one delta; all zero where no tensor of floats is in both."""
    by_exponent = _by_exponent(base, new)
    everything = [context for group in by_exponent.values() for context in group]
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


def adaptive_floor_bits(base: State, new: State) -> float:
    """The conditional floor with its tables paid for exactly; see the module."""
    return sum(_cheapest_adaptive(group) for group in _by_exponent(base, new).values())


def _by_exponent(base: State, new: State) -> dict[tuple[str, int], list[_Context]]:
    found: dict[tuple[str, int], list[_Context]] = {}
    for name in sorted(base.keys() & new.keys()):
        old, tensor = base[name], new[name]
        if (old.dtype, old.shape) == (tensor.dtype, tensor.shape) and tensor.dtype in MANTISSA_BITS:
            for exponent, context in _contexts(old, tensor):
                found.setdefault((tensor.dtype, exponent), []).append(context)
    return found


def _contexts(base: Tensor, new: Tensor) -> Iterator[tuple[int, _Context]]:
    mantissa_bits = MANTISSA_BITS[base.dtype]
    num_exponents = 1 << (8 * ELEMENT_BYTES[base.dtype] - 1 - mantissa_bits)
    sizes, found = np.zeros(num_exponents, np.int64), []
    for start in range(0, base.num_elements, PIECE_ELEMENTS):
        old, now = _bits(base)[start : start + PIECE_ELEMENTS], _bits(new)[start : start + PIECE_ELEMENTS]
        sizes += np.bincount(old >> mantissa_bits, minlength=2 * num_exponents).reshape(2, -1).sum(axis=0)
        changed = np.flatnonzero(old != now)
        exponents = (old[changed] >> mantissa_bits).astype(np.int64) % num_exponents
        pairs = exponents * _STEP_RANGE + steps_between(old[changed], now[changed]) + _STEP_RANGE // 2
        found.append(np.unique(pairs, return_counts=True))
    pairs, counts = _merged(found)
    bounds = np.searchsorted(pairs, np.arange(num_exponents + 1) * _STEP_RANGE)
    for exponent in np.flatnonzero(sizes).tolist():
        which = slice(bounds[exponent], bounds[exponent + 1])
        steps = pairs[which] % _STEP_RANGE - _STEP_RANGE // 2
        yield exponent, _Context(int(sizes[exponent]), steps, counts[which])


def steps_between(old: _Bits, new: _Bits) -> _Ints:
    """Signed differences on the ordered number line, modulo its length."""
    modulus = 1 << (8 * old.itemsize)
    steps = (_keys(new, modulus) - _keys(old, modulus)) % modulus
    return np.where(steps >= modulus // 2, steps - modulus, steps)


def _keys(bits: _Bits, modulus: int) -> _Ints:
    wide, sign = bits.astype(np.int64), modulus // 2
    return np.where(wide & sign, (modulus - 1) ^ wide, wide | sign)


def _bits(tensor: Tensor) -> _Bits:
    return tensor.data.view(f"<u{ELEMENT_BYTES[tensor.dtype]}")


def _tie(contexts: list[_Context]) -> _Context:
    steps, counts = _merged([(context.steps, context.counts) for context in contexts])
    return _Context(sum(context.num_elements for context in contexts), steps, counts)


def _merged(histograms: list[tuple[_Ints, _Ints]]) -> tuple[_Ints, _Ints]:
    nothing = np.zeros(0, np.int64)
    values = np.concatenate([nothing, *(values for values, _ in histograms)])
    counts = np.concatenate([nothing, *(counts for _, counts in histograms)])
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    return distinct, np.add.reduceat(counts[order], starts) if len(starts) else nothing


def _cheapest_tying(contexts: list[_Context]) -> float:
    tied = _tie(contexts)
    apart = sum(context.entropy_bits + context.table_bits for context in contexts)
    return min(apart, tied.entropy_bits + tied.table_bits)


def _cheapest_adaptive(contexts: list[_Context]) -> float:
    tied = _tie(contexts)
    num_steps = max(1, len(tied.counts))
    return min(tied.adaptive_bits(num_steps), sum(context.adaptive_bits(num_steps) for context in contexts))


def _adaptive_bits(counts: list[int], num_symbols: int) -> float:
    """Of the observations one after another, each by the estimate (count + 1/2) / (total + symbols / 2)."""
    seen = sum(lgamma(count + 0.5) - lgamma(0.5) for count in counts)
    return (lgamma(sum(counts) + num_symbols / 2) - lgamma(num_symbols / 2) - seen) / log(2)


def _entropy_bits(counts: _Ints) -> float:
    seen = counts[counts > 0]
    return float(np.sum(seen * np.log2(seen.sum() / seen))) if len(seen) else 0.0
