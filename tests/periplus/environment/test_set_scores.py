"""Tests of mean@k and pass@k: against their definitions, and of the intervals against the formula's known values."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.environment.set_scores import interval, pass_at_k, scores_of


@pytest.mark.parametrize("num_right", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_with_a_right_one(num_right: int, k: int) -> None:
    samples = [place < num_right for place in range(5)]
    choices = list(itertools.combinations(samples, k))
    assert pass_at_k(5, num_right, k) == pytest.approx(sum(map(any, choices)) / len(choices))


@pytest.mark.parametrize(("num_samples", "num_right", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_impossible_counts_are_refused(num_samples: int, num_right: int, k: int) -> None:
    with pytest.raises(ValueError, match="right ones"):
        pass_at_k(num_samples, num_right, k)


def test_with_one_sample_a_problem_it_is_wilsons_interval() -> None:
    found = interval([1.0] * 15 + [0.0] * 35)
    # Wilson's formula for 15 of 50, written out.
    z, n, p = 1.959963984540054, 50, 0.3
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half))
    assert found.value == pytest.approx(0.3)


def test_samples_that_agree_within_a_problem_count_once() -> None:
    alike = scores_of([4] * 10 + [0] * 10, num_samples=4, k=4)
    single = scores_of([1] * 10 + [0] * 10, num_samples=1, k=1)
    assert alike.mean == single.mean
    spread = scores_of([2] * 10 + [1] * 5 + [3] * 5, num_samples=4, k=4)
    assert spread.mean.high - spread.mean.low < alike.mean.high - alike.mean.low


def test_nothing_right_leaves_a_wide_interval() -> None:
    found = scores_of([0] * 10, num_samples=8, k=8)
    assert found.mean.value == 0.0
    assert found.mean.low == 0.0
    assert found.mean.high > 0.25


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_an_interval_holds_its_mean_and_stays_within_zero_and_one(values: list[float]) -> None:
    found = interval(values)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0 + 1e-12


def test_an_interval_needs_a_problem() -> None:
    with pytest.raises(ValueError, match="no problem"):
        interval([])
