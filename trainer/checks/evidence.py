"""Sequential tests of whether one worker's samples are from the weights that the worker names.

The trainer computes each token again, in float32 with the published weights: log-probability p, entropy h, and variance
v of the surprisal. The worker reported the log-probability q. Four tests look for four kinds of faults.

    difference   q - p is larger than rounding explains. Tokens are counted where it is above `FACTOR` times the
                 trainer's own rounding to bfloat16, at most `SOUND_SHARE` of them in a sound engine. Prefill and
                 decoding, which are different programs, are counted apart.
    old weights  q - p points to where the weights were before: it is a part of p(older version) - p. Rounding does not,
                 so this finds a fault that is far smaller than rounding, such as one layer that is a version old.
    surprisal    the mean of -p is not that of h: the tokens were drawn at another temperature, or from a part of the
                 vocabulary, though q is right.
    replay       the token is not the one that its random number gives. The engine torch draws by inversion, with a
                 number in [0, 1) that is a function of a key (periplus/values/keyed_draws.py): the probability of all
                 tokens with smaller ids is at most this number, and with the token's own probability it is above it,
                 but for rounding. Counted like the first test. Nothing travels for it. The idea is that of Token-DiFR
                 (arXiv 2511.20621).

All are tests by betting (Ramdas et al., "Game-theoretic statistics and safe anytime-valid inference", 2023): a *wealth*
that is a supermartingale while the engine is sound, so that it exceeds 1 / ALPHA at any time with a probability of at
most ALPHA. A test begins anew every `WINDOW` tokens, so that a fault shows that begins late. The first and the last
test begin anew whenever their wealth has fallen below its start too (as CUSUM does): a sound engine then passes
1 / ALPHA tokens in the mean before a false alarm (Lorden 1971).

An engine that computes in float32, as the trainer does for these tests, rounds a thousand times less than one in
bfloat16. It is known by its first `EXACT_TOKENS` tokens of which bfloat16 would have shown: not by nearly certain ones,
which no rounding changes. From then on it is held against `FLOOR_NATS` in place of the rounding to bfloat16.

Tokens after the same text, such as the first ones of a group, share their rounding. But for the surprisal they count as
one: by the mean of what they pay, which is a fair bet too, however they depend on each other.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

ALPHA = 1e-9
"""Probability of a false alarm in one window, and of the tests that count at each beginning."""

WINDOW = 8192
"""Tokens after which a test begins anew. Chosen by hand: four times what the smallest faults need that are found."""

FACTOR = 4.0
"""Largest difference in units of the trainer's own rounding (the root of its mean square). Rounding errors of an engine
and of the trainer are about as large, so a sound difference is beyond it once in thousands of tokens. A token may have
a larger one if the trainer's own rounding of it is as large."""

SOUND_SHARE = 0.05
"""Largest share of the tokens of a sound engine that differ by more. Chosen far above what was measured."""

FAULTY_SHARE = 0.3
"""Share that the bet of the first test is made for."""

SOUND_REPLAY_SHARE, FAULTY_REPLAY_SHARE = 0.001, 0.01
"""The same for tokens that are not those of their random numbers: these fall near the border of a token's part by
chance alone. None of 10,000 tokens of sound engines of 4 to 28 layers was beyond 2.3 units."""

FLOOR_NATS = 2e-5
"""Least unit of the first and the last test, and the unit for an engine in float32, in nats (for the last test, as a
probability). Log-probabilities of sound engines in float32 differ by 5e-6 at most (periplus/values/probe_prompts.py).
"""

EXACT_TOKENS = 256
"""Tokens that bfloat16 moves by more than `FLOOR_NATS`. If none of the first so many of a worker, and no other token
until then, differs by more than half of that, its engine is in float32."""

LARGEST_CHANGE = 1.0
"""Change between two versions, in units of rounding, above which a token counts no more in the second test. Few tokens
change by tens of units, and would decide alone."""

OLD_UNITS = 0.1
"""Mean by which a sound engine's difference may point to older weights, in units of rounding. Sound engines: 0.04."""

