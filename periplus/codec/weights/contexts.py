"""The tables of the code: levels of odds, gaps, steps, priors. Integers alone, so that all machines have them.

**Levels.** Level l >= 1 says that an element changes with odds 2^((l - 46) / 2), level 0 that it never does. A span
uses every `spacing`-th level.

**Gaps.** Between two changes of one level lie g unchanged elements of that level, and P(g) = (1 - p)^g p. The lowest r
bits of g are stored as they are: r is the largest with p 2^r <= 3/8, where treating them as uniform costs 0.005 bits on
the average. The rest is a token of a geometric distribution; LAST_GAP means "that many and more, go on", which is exact
because the distribution has no memory.

**Steps.** A step is measured away from zero: positive when the number grows in magnitude. Magnitudes up to DIRECT_STEPS
have a token each; larger ones have two an octave, with the rest of the bits stored as they are.

**Priors.** What describes the contexts (levels of cells, entries of tables) has fixed distributions: a symbol m steps
away from what is expected weighs ratio^m, and the span says which ratio.

Weights reach constriction as floats that are integers below 2^53; what it does with them (a sum, a division, a product,
a truncation) is exact or rounded the same way everywhere. Golden files hold the outcome.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from math import isqrt

import constriction
import numpy as np
import numpy.typing as npt

MAX_LEVEL = 62
LAST_GAP = 15
"""A reader finds a token by bisection: 16 of them take it 16 ns, 41 take 21, and more than 15 blocks are rare."""

DIRECT_STEPS = 8
MAX_STEP_CLASS = DIRECT_STEPS + 2 * 29
NUM_STEP_TOKENS = 2 * MAX_STEP_CLASS

COST_BITS = 28
"""Fraction bits of a price. Odds of 2^-23 cost 1.7e-7 bits an unchanged element, and there are up to 2^25."""

_SCALE = 60

MAX_SHIFT = 20
MAX_RESIDUAL = 4
NEVER = 2 * MAX_RESIDUAL + 1
"""The symbol of a cell in which nothing changes."""
DEAD = 2 * MAX_SHIFT + 1
"""The symbol of a group in which nothing changes."""
RATIO_LOG2 = (1, 2, 3, 4, 6, 9)
NEVER_LOG2 = (2, 4, 7, 11)
"""Minus log2 of the weight of NEVER and DEAD against the expected symbol."""
NUM_PRIORS = len(RATIO_LOG2) * len(NEVER_LOG2)

TYPICAL_EXPONENT = (15, 32)
"""Of all exponents, the highest at which small weights change."""
TYPICAL_ROWS = 16
TYPICAL_LEVEL = 26
"""Of the highest exponent that has changes."""

TIED_PRIOR = NUM_PRIORS - 1
"""Nearly all symbols are the expected one: where changes are few, groups do not differ."""

CODE_LEVELS = 32
"""A table entry c > 0 weighs 2^(c / 2), 0 is absent."""


class Model:
    """A distribution over 0..n-1, given by integer weights."""

    __slots__ = ("coder_model", "num_symbols")

    def __init__(self, weights: Sequence[int]) -> None:
        floats = np.array([float(weight) for weight in weights])
        self.num_symbols = len(weights)
        self.coder_model = constriction.stream.model.Categorical(floats, perfect=False) if len(weights) > 1 else None


@cache
def odds_of(level: int) -> tuple[int, int]:
    """(p, 1 - p) of a level >= 1, times 2^60."""
    odds = isqrt(1 << (2 * _SCALE + level - 46))
    one = 1 << _SCALE
    p = (odds << _SCALE) // (odds + one)
    return p, one - p


@cache
def gap_shift(level: int) -> int:
    """How many low bits of a gap are stored as they are."""
    p, _ = odds_of(level)
    return max(0, ((3 << (_SCALE - 3)) // p).bit_length() - 1)


@cache
def gap_shifts() -> npt.NDArray[np.int64]:
    """[levels] gap_shift of each, 0 for level 0."""
    return np.array([0, *(gap_shift(level) for level in range(1, MAX_LEVEL + 1))], np.int64)


@cache
def gap_model(level: int) -> Model:
    """Of the tokens 0..LAST_GAP."""
    _, stay = odds_of(level)
    for _ in range(gap_shift(level)):
        stay = stay * stay >> _SCALE
    weights, rest = [], 1 << _SCALE
    for _ in range(LAST_GAP):
        following = rest * stay >> _SCALE
        weights.append(rest - following)
        rest = following
    return Model([max(1, weight >> 8) for weight in (*weights, rest)])


@cache
def flag_model(level: int) -> Model:
    """Of "unchanged", "changed"."""
    p, stay = odds_of(level)
    return Model([stay >> 8, p >> 8])


@cache
def uniform_model(num_symbols: int) -> Model:
    """All symbols alike."""
    return Model([1] * num_symbols)


@cache
def residual_model(prior: int, largest: int, *, with_never: bool = True) -> Model:
    """Of zigzag integers up to +-largest, and then NEVER (or DEAD)."""
    return Model([1 << (40 - bits) for bits in _residual_prices(prior, largest, with_never)])


def _residual_prices(prior: int, largest: int, with_never: bool) -> list[int]:
    ratio, never = RATIO_LOG2[prior % len(RATIO_LOG2)], NEVER_LOG2[prior // len(RATIO_LOG2)]
    sides = [min(39, ratio * ((z + 1) // 2)) for z in range(2 * largest + 1)]
    return [*sides, never] if with_never else sides


@cache
def residual_costs(prior: int, largest: int, *, with_never: bool = True) -> npt.NDArray[np.int64]:
    """Prices of the symbols of residual_model."""
    prices = _residual_prices(prior, largest, with_never)
    total = log2(sum(1 << (40 - bits) for bits in prices)) - (40 << COST_BITS)
    return np.array([(bits << COST_BITS) + total for bits in prices], np.int64)


@cache
def level_costs(spacing: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Prices of a change and of no change at each level of a spacing; entry 0 (never) is not used."""
    levels = range(spacing, MAX_LEVEL + 1, spacing)
    one = _SCALE << COST_BITS
    changed = [0, *(one - log2(odds_of(level)[0]) for level in levels)]
    unchanged = [0, *(one - log2(odds_of(level)[1]) for level in levels)]
    return np.array(changed, np.int64), np.array(unchanged, np.int64)


