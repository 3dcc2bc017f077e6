"""The tests of samples: sound engines raise no alarm however long they run, and each kind of fault does."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from trainer.checks.evidence import RescoredTokens, SampleEvidence

VOCABULARY = 40
ROUNDING = 0.01
NUM_TOKENS = 256


def batch(draws: np.random.Generator, *, sharpness: float = 1.0, moved: float = 0.0) -> RescoredTokens:
    """Tokens of a sound engine: both sides round their logits, and the older version's logits lie `moved` away.

    The engine draws by inversion of its rounded distribution.
    """
    logits = sharpness * draws.standard_normal((NUM_TOKENS, VOCABULARY))
    logprobs = normalized(logits)
    probabilities = np.exp(logprobs)
    rows = np.arange(NUM_TOKENS)
    entropies = -(probabilities * logprobs).sum(1)
    noises = [ROUNDING * draws.standard_normal(logits.shape) for _ in range(2)]
    uniforms = draws.random(NUM_TOKENS)
    tokens = inverted(np.exp(normalized(logits + noises[0])), uniforms)
    older = normalized(logits + moved * draws.standard_normal(logits.shape)) if moved else None
    return RescoredTokens(
        reported=normalized(logits + noises[0])[rows, tokens],
        exact=logprobs[rows, tokens],
        rounded=normalized(logits + noises[1])[rows, tokens],
        older=None if older is None else older[rows, tokens],
        entropies=entropies,
        variances=(probabilities * (logprobs + entropies[:, None]) ** 2).sum(1),
        is_prefill=rows % 16 == 0,
        contexts=rows,
        below=below(probabilities, tokens),
        below_rounded=below(np.exp(normalized(logits + noises[1])), tokens),
        uniforms=uniforms,
    )


def inverted(probabilities: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    sums = probabilities.cumsum(1)
    found: np.ndarray = (sums <= uniforms[:, None] * sums[:, -1:]).sum(1)
    return found


def below(probabilities: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.where(np.arange(VOCABULARY) < tokens[:, None], probabilities, 0.0).sum(1)
    return found


def normalized(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found


def tokens_until(found: str, change: Callable[[RescoredTokens], RescoredTokens], *, moved: float = 0.0) -> int:
    draws, evidence = np.random.default_rng(1), SampleEvidence()
    for number in range(1, 60):
        if why := evidence.add(change(batch(draws, moved=moved))):
            assert found in why
            return 256 * number
    raise AssertionError("not found")


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("moved", [0.0, 0.003, 0.1])
def test_a_sound_engine_raises_no_alarm(sharpness: float, moved: float) -> None:
    """Near certain tokens too: their surprisal is below its mean until a rare one comes."""
    draws, evidence = np.random.default_rng(0), SampleEvidence()
    for _ in range(100):
        assert evidence.add(batch(draws, sharpness=sharpness, moved=moved)) == ""


def test_tokens_after_the_same_text_count_as_one() -> None:
    """A group's first tokens share one rounding, which is beyond the limit now and then."""
    draws, evidence = np.random.default_rng(6), SampleEvidence()
    for _ in range(100):
        tokens = batch(draws, moved=ROUNDING)
        drawn = draws.integers(NUM_TOKENS // 16, size=NUM_TOKENS // 16).repeat(16)
        alike = {name: getattr(tokens, name)[drawn] for name in tokens.__slots__} | {"contexts": drawn}
        is_beyond = draws.random(NUM_TOKENS)[drawn] < 0.02
        alike["reported"] = np.where(is_beyond, alike["exact"] + 0.2, alike["reported"])
        alike["entropies"] = -alike["exact"]  # these are one token 16 times, not 16 draws
        assert evidence.add(replace(tokens, **alike)) == ""


def test_differences_beyond_rounding_are_found_where_they_are() -> None:
    def decoding(tokens: RescoredTokens) -> RescoredTokens:
        return replace(tokens, reported=np.where(tokens.is_prefill, tokens.reported, tokens.exact - 0.2))

    def prefill(tokens: RescoredTokens) -> RescoredTokens:
        return replace(tokens, reported=np.where(tokens.is_prefill, tokens.exact - 0.2, tokens.reported))

    assert tokens_until("(decoding)", decoding) == 256
    assert tokens_until("(prefill)", prefill) == 256


def test_a_part_of_older_weights_is_found_although_it_is_smaller_than_rounding() -> None:
    def stale(tokens: RescoredTokens) -> RescoredTokens:
        assert tokens.older is not None
        return replace(tokens, reported=tokens.reported + 0.5 * (tokens.older - tokens.exact))

    assert tokens_until("older weights", stale, moved=ROUNDING) < 3000


def test_an_older_version_that_nothing_is_of_is_no_evidence() -> None:
    draws, evidence = np.random.default_rng(2), SampleEvidence()
    for _ in range(60):
        tokens = batch(draws, moved=ROUNDING)
        assert tokens.older is not None
        # A twentieth: as much as a sound engine may have by chance of its rounding.
        assert evidence.add(replace(tokens, reported=tokens.reported + 0.02 * (tokens.older - tokens.exact))) == ""


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_another_temperature_is_found_although_log_probabilities_are_right(factor: float) -> None:
    draws, evidence, count = np.random.default_rng(3), SampleEvidence(), 0
    while True:
        logits = 2.0 * draws.standard_normal((256, VOCABULARY))
        right, drawn = normalized(logits), np.exp(normalized(logits / factor))
        tokens = np.array([draws.choice(VOCABULARY, p=each / each.sum()) for each in drawn])
        exact, probabilities = right[np.arange(256), tokens], np.exp(right)
        entropies = -(probabilities * right).sum(1)
        variances = (probabilities * (right + entropies[:, None]) ** 2).sum(1)
        none = np.zeros(256, np.bool_)
        count += 256
        compared = RescoredTokens(
            reported=exact,
            exact=exact,
            rounded=exact,
            older=None,
            entropies=entropies,
            variances=variances,
            is_prefill=none,
            contexts=np.arange(256),
            below=exact,
            below_rounded=exact,
            uniforms=None,
        )
        if why := evidence.add(compared):
            assert "drawn" in why
            break
    assert count < 2000


@pytest.mark.parametrize("fault", ["temperature", "top_k", "min_p", "other numbers"])
def test_tokens_that_are_not_those_of_their_random_numbers_are_found_soon(fault: str) -> None:
    draws = np.random.default_rng(7)
    logits = draws.standard_normal((NUM_TOKENS, VOCABULARY))
    right = normalized(logits)
    logits = {
        "temperature": logits / 0.7,
        "top_k": np.where(right >= np.sort(right, 1)[:, -20:-19], logits, -np.inf),
        "min_p": np.where(right >= right.max(1, keepdims=True) + np.log(0.05), logits, -np.inf),
        "other numbers": logits,
    }[fault]
    uniforms = draws.random(NUM_TOKENS)
    tokens = inverted(np.exp(normalized(logits)), draws.random(NUM_TOKENS) if fault == "other numbers" else uniforms)
    rows, probabilities = np.arange(NUM_TOKENS), np.exp(right)
    exact = right[rows, tokens]
    rounded = normalized(right + ROUNDING * draws.standard_normal(right.shape))
    compared = RescoredTokens(
        reported=exact,
        exact=exact,
        rounded=rounded[rows, tokens],
        older=None,
        entropies=-exact,  # the surprisal says nothing
        variances=np.ones(NUM_TOKENS),
        is_prefill=rows < 0,
        contexts=rows,
        below=below(probabilities, tokens),
        below_rounded=below(np.exp(rounded), tokens),
        uniforms=uniforms,
    )
    assert "random numbers" in SampleEvidence().add(compared)
    assert SampleEvidence().add(replace(compared, uniforms=None)) == ""


def test_an_engine_in_float32_is_held_against_its_own_rounding() -> None:
    """What is far below the rounding to bfloat16 is found, once the engine has shown how it rounds."""
    draws, evidence = np.random.default_rng(8), SampleEvidence()

    def tokens(shift: float) -> RescoredTokens:
        sound = batch(draws)
        return replace(sound, reported=sound.exact + shift + 1e-6 * draws.standard_normal(NUM_TOKENS), uniforms=None)

    for _ in range(20):
        assert evidence.add(tokens(0.0)) == ""
    assert "differ by more than rounding" in evidence.add(tokens(ROUNDING / 50))
    assert SampleEvidence().add(tokens(ROUNDING / 50)) == "", "from the start it may be in bfloat16"


def test_nearly_certain_tokens_do_not_show_that_an_engine_is_in_float32() -> None:
    """A job that goes on from a trained policy: its first tokens hide that the engine rounds to bfloat16."""
    draws, evidence = np.random.default_rng(9), SampleEvidence()
    for _ in range(10):
        certain = batch(draws, sharpness=1.0)
        nothing = np.full(NUM_TOKENS, -1e-9)
        sure = dict.fromkeys(("reported", "exact", "rounded"), nothing)
        assert evidence.add(replace(certain, **sure, entropies=-nothing, uniforms=None)) == ""
    for _ in range(30):
        assert evidence.add(batch(draws)) == ""


def test_a_fault_that_begins_late_is_found_as_soon() -> None:
    draws, evidence = np.random.default_rng(4), SampleEvidence()
    for _ in range(100):
        assert evidence.add(batch(draws, moved=ROUNDING)) == ""
    for _ in range(60):
        tokens = batch(draws, moved=ROUNDING)
        assert tokens.older is not None
        if evidence.add(replace(tokens, reported=tokens.reported + 0.6 * (tokens.older - tokens.exact))):
            return
    raise AssertionError("not found")


def test_a_log_probability_that_is_not_finite_is_wrong() -> None:
    tokens = batch(np.random.default_rng(5))
    reported = tokens.reported.copy()
    reported[3] = np.nan
    assert "not finite" in SampleEvidence().add(replace(tokens, reported=reported))


def test_nothing_says_nothing() -> None:
    none = np.zeros(0)
    tokens = RescoredTokens(
        reported=none,
        exact=none,
        rounded=none,
        older=None,
        entropies=none,
        variances=none,
        is_prefill=none.astype(np.bool_),
        contexts=none.astype(np.int64),
        below=none,
        below_rounded=none,
        uniforms=none,
    )
    assert SampleEvidence().add(tokens) == ""
