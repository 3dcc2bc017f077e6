"""Probability models of the code: odds levels, gaps, steps and priors, all defined by integer arithmetic.

Floating-point libraries may round differently, so everything that decides bytes on the wire is an integer computation.

**Levels.** Level l >= 1 says that an element changes with odds p / (1 - p) = 2^((l - 46) / 2). Level 0 says that it
never changes. A span uses every `spacing`-th level.

**Gaps.** Let g unchanged elements of a level lie between two of its changes. Then P(g) = (1 - p)^g p. The lowest r bits
of g are stored raw, where r is the largest number with p 2^r <= 3/8. Treating them as uniform costs 0.005 bits on
average. The rest of g is a token of a geometric distribution. LAST_GAP means "this many and more, go on", which is
exact because the geometric distribution has no memory.

**Steps.** A step is measured away from zero: it is positive if the number grows in magnitude. Each magnitude up to
DIRECT_STEPS is a class of its own. Larger ones have two classes per octave, and the remaining bits are stored raw. A
token is 2 x class, plus 1 if the step is towards zero.

**Priors.** The description of the contexts (levels of cells, entries of tables) is coded by fixed distributions. A
symbol that is m steps away from the expected one has weight 2^(-a m), and the span says which a (its *prior*).

A *price* is a code length in bits with COST_BITS fraction bits. Weights reach constriction as floats that are integers
below 2^53. What constriction does with them (a sum, a division, a product, a truncation) is exact or rounded
identically on every machine; golden files hold the outcome.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from math import isqrt

import constriction
import numpy as np
import numpy.typing as npt

MAX_LEVEL = 62
"""Highest level. Levels are half an octave of odds apart, from 2^-22.5 to 2^8."""
LAST_GAP = 15
"""Last token of a gap. A reader finds a token by bisection: of 16 tokens in 16 ns, of 41 in 21 ns. Gaps beyond 15
blocks are rare (docs/design/0007-weights.md)."""

DIRECT_STEPS = 8
"""Largest step magnitude that is a class of its own."""
MAX_STEP_CLASS = DIRECT_STEPS + 2 * 29
"""Number of magnitude classes: the direct ones, and two for each of 29 octaves."""
NUM_STEP_TOKENS = 2 * MAX_STEP_CLASS
"""Number of step tokens: each class away from zero and towards it."""

COST_BITS = 28
"""Fraction bits of a price. At odds of 2^-23 an unchanged element costs 1.7e-7 bits, and there are up to 2^25 of
them.
"""

_SCALE = 60
"""Fraction bits of a probability."""

MAX_SHIFT = 20
"""Largest magnitude of a group's offset, in levels."""
MAX_RESIDUAL = 4
"""Largest magnitude of a cell's residual, in levels."""
NEVER = 2 * MAX_RESIDUAL + 1
"""Symbol of a cell in which nothing changes."""
DEAD = 2 * MAX_SHIFT + 1
"""Symbol of a group in which nothing changes."""
RATIO_LOG2 = (1, 2, 3, 4, 6, 9)
"""Choices of a prior: the a of the weight 2^(-a m) of a symbol that is m steps away from the expected one."""
NEVER_LOG2 = (2, 4, 7, 11)
"""Choices of a prior: minus log2 of the weight of NEVER or DEAD relative to the expected symbol."""
NUM_PRIORS = len(RATIO_LOG2) * len(NEVER_LOG2)
"""Number of priors: every pair of the two choices."""

TYPICAL_EXPONENT = (15, 32)
"""Share of all exponents at which the highest exponent with changes is expected, as a fraction (numerator,
denominator)."""
TYPICAL_ROWS = 16
"""Expected number of exponents that have changes."""
TYPICAL_LEVEL = 26
"""Expected level of the highest exponent that has changes."""

TIED_PRIOR = NUM_PRIORS - 1
"""Prior by which nearly all symbols are the expected one. It is the likeliest, because groups do not differ where
changes are few."""

