"""Bottleneck matchings, compared with brute force."""

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ranks.matching import bottleneck
from tests.support.cases.examples import examples


@settings(max_examples=examples(60), deadline=None)
@given(num=st.integers(1, 6), seed=st.integers(0, 1 << 30))
def test_no_perfect_matching_has_a_better_worst_edge(num: int, seed: int) -> None:
    rates = np.random.default_rng(seed).integers(1, 8, (num, num)).astype(float)
    columns = bottleneck(rates)
    assert sorted(columns) == list(range(num))
    best = max(min(rates[i, c] for i, c in enumerate(order)) for order in permutations(range(num)))
    assert min(rates[i, c] for i, c in enumerate(columns)) == best


def test_a_matching_that_needs_a_long_augmenting_path_is_found() -> None:
    rates = np.ones((5, 5))
    for i in range(5):
        rates[i, i] = rates[i, (i + 1) % 5] = 2.0
    rates[4, 4] = 1.0  # row 4 must take column 0, and everyone else moves on
    assert min(rates[i, c] for i, c in enumerate(bottleneck(rates))) == 2.0
