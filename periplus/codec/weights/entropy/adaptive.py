"""Coding of the step sizes of a small span without transmitted tables: each distribution is predicted from known data.

A *step* is the signed number of units in the last place by which a changed element moves. An update of a given size is
twice as many units one exponent lower. Rounding is unbiased, so the sum of step magnitudes over the number of elements,
changed or not, estimates the mean update size in units of that exponent. Coding goes from the highest exponent down.
The mean at an exponent is predicted from the exponents above it, where nearer ones weigh more. If fewer than half of
the elements change, the share that changes enters the estimate as well. Update sizes are modelled as spread from zero
to three times the mean, with a density that falls linearly beyond 0.6 of the mean. Steps that were already coded at an
exponent are counted on top of the prediction. Directions are equally likely, except with unusual optimizers.

Order in the stack:

    odds of a step towards zero          in sixteenths, less one
    directions, unless these odds are even: 1 is towards zero
    for each exponent that has changes, from the highest:
        magnitude classes in batches; the counts of a batch are known to the batches after it
    for each step, the low bits of its magnitude and, if odds are even, its direction below them, as late bits

Tables would be a tenth of the payload at a few hundred changes (docs/design/0007-weights.md); this model costs nothing.
Everything is integer arithmetic, because writer and reader must compute identical models.
"""

from collections.abc import Iterator
from functools import cache
from math import isqrt

import numpy as np

from periplus.codec.weights.entropy import contexts, kernels
from periplus.codec.weights.entropy.coder import SymbolReader, Symbols, SymbolWriter
from periplus.codec.weights.entropy.kernels import Ints, Steps

MAX_CHANGES = 1 << 16
"""Most changes of a span that are coded adaptively. Beyond it, transmitted tables cost a thousandth of what they
describe and fit better."""
MIN_TABLE_CHANGES = 10_000
"""Fewest changes of a small span at which tables are tried as well. Below it they are larger for real updates, and
finding them takes 30 ms."""

MAX_EXPONENTS = 256
"""Exponents of the widest format (bf16 and fp32): 8 bits."""

NUM_CLASSES = contexts.MAX_STEP_CLASS
"""Number of magnitude classes; `contexts` defines them."""

PREDICTION_WEIGHT = 24
"""Weight of the prediction in a magnitude model, in observations. Chosen by hand."""

_ONE = 1 << 20
"""The weight of one observation."""

_BACKGROUND_LOG2 = 17
"""log2 of the weight of the mean's class in the background distribution. The background falls by sqrt(2) per class of
distance from the mean, and holds about one observation in 32, for steps that do not follow the prediction."""

_MEAN_BITS = 16
"""Fraction bits of a mean."""
_LEAST_MEAN, _LARGEST_MEAN = 1 << 6, 1 << 47
"""Bounds of a predicted mean, with _MEAN_BITS fraction bits."""

_SHAPE = tuple(min(26, 33 - i) for i in range(33))
"""Weights of the update sizes 1, 3, 5, ..., 65. Sizes are scaled afterwards so that their mean is the predicted one."""

_ODDS = 16
"""The probability of a step towards zero is a multiple of 1 / 16."""
_FAIR = 7
"""Coded value of even odds: the probability is (7 + 1) / 16."""