PRIOR_VARIANCE = 1.0
"""Sum of variances at which the surprisal's test is most sensitive, in nats squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredTokens:
    """Tokens of one worker, computed again: arrays of one element a token, in nats.

    `reported` is the worker's log-probability, and `exact` the trainer's in float32. `rounded` is the trainer's in
    bfloat16. `older` is under an older version; None if there is none. `entropies` and `variances` are mean and
    variance of the surprisal. `is_prefill` is true for a completion's first token. Tokens after the same text have the
    same number in `contexts`. `below` is the probability of all tokens with smaller ids in float32, `below_rounded` in
    bfloat16, and `uniforms` the number that the token was drawn with; None if the engine draws in another way.
    """

    reported: FloatArray
    exact: FloatArray
    rounded: FloatArray
    older: FloatArray | None
    entropies: FloatArray
    variances: FloatArray
    is_prefill: npt.NDArray[np.bool_]
    contexts: npt.NDArray[np.int64]
    below: FloatArray
    below_rounded: FloatArray
    uniforms: FloatArray | None


@dataclass(slots=True)
class Wealth:
    """Wealth of one bet that pays by token, as its logarithm; and the tokens since it began."""

    log: float = 0.0
    num_tokens: int = 0

    def add(self, log_payoffs: FloatArray) -> bool:
        """Add tokens, and return whether the wealth exceeds 1 / ALPHA."""
        self.log += float(log_payoffs.sum())
        self.num_tokens += len(log_payoffs)
        if self.log > -math.log(ALPHA):
            return True
        if self.num_tokens >= WINDOW or self.log < 0:  # what was lost would have to be won back first
            self.log, self.num_tokens = 0.0, 0
        return False


@dataclass(slots=True)
class Sum:
    """A sum of which a sound engine's mean is 0 (or below), with a bound of its variance."""

    value: float = 0.0
    variance: float = 0.0
    num_tokens: int = 0

    def add(self, values: FloatArray, variances: FloatArray, prior: float, *, two_sided: bool) -> bool:
        """Add tokens, and return whether the wealth of a mixture of bets on the mean exceeds 1 / ALPHA.

        `prior` is the variance at which the mixture is most sensitive.
        """
        self.value += float(values.sum())
        self.variance += float(variances.sum())
        self.num_tokens += len(values)
        whole = self.variance + prior
        log = 0.5 * math.log(prior / whole) + self.value**2 / (2 * whole) if whole > 0 else 0.0
        if (two_sided or self.value > 0) and log > -math.log(ALPHA):
            return True
        if self.num_tokens >= WINDOW:
            self.value, self.variance, self.num_tokens = 0.0, 0.0, 0
        return False