@cache
def logarithms() -> npt.NDArray[np.int64]:
    """log2 of 256..511 less 8, for kernels that need logarithms of counts."""
    return np.array([log2(256 + i) - (8 << COST_BITS) for i in range(256)], np.int64)


@cache
def step_widths() -> npt.NDArray[np.uint8]:
    """How many bits of a magnitude each token leaves open."""
    kinds = np.arange(NUM_STEP_TOKENS) // 2 - DIRECT_STEPS
    return np.where(kinds < 0, 0, kinds // 2 + 2).astype(np.uint8)


@cache
def code_weights() -> tuple[int, ...]:
    """The weight of each table entry."""
    return (0, *(isqrt(1 << (40 + code)) for code in range(1, CODE_LEVELS)))


@lru_cache(1 << 16)
def log2(value: int) -> int:
    """log2 of an integer >= 1 with COST_BITS fraction bits, by squaring."""
    exponent = value.bit_length() - 1
    mantissa = (value << 64) >> exponent if exponent <= 64 else value >> (exponent - 64)
    fraction = 0
    for _ in range(COST_BITS):
        mantissa = mantissa * mantissa >> 64
        fraction <<= 1
        if mantissa >> 65:
            mantissa >>= 1
            fraction |= 1
    return (exponent << COST_BITS) + fraction


@cache
def near_model(num_symbols: int, expected: int) -> Model:
    """Of a number that is likely near another: half as likely for each four further off."""
    return Model([isqrt(isqrt(1 << max(0, 160 - abs(symbol - expected)))) for symbol in range(num_symbols)])


@cache
def spacing_model() -> Model:
    """Of the spacings 1, 2 and 4."""
    return Model([6, 1, 1])


@cache
def prior_model() -> Model:
    """Of priors."""
    return Model(_prior_weights())


def _prior_weights() -> list[int]:
    return [NUM_PRIORS if prior == TIED_PRIOR else 1 for prior in range(NUM_PRIORS)]


@cache
def prior_cost(prior: int) -> int:
    """The price of a symbol of prior_model."""
    return log2(sum(_prior_weights())) - log2(_prior_weights()[prior])


@cache
def template_model() -> Model:
    """Of templates: differences, zigzag."""
    return Model([1 << (40 - bits) for bits in _template_prices()])


@cache
def template_costs() -> npt.NDArray[np.int64]:
    """Prices of the symbols of template_model."""
    total = log2(sum(1 << (40 - bits) for bits in _template_prices())) - (40 << COST_BITS)
    return np.array([(bits << COST_BITS) + total for bits in _template_prices()], np.int64)


def _template_prices() -> list[int]:
    """Odds double from exponent to exponent, but where they begin or saturate."""
    return [min(2 * off, 4 + off // 2) for off in ((z + 1) // 2 for z in range(2 * MAX_LEVEL + 1))]


@cache
def entry_model(*, coarse: bool) -> Model:
    """Of table entries as differences: zigzag, then ABSENT. Weights fall by the root of two a step."""
    return Model(_entry_weights(coarse))


@cache
def entry_costs(*, coarse: bool) -> npt.NDArray[np.int64]:
    """Prices of the symbols of entry_model."""
    total = log2(sum(_entry_weights(coarse)))
    return np.array([total - log2(weight) for weight in _entry_weights(coarse)], np.int64)


def _entry_weights(coarse: bool) -> list[int]:
    largest = (CODE_LEVELS - 1) // (2 if coarse else 1)
    sides = [isqrt(1 << (80 - (z + 1) // 2)) for z in range(2 * largest + 1)]
    return [*sides, isqrt(1 << 76)]