CODE_LEVELS = 32
"""Number of values of a table entry. Entry c > 0 means weight 2^(c / 2); 0 means that the token does not occur."""


class Model:
    """Distribution over the symbols 0 to n - 1, given by integer weights."""

    __slots__ = ("coder_model", "num_symbols")

    def __init__(self, weights: Sequence[int]) -> None:
        floats = np.array([float(weight) for weight in weights])
        self.num_symbols = len(weights)
        self.coder_model = constriction.stream.model.Categorical(floats, perfect=False) if len(weights) > 1 else None


@cache
def odds_of(level: int) -> tuple[int, int]:
    """Return (p, 1 - p) of a level >= 1, times 2^60."""
    odds = isqrt(1 << (2 * _SCALE + level - 46))
    one = 1 << _SCALE
    p = (odds << _SCALE) // (odds + one)
    return p, one - p


@cache
def gap_shift(level: int) -> int:
    """Return how many low bits of a gap are stored raw at a level: the largest r with p 2^r <= 3/8."""
    p, _ = odds_of(level)
    return max(0, ((3 << (_SCALE - 3)) // p).bit_length() - 1)


@cache
def gap_shifts() -> npt.NDArray[np.int64]:
    """Return `gap_shift` of each level [MAX_LEVEL + 1]; it is 0 for level 0."""
    return np.array([0, *(gap_shift(level) for level in range(1, MAX_LEVEL + 1))], np.int64)


@cache
def gap_model(level: int) -> Model:
    """Return the model of the tokens 0 to LAST_GAP at a level."""
    _, stay = odds_of(level)
    # (1 - p)^(2^r) by repeated squaring: the odds that a block of 2^r elements has no change.
    for _ in range(gap_shift(level)):
        stay = stay * stay >> _SCALE
    # Token t < LAST_GAP has weight stay^t (1 - stay); the last token has what remains. `>> 8` keeps weights below 2^53.
    weights, rest = [], 1 << _SCALE
    for _ in range(LAST_GAP):
        following = rest * stay >> _SCALE
        weights.append(rest - following)
        rest = following
    return Model([max(1, weight >> 8) for weight in (*weights, rest)])


@cache
def flag_model(level: int) -> Model:
    """Return the model of one element at a level: 0 unchanged, 1 changed."""
    p, stay = odds_of(level)
    return Model([stay >> 8, p >> 8])


@cache
def uniform_model(num_symbols: int) -> Model:
    """Return the model in which all symbols are equally likely."""
    return Model([1] * num_symbols)


@cache
def residual_model(prior: int, largest: int, *, with_never: bool = True) -> Model:
    """Return the model of zigzag integers up to +-largest, followed by NEVER (or DEAD) if `with_never`."""
    return Model([1 << (40 - bits) for bits in _residual_prices(prior, largest, with_never)])


def _residual_prices(prior: int, largest: int, with_never: bool) -> list[int]:
    ratio, never = RATIO_LOG2[prior % len(RATIO_LOG2)], NEVER_LOG2[prior // len(RATIO_LOG2)]
    sides = [min(39, ratio * ((z + 1) // 2)) for z in range(2 * largest + 1)]
    return [*sides, never] if with_never else sides


@cache
def residual_costs(prior: int, largest: int, *, with_never: bool = True) -> npt.NDArray[np.int64]:
    """Return the prices of the symbols of `residual_model`."""
    prices = _residual_prices(prior, largest, with_never)
    total = log2(sum(1 << (40 - bits) for bits in prices)) - (40 << COST_BITS)
    return np.array([(bits << COST_BITS) + total for bits in prices], np.int64)


@cache
def level_costs(spacing: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the prices [levels] of a changed and of an unchanged element at each level of a spacing.

    Entry 0 is not used.
    """
    levels = range(spacing, MAX_LEVEL + 1, spacing)
    one = _SCALE << COST_BITS
    changed = [0, *(one - log2(odds_of(level)[0]) for level in levels)]
    unchanged = [0, *(one - log2(odds_of(level)[1]) for level in levels)]
    return np.array(changed, np.int64), np.array(unchanged, np.int64)


@cache
def logarithms() -> npt.NDArray[np.int64]:
    """Return log2(256 + i) - 8 for i in 0 to 255 as prices, for kernels that need logarithms of counts."""
    return np.array([log2(256 + i) - (8 << COST_BITS) for i in range(256)], np.int64)


@cache
def step_widths() -> npt.NDArray[np.uint8]:
    """Return how many raw bits of a magnitude each step token leaves open [NUM_STEP_TOKENS]."""
    kinds = np.arange(NUM_STEP_TOKENS) // 2 - DIRECT_STEPS
    return np.where(kinds < 0, 0, kinds // 2 + 2).astype(np.uint8)


@cache
def code_weights() -> tuple[int, ...]:
    """Return the weight of each table entry [CODE_LEVELS]."""
    return (0, *(isqrt(1 << (40 + code)) for code in range(1, CODE_LEVELS)))


@lru_cache(1 << 16)
def log2(value: int) -> int:
    """Return log2 of an integer >= 1 with COST_BITS fraction bits, computed by repeated squaring."""
    exponent = value.bit_length() - 1
    # The mantissa in [1, 2) with 64 fraction bits. Squaring doubles its logarithm, whose next bit is 1 if it reaches 2.
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
    """Return the model of a number that is likely close to `expected`: half as likely for each four further away."""
    return Model([isqrt(isqrt(1 << max(0, 160 - abs(symbol - expected)))) for symbol in range(num_symbols)])


@cache
def spacing_model() -> Model:
    """Return the model of the spacings 1, 2 and 4."""
    return Model([6, 1, 1])


@cache
def prior_model() -> Model:
    """Return the model of the prior's number."""
    return Model(_prior_weights())


def _prior_weights() -> list[int]:
    return [NUM_PRIORS if prior == TIED_PRIOR else 1 for prior in range(NUM_PRIORS)]


@cache
def prior_cost(prior: int) -> int:
    """Return the price of a symbol of `prior_model`."""
    return log2(sum(_prior_weights())) - log2(_prior_weights()[prior])


@cache
def template_model() -> Model:
    """Return the model of the template's differences in zigzag order."""
    return Model([1 << (40 - bits) for bits in _template_prices()])


@cache
def template_costs() -> npt.NDArray[np.int64]:
    """Return the prices of the symbols of `template_model`."""
    total = log2(sum(1 << (40 - bits) for bits in _template_prices())) - (40 << COST_BITS)
    return np.array([(bits << COST_BITS) + total for bits in _template_prices()], np.int64)


def _template_prices() -> list[int]:
    """Return code lengths in bits. Odds double from exponent to exponent, except where they begin or saturate."""
    return [min(2 * off, 4 + off // 2) for off in ((z + 1) // 2 for z in range(2 * MAX_LEVEL + 1))]


@cache
def entry_model(*, coarse: bool) -> Model:
    """Return the model of table entries: zigzag differences, then ABSENT. Weights fall by sqrt(2) per step."""
    return Model(_entry_weights(coarse))


@cache
def entry_costs(*, coarse: bool) -> npt.NDArray[np.int64]:
    """Return the prices of the symbols of `entry_model`."""
    total = log2(sum(_entry_weights(coarse)))
    return np.array([total - log2(weight) for weight in _entry_weights(coarse)], np.int64)


def _entry_weights(coarse: bool) -> list[int]:
    largest = (CODE_LEVELS - 1) // (2 if coarse else 1)
    sides = [isqrt(1 << (80 - (z + 1) // 2)) for z in range(2 * largest + 1)]
    return [*sides, isqrt(1 << 76)]