class _MeanPredictor:
    """Predictor of the mean step magnitude per element at each exponent, from the highest exponent down.

    `_moved` sums magnitudes and `_elements` counts elements. Both have 32 fraction bits, because they are halved
    repeatedly.
    """

    def __init__(self) -> None:
        self._moved = self._elements = 0
        self._exponent = MAX_EXPONENTS

    def mean(self, exponent: int, num_elements: int, num_changed: int) -> int:
        """Return the predicted mean magnitude at an exponent below all earlier ones, with _MEAN_BITS fraction bits."""
        passed = self._exponent - exponent
        # One exponent lower, units are half as large: the mean doubles. Halving the one sum and quartering the other
        # doubles their ratio, and makes farther exponents count less.
        self._moved >>= passed
        self._elements >>= 2 * passed
        self._exponent = exponent
        # Where few elements change, nearly all steps have magnitude 1, so the share of changes is itself an
        # observation. Where many change, it is a lower bound.
        if 2 * num_changed < num_elements:
            mean = _over(self._moved + (num_changed << 32), self._elements + (num_elements << 32))
        else:
            mean = max(_over(self._moved, self._elements), _over(num_changed, num_elements))
        return min(max(mean, _LEAST_MEAN), _LARGEST_MEAN)

    def learn(self, kinds: Symbols, num_elements: int, mean: int) -> None:
        """Add the magnitudes at the exponent of the last `mean`. Outliers far beyond the mean are clipped."""
        most = 8 * (mean >> _MEAN_BITS) + 8
        self._moved += int(np.minimum(_middles()[kinds], most).sum()) << 32
        self._elements += num_elements << 32


def write(writer: SymbolWriter, outward: Steps, per_exponent: Ints, seen: Ints) -> None:
    """Append the sizes of changes (*steps*) to the stack of symbols.

    `outward` [changes] is sorted by exponent; `seen` [exponents] counts the elements of each exponent.
    """
    # Split each step [changes] into a token and raw low bits; all steps are one row, since no tables are counted.
    tokens, rests = np.empty_like(outward), np.empty(len(outward), np.uint32)
    widths, counts = np.empty(len(outward), np.uint8), np.zeros((1, contexts.NUM_STEP_TOKENS), np.int64)
    ends = np.array([len(outward)], np.int64)
    kernels.split_steps(outward, ends, contexts.DIRECT_STEPS, tokens, rests, widths, counts)
    # A token is 2 x magnitude class + (1 if towards zero); the two halves are coded separately.
    inward, kinds = tokens & 1, tokens >> 1
    # One distribution of directions serves the whole span.
    odds = _choose_odds(len(inward), int(inward.sum()))
    writer.put(np.array([odds], np.int32), _odds_model())
    if odds != _FAIR:
        writer.put(inward, _sign_model(odds))
    predictor = _MeanPredictor()
    # Each exponent is coded with a prediction from those above it, and then teaches the predictor.
    for exponent, start, end in _downwards(per_exponent):
        mean = predictor.mean(exponent, int(seen[exponent]), end - start)
        weights = _predicted_weights(mean)
        for first, last in _batches(start, end):
            writer.put(kinds[first:last], contexts.Model(weights.tolist()))
            # Both sides know the batch now, so that it may change the model of the next one.
            weights += _ONE * np.bincount(kinds[first:last], minlength=NUM_CLASSES)
        predictor.learn(kinds[start:end], int(seen[exponent]), mean)
    # With even odds a direction costs exactly one bit: it joins the raw bits, which are faster than symbols.
    if odds == _FAIR:
        rests = np.asarray(rests << 1 | inward, np.uint32)
        widths = np.asarray(widths + 1, np.uint8)
    writer.put_late_bits(rests, widths)


def read(reader: SymbolReader, per_exponent: Ints, seen: Ints) -> Steps:
    """Invert `write`. Raises: CorruptFrame."""
    total = int(per_exponent.sum())
    odds = int(reader.take(1, _odds_model())[0])
    inward = reader.take(total, _sign_model(odds)) if odds != _FAIR else np.zeros(total, np.int32)
    # The predictor is given exactly what the writer's was given, in the same order, so that all models agree.
    kinds = np.empty(total, np.int32)
    predictor = _MeanPredictor()
    for exponent, start, end in _downwards(per_exponent):
        mean = predictor.mean(exponent, int(seen[exponent]), end - start)
        weights = _predicted_weights(mean)
        for first, last in _batches(start, end):
            kinds[first:last] = reader.take(last - first, contexts.Model(weights.tolist()))
            weights += _ONE * np.bincount(kinds[first:last], minlength=NUM_CLASSES)
        predictor.learn(kinds[start:end], int(seen[exponent]), mean)
    # The class alone decides how many raw bits follow; both directions of a class have the same width.
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
    """Yield (exponent, begin, end) of the sorted steps of each exponent that has changes, from the highest."""
    ends = np.cumsum(per_exponent).tolist()
    for exponent in np.flatnonzero(per_exponent)[::-1].tolist():
        yield exponent, ends[exponent] - int(per_exponent[exponent]), ends[exponent]


