import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.problem.lengths import NUM_QUANTILES, constant, lognormal, of_mean, of_samples


def test_a_constant_has_one_quantile() -> None:
    assert constant(7).quantiles == (7.0,)


def test_a_lognormal_has_its_median_and_its_mean() -> None:
    lengths = lognormal(median_tokens=100, sigma=0.5, cap_tokens=1e9)
    assert lengths.at(0.5) == pytest.approx(100, rel=0.01)
    assert lengths.mean == pytest.approx(100 * math.exp(0.5**2 / 2), rel=0.01)


@given(st.floats(1, 131_072), st.floats(0.001, 1))
def test_a_mean_below_a_cap_is_kept(cap: float, share: float) -> None:
    lengths = of_mean(share * cap, cap)
    quantiles = lengths.quantiles
    assert lengths.largest == cap
    assert quantiles[0] > 0
    assert list(quantiles) == sorted(quantiles)
    assert lengths.mean == pytest.approx(share * cap, rel=0.02 if share > 0.005 else 0.8)


def test_a_mean_above_its_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 24"):
        of_mean(25, 24)


@given(st.lists(st.integers(0, 10**5), min_size=1, max_size=300), st.floats(1, 1e5))
def test_quantiles_of_samples_ascend_within_them_and_below_the_cap(samples: list[int], cap: float) -> None:
    quantiles = of_samples(samples, cap).quantiles
    assert len(quantiles) == NUM_QUANTILES
    assert list(quantiles) == sorted(quantiles)
    assert min(min(samples), cap) <= quantiles[0] <= quantiles[-1] <= min(max(samples), cap)


def test_no_samples_are_no_distribution() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        of_samples([])
