"""Phase tables, and the time at which several pools together have made enough samples."""

import numpy as np
import pytest

from planner.cost.tasks.phase_tables import PhaseTable, end_s, grid, phase_end_s, table

SECONDS = np.array([1.0, 2.0, 2.0, 3.0, 4.0])
JUMPS = PhaseTable(seconds=SECONDS, samples=np.array([0.0, 0.0, 4.0, 5.0, 6.0]))
EARLY = PhaseTable(seconds=SECONDS, samples=np.array([1.0, 2.0, 2.0, 3.0, 4.0]))


def test_nothing_is_made_before_the_jump_and_all_of_it_at_it() -> None:
    assert JUMPS.samples_within(0.5) == 0.0
    assert JUMPS.samples_within(1.999) == pytest.approx(0.0)
    assert JUMPS.samples_within(2.0) == 4.0
    assert JUMPS.samples_within(2.5) == 4.5


def test_beyond_the_last_knot_samples_are_in_proportion() -> None:
    assert JUMPS.samples_within(8.0) == 12.0


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [(0.5, 1.0), (2.0, 2.0), (3.0, 2.0), (6.0, 2.0), (7.0, 2.5), (10.0, 4.0), (20.0, 8.0)],
)
def test_the_end_is_the_least_time_in_which_units_of_both_make_enough(samples: float, seconds: float) -> None:
    assert phase_end_s([(1, JUMPS), (1, EARLY)], samples) == pytest.approx(seconds, rel=1e-9)


def test_more_units_are_done_sooner() -> None:
    assert phase_end_s([(2, JUMPS)], 8.0) == 2.0
    assert phase_end_s([(1, JUMPS)], 8.0) == pytest.approx(4 * 8 / 6)


def test_a_grid_has_each_first_sample_twice() -> None:
    knots = grid([3.0, 2.0, 3.0])
    assert (np.diff(knots) >= 0).all()
    assert [int((knots == first).sum()) for first in (2.0, 3.0)] == [2, 2]
    made = table(knots, 3.0, lambda seconds: np.maximum(seconds, 0.0))
    at = int(np.searchsorted(knots, 3.0))
    assert made[at] == 0.0
    assert made[at + 1] == 3.0
    assert not made[:at].any()


def test_an_end_on_the_first_knot() -> None:
    assert end_s(np.array([1.0, 2.0]), np.array([5.0, 6.0]), 4.0) == 1.0
