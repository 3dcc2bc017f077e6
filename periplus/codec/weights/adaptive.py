"""Steps of a small span on the wire, without tables: an exponent's distribution is foretold by the exponents above it.

An update of one size is twice as many units in the last place where the exponent is one less, and rounding is fair, so
that magnitudes of steps, summed and divided by the number of elements, changed or not, are the mean size of an update.
The mean at an exponent is foretold from those above, the nearest counting most, and from the share of elements that
change where that is below a half. Sizes spread from zero to three times the mean, thinning out linearly beyond 0.6;
what an exponent's first steps are counts beside that for the next ones. Directions are even, but for rare optimizers.
In the stack:

    odds of a step towards zero          in sixteenths, less one
    directions, where these odds are not even: 1 is towards zero
    for each exponent that has changes, from the highest:
        classes of magnitude, in batches; what a batch holds is counted for those after it
    for each step, the low bits of its magnitude and, where odds are even, its direction below them, as late bits

A table is a tenth of a few hundred changes; this one costs nothing.
"""

from collections.abc import Iterator
from functools import cache
from math import isqrt

import numpy as np

from periplus.codec.weights import contexts, kernels
from periplus.codec.weights.coder import SymbolReader, Symbols, SymbolWriter
from periplus.codec.weights.kernels import Ints, Steps

MAX_CHANGES = 1 << 16
"""Beyond that tables cost a thousandth of what they describe, and know more: adaptive steps are not tried."""
MIN_TABLE_CHANGES = 10_000
"""Below that tables are not tried: with real updates they are larger, and finding them takes 30 ms."""

MAX_EXPONENTS = 256

NUM_CLASSES = contexts.MAX_STEP_CLASS

FORETOLD = 24
"""What is foretold counts like so many observations."""

_ONE = 1 << 20
"""The weight of one observation."""

_STRAY_LOG2 = 17
"""One step in 32 follows no more than the mean's class, and falls by the root of two for each class off."""

_MEAN_BITS = 16
"""Fraction bits of a mean."""
_LEAST_MEAN, _LARGEST_MEAN = 1 << 6, 1 << 47

_SHAPE = tuple(min(26, 33 - i) for i in range(33))
"""Weights of the sizes 1, 3, 5, ..., in units that make their mean what it shall be."""

_ODDS = 16
_FAIR = 7


class _Foretelling:
    """The mean magnitude at each exponent, from the highest down. Sums have 32 fraction bits, to be halved often."""

    def __init__(self) -> None:
        self._moved = self._elements = 0
        self._exponent = MAX_EXPONENTS

    def mean(self, exponent: int, num_elements: int, num_changed: int) -> int:
        """Expected at an exponent below those before, with _MEAN_BITS fraction bits."""
        passed = self._exponent - exponent
        self._moved >>= passed
        self._elements >>= 2 * passed
        self._exponent = exponent
        if 2 * num_changed < num_elements:
            mean = _over(self._moved + (num_changed << 32), self._elements + (num_elements << 32))
        else:
            mean = max(_over(self._moved, self._elements), _over(num_changed, num_elements))
        return min(max(mean, _LEAST_MEAN), _LARGEST_MEAN)

    def learn(self, kinds: Symbols, num_elements: int, mean: int) -> None:
        """What stood at the exponent of the last mean. Magnitudes far beyond it are outliers: they count as less."""
        most = 8 * (mean >> _MEAN_BITS) + 8
        self._moved += int(np.minimum(_middles()[kinds], most).sum()) << 32
        self._elements += num_elements << 32


def write(writer: SymbolWriter, outward: Steps, per_exponent: Ints, seen: Ints) -> None:
    """Append steps that stand in the order of exponents; `seen` are the elements of each exponent."""
    tokens, rests = np.empty_like(outward), np.empty(len(outward), np.uint32)
    widths, counts = np.empty(len(outward), np.uint8), np.zeros((1, contexts.NUM_STEP_TOKENS), np.int64)
    ends = np.array([len(outward)], np.int64)
    kernels.split_steps(outward, ends, contexts.DIRECT_STEPS, tokens, rests, widths, counts)
    inward, kinds = tokens & 1, tokens >> 1
    odds = _choose_odds(len(inward), int(inward.sum()))
    writer.put(np.array([odds], np.int32), _odds_model())
    if odds != _FAIR:
        writer.put(inward, _sign_model(odds))
    foretelling = _Foretelling()
    for exponent, start, end in _downwards(per_exponent):
        mean = foretelling.mean(exponent, int(seen[exponent]), end - start)
        weights = _foretold(mean)
        for first, last in _batches(start, end):
            writer.put(kinds[first:last], contexts.Model(weights.tolist()))
            weights += _ONE * np.bincount(kinds[first:last], minlength=NUM_CLASSES)
        foretelling.learn(kinds[start:end], int(seen[exponent]), mean)
    if odds == _FAIR:
        rests = np.asarray(rests << 1 | inward, np.uint32)
        widths = np.asarray(widths + 1, np.uint8)
    writer.put_late_bits(rests, widths)


