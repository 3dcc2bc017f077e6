"""Real processes share a step over gloo and get what one process gets."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trainer.gloo import run_on_ranks
from tests.support.trainer.rank_steps import CASES, TOLERANCE, steps_alone, steps_on_ranks
from trainer.learning.ranks import Ranks


def test_alone_a_sum_is_what_went_in() -> None:
    tensor = torch.tensor([1.0, 2.0])
    assert Ranks().sum_(tensor) is tensor
    assert tensor.tolist() == [1.0, 2.0]


@given(
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5),
    st.integers(0, 60),
)
def test_rows_are_divided_by_the_shares_and_each_is_on_one_rank(speeds: list[float], num_rows: int) -> None:
    shares = tuple(speed / sum(speeds) for speed in speeds)
    rows = [10 * row for row in range(num_rows)]
    owned = [Ranks(rank=rank, size=len(shares), shares=shares).mine(rows) for rank in range(len(shares))]
    assert sorted(row for own in owned for row in own) == rows
    for own, share in zip(owned, shares, strict=True):
        assert abs(len(own) - share * num_rows) < len(shares)


def test_equal_shares_divide_as_no_shares_do() -> None:
    rows = list(range(11))
    for rank in range(3):
        assert list(Ranks(rank=rank, size=3, shares=(1 / 3,) * 3).mine(rows)) == rows[rank::3]


@pytest.fixture(scope="module", params=[2, 3, 4])
def on_ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return run_on_ranks(steps_on_ranks, request.param)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return steps_alone()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_several_ranks_take_the_step_that_one_process_takes(
    case: str, on_ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    expected, tolerance = alone[case], TOLERANCE.get(case, 1e-5)
    for rank in on_ranks:
        assert rank[case]["values"] == pytest.approx(expected["values"], rel=tolerance, abs=tolerance / 10)
        error = (rank[case]["changed"] - expected["changed"]).norm() / expected["changed"].norm()
        assert float(error) < tolerance
        assert np.allclose(rank[case]["samples"], expected["samples"], rtol=tolerance, atol=tolerance)
        assert rank[case]["samples"] == on_ranks[0][case]["samples"], "all ranks tell the same of each sample"
        assert rank[case]["values"] == on_ranks[0][case]["values"], "all ranks report the same numbers"
