import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.view.axes import Axis, log_axis, nice_range, ticks


def test_ranges_are_round_and_never_empty() -> None:
    assert nice_range([0.21, 0.77]) == pytest.approx((0.2, 0.8))
    low, high = nice_range([5, 5])
    assert low <= 5 <= high
    assert low < high
    assert nice_range([float("nan")]) == (0, 1)
    assert ticks((0, 1), 4) == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_a_linear_axis_may_go_up_in_a_picture_whose_places_go_down() -> None:
    up = Axis(0, 10, 200, 100)
    assert [up.at(value) for value in (0, 2.5, 10)] == [200, 175, 100]
    assert up.ticks() == [0, 2, 4, 6, 8, 10]
    assert up.ticks(num_steps=2) == [0, 5, 10]


def test_equal_factors_are_equally_far_apart_on_a_logarithmic_axis() -> None:
    across = log_axis(1, 100, 0, 50)
    assert [across.at(value) for value in (1, 10, 100)] == pytest.approx([0, 25, 50])
    assert across.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert across.ticks(mantissas=(1,)) == [1, 10, 100]
    assert log_axis(0.3, 7, 0, 1).ticks() == pytest.approx([0.5, 1, 2, 5])


@given(
    st.booleans(),
    st.floats(1e-3, 1e3),
    st.floats(1.01, 1e6),
    st.floats(-1e9, 1e9),
    st.sampled_from([(0.0, 100.0), (100.0, 0.0)]),
)
def test_every_value_is_placed_on_the_axis(
    is_logarithmic: bool, low: float, factor: float, value: float, ends: tuple[float, float]
) -> None:
    axis = Axis(low, low * factor, *ends, is_logarithmic=is_logarithmic)
    assert -1e-6 <= axis.at(value) <= 100 + 1e-6
    assert (axis.at(low), axis.at(low * factor)) == pytest.approx(ends)
    assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick in axis.ticks())
