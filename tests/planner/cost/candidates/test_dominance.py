"""The Pareto filter finds the rows that no other row dominates."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from planner.cost.candidates.dominance import undominated

TABLES = arrays.arrays(
    np.float64, st.tuples(st.integers(0, 60), st.integers(1, 4)), elements=st.integers(0, 4).map(float)
)


@given(TABLES)
def test_a_row_stays_exactly_if_no_other_is_nowhere_worse(costs: npt.NDArray[np.float64]) -> None:
    stays = undominated(costs)
    for i, row in enumerate(costs):
        better = [
            j for j, other in enumerate(costs) if j != i and (other <= row).all() and ((other < row).any() or stays[j])
        ]
        assert stays[i] == (not better), (i, better)


def test_of_equal_rows_the_first_stays() -> None:
    assert undominated(np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])).tolist() == [True, False, True]


def test_more_rows_than_are_compared_at_once() -> None:
    ranks = np.arange(1500.0)
    assert undominated(np.stack([ranks, -ranks], axis=1)).all()
    assert undominated(np.stack([ranks, ranks], axis=1)).sum() == 1
