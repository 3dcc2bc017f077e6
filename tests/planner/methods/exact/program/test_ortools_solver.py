"""A model that the solver cannot read is our error; a solve that it gives up proves no bound."""

import pytest

from planner.methods.exact.program.linear_model import LinearModel
from planner.methods.exact.program.ortools_solver import solve_relaxed, solve_whole


def model() -> tuple[LinearModel, int, int]:
    """Least x + y."""
    made = LinearModel()
    return made, made.variable(0.0, 4.0, 1.0, whole=True), made.variable(0.0, 4.0, 1.0, whole=True)


def test_rows_of_two_variables_are_rows() -> None:
    """2 x + y >= 3 and 4 x + y >= 5: least 3 / 2 in fractions of x, 2 in whole numbers."""
    made, x, y = model()
    made.rows(x, [2.0, 4.0], y, [3.0, 5.0])
    assert solve_relaxed(made).bound == pytest.approx(1.5, rel=1e-5)
    assert solve_whole(made, limit_s=5.0, gap=0.0).bound == pytest.approx(2.0, rel=1e-5)


def test_a_variable_that_comes_up_twice_counts_twice() -> None:
    made, x, y = model()
    made.row([(y, 1.0), (x, 1.0), (y, 1.0)], low=8.0)
    assert solve_relaxed(made).bound == pytest.approx(4.0, rel=1e-5)


def test_a_model_that_the_solver_cannot_read_is_no_weak_bound() -> None:
    made, x, y = model()
    made.rows(y, [1.0], x, [1.0])  # the younger one first
    with pytest.raises(ValueError, match="GLOP cannot read the model"):
        solve_relaxed(made)
    with pytest.raises(ValueError, match="HIGHS cannot read the model"):
        solve_whole(made, limit_s=1.0, gap=0.0)


def test_a_model_without_rows_has_its_optimum_at_the_ends_of_the_ranges() -> None:
    made, _, _ = model()
    made.low[0] = 1.0
    assert solve_relaxed(made).bound == pytest.approx(1.0, rel=1e-5)
    assert solve_whole(made, limit_s=5.0, gap=0.0).bound == pytest.approx(1.0, rel=1e-5)
