"""Error scores, compared with values computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.planner_cases.calibration.score import ranks, score, spearman


def test_errors_are_relative_to_what_was_measured() -> None:
    found = score(np.array([1.1, 1.0, 3.0]), np.array([1.0, 1.0, 2.0]), ["a", "b", "c"])
    assert found.mean_error == pytest.approx(0.2)
    assert found.worst_error == pytest.approx(0.5)
    assert (found.worst, found.num_rows) == ("c", 3)


def test_ties_share_their_mean_rank() -> None:
    np.testing.assert_array_equal(ranks(np.array([5.0, 1.0, 5.0, 7.0])), [2.5, 1.0, 2.5, 4.0])


def test_a_known_rank_correlation() -> None:
    assert spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(0.8)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=30, unique=True))
def test_only_the_order_matters(values: list[int]) -> None:
    a = np.array(values, dtype=np.float64)
    assert spearman(a, np.log(a) * 3 + 1) == pytest.approx(1.0)
    assert spearman(a, -a) == pytest.approx(-1.0)