@dataclass(slots=True)
class SampleEvidence:
    """What the samples of one worker say. Feed it with `add`; after an alarm begin with a new one."""

    prefill: Wealth = field(default_factory=Wealth)
    decoding: Wealth = field(default_factory=Wealth)
    old_weights: Sum = field(default_factory=Sum)
    surprisal: Sum = field(default_factory=Sum)
    replay: Wealth = field(default_factory=Wealth)
    num_telling: int = 0  # tokens so far that bfloat16 moves
    may_be_exact: bool = True  # no token differs so far, or until `EXACT_TOKENS` of these were seen

    def add(self, tokens: RescoredTokens) -> str:
        """Add tokens, and return what is wrong, or an empty text. Values that are not finite are wrong."""
        if not len(tokens.reported):
            return ""
        if not np.isfinite(tokens.reported).all():
            return "a log-probability is not finite"
        difference = tokens.reported - tokens.exact
        # Until it is known that the engine is in float32, it is held against the rounding to bfloat16.
        is_exact = self.may_be_exact and self.num_telling >= EXACT_TOKENS
        if self.num_telling < EXACT_TOKENS:
            self.may_be_exact = self.may_be_exact and bool(np.abs(difference).max() < FLOOR_NATS / 2)
            self.num_telling += int(np.count_nonzero(np.abs(tokens.rounded - tokens.exact) > FLOOR_NATS))
        unit, limits = _rounding(tokens, is_exact=is_exact)
        payoffs = _payoffs(np.abs(difference) > limits, FAULTY_SHARE, SOUND_SHARE)
        first, contexts = tokens.is_prefill, tokens.contexts
        if self.prefill.add(np.log(_means(payoffs[first], contexts[first]))):
            return "log-probabilities of first tokens (prefill) differ by more than rounding"
        if self.decoding.add(np.log(_means(payoffs[~first], contexts[~first]))):
            return "log-probabilities after the first token (decoding) differ by more than rounding"
        if tokens.older is not None and self._is_old(difference, tokens.older - tokens.exact, unit, contexts):
            return "log-probabilities are in part those of older weights"
        drawn = -tokens.exact - tokens.entropies
        # exp(l S - l^2 / 6 (sum of squares + 2 sum of variances)) is a supermartingale (Delyon 2009).
        if self.surprisal.add(drawn, (drawn**2 + 2 * tokens.variances) / 3, PRIOR_VARIANCE, two_sided=True):
            return "tokens are not drawn from the distribution that their log-probabilities are of"
        if tokens.uniforms is not None:
            payoffs = _payoffs(_not_replayed(tokens, is_exact=is_exact), FAULTY_REPLAY_SHARE, SOUND_REPLAY_SHARE)
            if self.replay.add(np.log(_means(payoffs, contexts))):
                return "tokens are not those that their random numbers give"
        return ""

    def _is_old(
        self, difference: FloatArray, change: FloatArray, rounding: FloatArray, contexts: npt.NDArray[np.int64]
    ) -> bool:
        # In units of rounding, which depends on the token, so that no single one outweighs the others.
        noise = np.clip(difference / rounding, -FACTOR, FACTOR)
        direction = np.clip(change / rounding, -LARGEST_CHANGE, LARGEST_CHANGE)
        values = _means(noise * direction - OLD_UNITS * np.abs(direction), contexts)
        # The noise is as likely to be positive as negative, so squares bound the variance.
        return self.old_weights.add(values, values**2, 1.0, two_sided=False)


def _payoffs(is_beyond: npt.NDArray[np.bool_], faulty_share: float, sound_share: float) -> FloatArray:
    """Return what the bet on `faulty_share` against `sound_share` pays for each token."""
    return np.where(is_beyond, faulty_share / sound_share, (1 - faulty_share) / (1 - sound_share))


def _rounding(tokens: RescoredTokens, *, is_exact: bool) -> tuple[FloatArray, FloatArray]:
    """Return the unit of rounding of each token's log-probability, and the largest difference of a sound engine."""
    if is_exact:
        unit = np.full(len(tokens.exact), FLOOR_NATS)
        return unit, FACTOR * unit
    # The gradient of log p in the logits has this size, up to a factor of the root of 2, and rounding acts on them.
    scale = -np.expm1(np.minimum(tokens.exact, 0.0)) + 1e-3
    own = tokens.rounded - tokens.exact
    unit = max(float(np.sqrt(np.mean((own / scale) ** 2))), FLOOR_NATS) * scale
    return unit, FACTOR * np.maximum(unit, np.abs(own))


def _not_replayed(tokens: RescoredTokens, *, is_exact: bool) -> npt.NDArray[np.bool_]:
    """Return where the random number lies outside of the token's part of [0, 1), by more than rounding explains."""
    assert tokens.uniforms is not None
    above, above_rounded = tokens.below + np.exp(tokens.exact), tokens.below_rounded + np.exp(tokens.rounded)
    missed = np.maximum(tokens.below - tokens.uniforms, tokens.uniforms - above)
    if is_exact:
        return missed > FACTOR * FLOOR_NATS
    rounding = np.maximum(np.abs(tokens.below_rounded - tokens.below), np.abs(above_rounded - above))
    unit = max(float(np.sqrt(np.mean(rounding**2))), FLOOR_NATS)
    return missed > FACTOR * np.maximum(unit, rounding)


def _means(values: FloatArray, contexts: npt.NDArray[np.int64]) -> FloatArray:
    """Return the mean of the values of each context, in the contexts' order."""
    _, which, counts = np.unique(contexts, return_inverse=True, return_counts=True)
    found: FloatArray = np.bincount(which, values, len(counts)) / counts
    return found
