import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.publication.values import MAX_PROBE_LOGPROBS
from periplus.values.probe_prompts import (
    NUM_LOGPROBS,
    NUM_SEQUENCES,
    NUM_TOKENS,
    PROBE_LIMITS_BF16,
    PROBE_LIMITS_FLOAT32,
    ProbeDifference,
    probe_difference,
    probe_prompts,
)


@given(st.integers(0, 2**32 - 1), st.integers(1, 300_000))
def test_prompts_are_ids_of_the_vocabulary_and_the_same_each_time(seed: int, vocab_size: int) -> None:
    ids = probe_prompts(seed, vocab_size)
    assert ids.shape == (NUM_SEQUENCES, NUM_TOKENS)
    assert ids.dtype == np.int64
    assert 0 <= ids.min() <= ids.max() < vocab_size
    assert np.array_equal(ids, probe_prompts(seed, vocab_size))


def test_prompts_are_frozen() -> None:
    """Trainer and workers of different builds must ask the same."""
    assert probe_prompts(7, 1000)[:, :4].tolist() == FROZEN


FROZEN = [
    [567, 432, 70, 931],
    [452, 852, 440, 459],
    [95, 654, 65, 493],
    [690, 658, 410, 38],
    [210, 333, 292, 540],
    [244, 247, 456, 163],
    [351, 23, 840, 629],
    [911, 659, 528, 984],
]


def test_seeds_give_other_prompts() -> None:
    assert not np.array_equal(probe_prompts(0, 50_000), probe_prompts(1, 50_000))


def test_a_vocabulary_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size"):
        probe_prompts(0, 0)


def test_mean_and_largest_difference_are_without_sign_and_what_is_no_number_is_infinitely_far() -> None:
    assert probe_difference((-1.0, -2.0), (-1.5, -1.75)) == ProbeDifference(mean=0.375, max=0.5, spread=0.5)
    assert probe_difference((), ()) == ProbeDifference()
    for expected, found in (
        ((-1.0,), (math.nan,)),
        ((-math.inf,), (-math.inf,)),
        ((-1.0,) * NUM_LOGPROBS, (-1.0,)),
        ((), (-1.0,)),
    ):
        assert probe_difference(expected, found).mean == math.inf
        assert probe_difference(expected, found).max == math.inf


def test_later_checks_are_held_against_the_engines_own_first_difference_as_values_spread() -> None:
    limits = PROBE_LIMITS_BF16
    first = ProbeDifference(mean=0.004, max=0.02, spread=1.0)
    assert limits.of(None, 1.0) == limits.first_nats
    assert limits.of(None, 4.0, rounding=0.02) == pytest.approx(0.2), "a deep model may round more"
    assert limits.of(None, 1.0, rounding=0.0) == limits.floor_nats
    assert PROBE_LIMITS_FLOAT32.of(None, 4.0, rounding=0.02) == PROBE_LIMITS_FLOAT32.first_nats
    assert limits.of(first.relative, 1.0) == pytest.approx(0.007)
    assert limits.of(first.relative, 2.0) == pytest.approx(0.014), "rounding grows with the logits"
    assert limits.of(0.0, 1.0) == limits.floor_nats


def test_a_closing_has_room_for_the_probe() -> None:
    assert NUM_LOGPROBS <= MAX_PROBE_LOGPROBS
