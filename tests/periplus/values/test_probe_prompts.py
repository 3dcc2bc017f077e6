import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.probe_prompts import NUM_LOGPROBS, NUM_SEQUENCES, NUM_TOKENS, max_difference, probe_prompts


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


FROZEN = [[567, 432, 70, 931], [874, 66, 750, 532], [452, 852, 440, 459], [84, 687, 193, 821]]


def test_seeds_give_other_prompts() -> None:
    assert not np.array_equal(probe_prompts(0, 50_000), probe_prompts(1, 50_000))


def test_a_vocabulary_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size"):
        probe_prompts(0, 0)


def test_the_largest_difference_counts_and_what_is_no_number_is_infinitely_far() -> None:
    assert max_difference((-1.0, -2.0), (-1.5, -2.25)) == 0.5
    assert max_difference((), ()) == 0.0
    assert max_difference((-1.0,), (math.nan,)) == math.inf
    assert max_difference((-math.inf,), (-math.inf,)) == math.inf
    assert max_difference((-1.0,) * NUM_LOGPROBS, (-1.0,)) == math.inf