def _batches(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the batches of an exponent's steps: two, then two and half of those before.

    The model changes only between batches, because building a model takes longer than coding a symbol.
    """
    first = start
    while first < end:
        last = min(end, first + 2 + (first - start) // 2)
        yield first, last
        first = last


def _predicted_weights(mean: int) -> Ints:
    """Return integer weights [NUM_CLASSES] of magnitude classes for a predicted mean.

    An update size is rounded to either neighbouring integer, with probabilities that keep its mean.
    """
    sides = np.zeros(NUM_CLASSES, np.int64)
    unit = mean * sum(_SHAPE), sum((2 * i + 1) * weight for i, weight in enumerate(_SHAPE))
    for i, weight in enumerate(_SHAPE):
        # Integer part and fraction of the size. A magnitude of 0 is no change, so it has no class.
        size = (2 * i + 1) * unit[0] // unit[1]
        below, part = size >> _MEAN_BITS, size & ((1 << _MEAN_BITS) - 1)
        sides[_kind(below + 1)] += weight * part
        if below:
            sides[_kind(below)] += weight * ((1 << _MEAN_BITS) - part)
    # Scale to PREDICTION_WEIGHT observations, and add the background distribution.
    off = np.abs(np.arange(NUM_CLASSES) - _kind(max(1, mean >> _MEAN_BITS)))
    return np.asarray(sides * (PREDICTION_WEIGHT * _ONE) // sides.sum() + _background_weights()[off], np.int64)


def _kind(magnitude: int) -> int:
    """Return the class of a magnitude. The last class stands for all larger ones."""
    if magnitude <= contexts.DIRECT_STEPS:
        return magnitude - 1
    width = magnitude.bit_length() - 2
    return min(contexts.DIRECT_STEPS + 2 * (width - 2) + (magnitude >> width & 1), NUM_CLASSES - 1)


def _over(moved: int, elements: int) -> int:
    return (moved << _MEAN_BITS) // elements if elements else 0


@cache
def _background_weights() -> Ints:
    """Return the background weight [NUM_CLASSES] of a class by its distance to the class of the mean; at least 1."""
    return np.array([isqrt(1 << (2 * _BACKGROUND_LOG2 + 66 - off)) >> 33 or 1 for off in range(NUM_CLASSES)], np.int64)


@cache
def _middles() -> Ints:
    """Return a typical magnitude [NUM_CLASSES] of each class."""
    direct = list(range(1, contexts.DIRECT_STEPS + 1))
    octaves = range((NUM_CLASSES - contexts.DIRECT_STEPS) // 2)
    return np.array([*direct, *((5 + 2 * half) << (octave + 1) for octave in octaves for half in (0, 1))], np.int64)


@cache
def _odds_model() -> contexts.Model:
    """Return the model of the odds of a step towards zero. Even odds are as likely as all others together."""
    return contexts.Model(_odds_weights())


def _odds_weights() -> list[int]:
    return [2 * _FAIR if odds == _FAIR else 1 for odds in range(_ODDS - 1)]


@cache
def _sign_model(odds: int) -> contexts.Model:
    """Return the model of the two directions: 0 away from zero, 1 towards zero."""
    return contexts.Model([_ODDS - 1 - odds, odds + 1])


def _choose_odds(total: int, inward: int) -> int:
    """Return the coded odds with the least price for `inward` of `total` steps towards zero."""
    prices = [
        -inward * contexts.log2(odds + 1) - (total - inward) * contexts.log2(_ODDS - 1 - odds) - contexts.log2(weight)
        for odds, weight in enumerate(_odds_weights())
    ]
    return prices.index(min(prices))