def read(reader: SymbolReader, per_exponent: Ints, seen: Ints) -> Steps:
    """The inverse of write. Raises: CorruptFrame."""
    total = int(per_exponent.sum())
    odds = int(reader.take(1, _odds_model())[0])
    inward = reader.take(total, _sign_model(odds)) if odds != _FAIR else np.zeros(total, np.int32)
    kinds = np.empty(total, np.int32)
    foretelling = _Foretelling()
    for exponent, start, end in _downwards(per_exponent):
        mean = foretelling.mean(exponent, int(seen[exponent]), end - start)
        weights = _foretold(mean)
        for first, last in _batches(start, end):
            kinds[first:last] = reader.take(last - first, contexts.Model(weights.tolist()))
            weights += _ONE * np.bincount(kinds[first:last], minlength=NUM_CLASSES)
        foretelling.learn(kinds[start:end], int(seen[exponent]), mean)
    widths = contexts.step_widths()[2 * kinds]
    if odds == _FAIR:
        bits = reader.take_late_bits(np.asarray(widths + 1, np.uint8))
        rests, inward = np.asarray(bits >> 1, np.uint32), np.asarray(bits & 1, np.int32)
    else:
        rests = reader.take_late_bits(widths)
    outward = np.empty(total, np.int32)
    kernels.join_steps(2 * kinds + inward, rests, contexts.DIRECT_STEPS, outward)
    return outward


def _downwards(per_exponent: Ints) -> Iterator[tuple[int, int, int]]:
    """Exponents that have changes, from the highest, and where their steps stand."""
    ends = np.cumsum(per_exponent).tolist()
    for exponent in np.flatnonzero(per_exponent)[::-1].tolist():
        yield exponent, ends[exponent] - int(per_exponent[exponent]), ends[exponent]


def _batches(start: int, end: int) -> Iterator[tuple[int, int]]:
    first = start
    while first < end:
        last = min(end, first + 2 + (first - start) // 2)
        yield first, last
        first = last


def _foretold(mean: int) -> Ints:
    """Weights of classes of magnitude, where a magnitude is a size rounded to either side, and fairly."""
    sides = np.zeros(NUM_CLASSES, np.int64)
    unit = mean * sum(_SHAPE), sum((2 * i + 1) * weight for i, weight in enumerate(_SHAPE))
    for i, weight in enumerate(_SHAPE):
        size = (2 * i + 1) * unit[0] // unit[1]
        below, part = size >> _MEAN_BITS, size & ((1 << _MEAN_BITS) - 1)
        sides[_kind(below + 1)] += weight * part
        if below:
            sides[_kind(below)] += weight * ((1 << _MEAN_BITS) - part)
    off = np.abs(np.arange(NUM_CLASSES) - _kind(max(1, mean >> _MEAN_BITS)))
    return np.asarray(sides * (FORETOLD * _ONE) // sides.sum() + _strays()[off], np.int64)


def _kind(magnitude: int) -> int:
    """The class of a magnitude; the last for all beyond."""
    if magnitude <= contexts.DIRECT_STEPS:
        return magnitude - 1
    width = magnitude.bit_length() - 2
    return min(contexts.DIRECT_STEPS + 2 * (width - 2) + (magnitude >> width & 1), NUM_CLASSES - 1)


def _over(moved: int, elements: int) -> int:
    return (moved << _MEAN_BITS) // elements if elements else 0


@cache
def _strays() -> Ints:
    """The weight of a class by its distance to the mean's."""
    return np.array([isqrt(1 << (2 * _STRAY_LOG2 + 66 - off)) >> 33 or 1 for off in range(NUM_CLASSES)], np.int64)


@cache
def _middles() -> Ints:
    """A magnitude of each class."""
    direct = list(range(1, contexts.DIRECT_STEPS + 1))
    octaves = range((NUM_CLASSES - contexts.DIRECT_STEPS) // 2)
    return np.array([*direct, *((5 + 2 * half) << (octave + 1) for octave in octaves for half in (0, 1))], np.int64)


@cache
def _odds_model() -> contexts.Model:
    """Of the odds of a step towards zero: as often even as anything else."""
    return contexts.Model(_odds_weights())


def _odds_weights() -> list[int]:
    return [2 * _FAIR if odds == _FAIR else 1 for odds in range(_ODDS - 1)]


@cache
def _sign_model(odds: int) -> contexts.Model:
    """Of "away from zero", "towards zero"."""
    return contexts.Model([_ODDS - 1 - odds, odds + 1])


def _choose_odds(total: int, inward: int) -> int:
    prices = [
        -inward * contexts.log2(odds + 1) - (total - inward) * contexts.log2(_ODDS - 1 - odds) - contexts.log2(weight)
        for odds, weight in enumerate(_odds_weights())
    ]
    return prices.index(min(prices))
